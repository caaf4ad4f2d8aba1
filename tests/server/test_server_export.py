"""V.EXPORT: a safetensors file for a client on this machine."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from pionkv.kernels import Element, LayerSpec, unpack

HEADS, HEAD_DIM, LAYERS, COUNT = 2, 32, 3, 700
DIM = HEADS * HEAD_DIM


def rows(layer, side):
    return np.random.default_rng(layer * 2 + side).standard_normal((COUNT, DIM), np.float32)


@pytest.fixture(params=["fp16", "bf16", "mlx4g32"])
def stored(request, wire):
    """A prefix in one format, stored in two runs."""
    wire.command("KV.PREFIX.REGISTER", "n", DIM, request.param)
    for layer in range(LAYERS):
        for side, name in enumerate("kv"):
            blob = rows(layer, side)
            wire.command("V.STOREBATCH", f"n_p{name}", layer, 0, 300, blob[:300].tobytes())
            wire.command("V.STOREBATCH", f"n_p{name}", layer, 300, COUNT - 300, blob[300:].tobytes())
    wire.format = request.param
    return wire


def read(path):
    """Tensors of a safetensors file, by the format's own description."""
    data = Path(path.decode()).read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 8 == 0
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F16"
        tensors[name] = np.frombuffer(body[begin:end], np.float16).reshape(entry["shape"])
    return tensors


def test_tensors_are_the_rows_head_by_head(stored) -> None:
    path = stored.command("V.EXPORT", "n_pk", "n_pv", 100, 650, LAYERS, HEADS, HEAD_DIM)
    tensors = read(path)
    assert list(tensors) == ["k.0", "v.0", "k.1", "v.1", "k.2", "v.2"]
    spec = LayerSpec(stored.format, DIM)
    for layer in range(LAYERS):
        for name in "kv":
            raw = stored.command("V.FETCH", f"n_p{name}", layer, "RANGE", 100, 650, "FMT", "RAW")
            flat = np.empty((550, DIM), np.float16)
            unpack(spec, raw, 550, Element.F16, flat)
            expected = flat.reshape(550, HEADS, HEAD_DIM).transpose(1, 0, 2)[None]
            assert np.array_equal(tensors[f"{name}.{layer}"], expected)


def test_a_file_is_made_once_for_each_generation(stored) -> None:
    request = ("V.EXPORT", "n_pk", "n_pv", 0, COUNT, LAYERS, HEADS, HEAD_DIM)
    first = Path(stored.command(*request).decode())
    made = first.stat()
    assert stored.command(*request).decode() == str(first) and first.stat().st_ino == made.st_ino
    assert stat.S_IMODE(made.st_mode) == 0o600 and stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    stored.command("V.STOREBATCH", "n_pk", 0, 0, 1, rows(9, 0)[:1].tobytes())
    second = Path(stored.command(*request).decode())
    assert second != first and second.exists() and not first.exists()
    assert [path.name for path in second.parent.iterdir()] == [second.name]


def test_files_go_with_the_server(start_local) -> None:
    server = start_local()
    wire = server.connect()
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    for side in "kv":
        wire.command("V.STOREBATCH", f"n_p{side}", 0, 0, COUNT, rows(0, 0).tobytes())
    path = Path(wire.command("V.EXPORT", "n_pk", "n_pv", 0, COUNT, 1, HEADS, HEAD_DIM).decode())
    assert path.exists()
    server.stop()
    assert not path.exists()


@pytest.mark.parametrize(
    "args, text",
    [
        (("n_pk",),
         "V.EXPORT requires: k_session v_session start end num_layers n_kv_heads head_dim"),
        (("n_pk", "nosuch", 0, 1, 1, 2, 32), "session not found"),
        (("n_pk", "n_pv", 1, 1, 1, 2, 32), "V.EXPORT invalid range: end must exceed start (>=0)"),
        (("n_pk", "n_pv", 0, 1, 0, 2, 32), "V.EXPORT num_layers, n_kv_heads and head_dim must be positive"),
        (("n_pk", "n_pv", 0, 1, 1, 0, 32), "V.EXPORT num_layers, n_kv_heads and head_dim must be positive"),
        (("n_pk", "n_pv", 0, 1, 4, 2, 32), "V.EXPORT num_layers exceeds the layers stored"),
        (("n_pk", "n_pv", 0, 1, 3, 2, 16),
         "V.EXPORT layer 0 holds 64 values per token, not n_kv_heads * head_dim = 32"),
        (("n_pk", "n_pv", 0, 701, 3, 2, 32),
         "V.EXPORT: rows 0..701 of layer 0 are not stored (layer holds 700)"),
    ],
)  # fmt: skip
def test_refused(args, text, stored) -> None:
    error = stored.command("V.EXPORT", *args)
    assert (error.code, error.message) == ("ERR", text)


def test_a_directory_that_cannot_be_written(start_local) -> None:
    server = start_local()
    wire = server.connect()
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    for side in "kv":
        wire.command("V.STOREBATCH", f"n_p{side}", 0, 0, COUNT, rows(0, 0).tobytes())
    directory = server.settings.data_dir.absolute() / "export"
    directory.write_text("in the way")
    error = wire.command("V.EXPORT", "n_pk", "n_pv", 0, COUNT, 1, HEADS, HEAD_DIM)
    assert error.message == f"V.EXPORT cannot create a file in {directory}"


def test_a_client_on_another_machine_is_refused(stored, server) -> None:
    server.call(
        lambda app: next(iter(app.service.connections.values())).client.__setattr__("same_machine", False)
    )
    error = stored.command("V.EXPORT", "n_pk", "n_pv", 0, 1, LAYERS, HEADS, HEAD_DIM)
    assert error.message == "V.EXPORT serves clients on this machine only; use V.FETCH"
