"""V.STOREBATCH: what is refused, and that a refusal or a lost connection changes nothing."""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import pytest
from pionkv.protocol.request import encode_command
from pionkv.storage import open_pages
from pionkv.storage.filling import PageWrite

DIM = 64
MANY = 20_000
BLOB = np.random.default_rng(5).standard_normal((MANY, DIM), np.float32)
SHORT = 4


def store(wire, sid, start, values, *options, layer=0, count=None):
    return wire.command("V.STOREBATCH", sid, layer, start, count or len(values), values.tobytes(), *options)


@pytest.fixture
def sessions(wire):
    """A session of each kind of receiving, with 10 rows in layer 0."""
    for format in ("fp32", "fp16", "bf16", "int8", "mlx4g32"):
        wire.command("V.CREATE", format, DIM, "VQUANT", format)
        assert store(wire, format, 0, BLOB[:10]) == "OK"
    return wire


def state(wire, sid):
    return wire.command("V.INFO", sid), wire.command("V.FETCH", sid, 0, "RANGE", 0, 10, "FMT", "RAW")


@pytest.mark.parametrize("count", [SHORT, MANY], ids=["small", "large"])
@pytest.mark.parametrize(
    "sid, args, text",
    [
        ("nosuch", (0, 0, "n"), "session not found"),
        ("fp32", (0, 11, "n"), "V.STOREBATCH: gap (layer holds 10 rows, start is 11)"),
        ("fp32", (1, 1, "n"), "V.STOREBATCH: gap (layer holds 0 rows, start is 1)"),
        ("int8", (1024, 0, "n"), "V.STOREBATCH: layer_id exceeds MAX_VS_LAYERS (1024 is not within 0..1023)"),
        ("fp32", (-1, 0, "n"), "invalid layer_id/start_id/count"),
        ("fp32", (0, -1, "n"), "invalid layer_id/start_id/count"),
        ("fp32", (0, 0, 0), "invalid layer_id/start_id/count"),
        ("fp32", (0, 0, "x"), "value is not an integer or out of range"),
        ("fp32", (0, "01", "n"), "value is not an integer or out of range"),
        ("fp32", ("+1", 0, "n"), "value is not an integer or out of range"),
    ],
)
def test_refused_on_the_header(sid, args, text, count, sessions) -> None:
    layer, start, rows = args
    before = state(sessions, "fp32")
    error = sessions.command(
        "V.STOREBATCH", sid, layer, start, count if rows == "n" else rows, BLOB[:count].tobytes()
    )
    assert (error.code, error.message) == ("ERR", text)
    assert sessions.command("PING") == "PONG"
    assert state(sessions, "fp32") == before


@pytest.mark.parametrize("count", [SHORT, MANY], ids=["small", "large"])
@pytest.mark.parametrize("sid", ["fp32", "fp16", "int8", "mlx4g32"])
@pytest.mark.parametrize("options", [(), ("FMT", "F16"), ("FMT", "RAW"), ("FMT", "BF16"), ("FMT", "F32")])
def test_a_blob_of_another_length(sid, options, count, sessions) -> None:
    kind = options[1] if options else "F32"
    info = {"fp32": 256, "fp16": 128, "int8": 72, "mlx4g32": 40}
    size = info[sid] if kind == "RAW" else DIM * (4 if kind == "F32" else 2)
    unit = f"row_bytes={size}" if kind == "RAW" else f"per_layer_dim={DIM} × {size // DIM}"
    before = state(sessions, sid)
    sent = b"\0" * (count * size + 1)
    error = sessions.command("V.STOREBATCH", sid, 0, 0, count, sent, *options)
    assert error.message == (
        f"V.STOREBATCH: blob size {len(sent)} != expected {count * size} (count={count} × {unit})"
    )
    assert state(sessions, sid) == before


@pytest.mark.parametrize("count", [SHORT, MANY], ids=["small", "large"])
def test_a_length_that_fits_another_element(count, sessions) -> None:
    error = store(sessions, "mlx4g32", 0, BLOB[:count], "FMT", "F16")
    assert error.message.startswith("V.STOREBATCH: blob size ")
    error = store(sessions, "fp32", 0, BLOB[:count], "FMT", "BF16")
    assert error.message.startswith("V.STOREBATCH: blob size ")


@pytest.mark.parametrize("count", [SHORT, MANY], ids=["small", "large"])
@pytest.mark.parametrize("options", [("FMT",), ("FMT", "F8"), ("XXX", "F16"), ("FMT", "F16", "MORE")])
def test_unknown_options(options, count, sessions) -> None:
    before = state(sessions, "fp32")
    error = store(sessions, "fp32", 0, BLOB[:count], *options)
    assert error.message == "V.STOREBATCH: unknown option (expected FMT F32|F16|BF16|RAW)"
    assert state(sessions, "fp32") == before


def test_too_few_arguments(wire) -> None:
    error = wire.command("V.STOREBATCH", "s", 0, 0, 1)
    assert error.message == "V.STOREBATCH requires: session_id layer_id start_id count values_blob"


@pytest.mark.parametrize("count", [SHORT, MANY], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_do_not_enter_a_quantised_format(value, kind, count, sessions) -> None:
    values = BLOB[:count].copy()
    values[count - 2, 5] = value
    values[count - 1, 0] = value
    data = {
        "F32": values.tobytes(),
        "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[kind]
    for sid in ("int8", "mlx4g32"):
        before = state(sessions, sid)
        error = sessions.command("V.STOREBATCH", sid, 0, 3, count, data, "FMT", kind)
        assert error.message == f"V.STOREBATCH: non-finite value at row {count + 1}, element 5"
        assert state(sessions, sid) == before
    assert sessions.command("V.STOREBATCH", "bf16", 0, 3, count, data, "FMT", kind) == "OK"


@pytest.mark.parametrize("count", [SHORT, MANY], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_values_beyond_fp16(kind, count, sessions) -> None:
    values = BLOB[:count].copy()
    values[1, 2] = 131072.0
    data = values.tobytes() if kind == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    before = state(sessions, "fp16")
    error = sessions.command("V.STOREBATCH", "fp16", 0, 0, count, data, "FMT", kind)
    assert error.message == "V.STOREBATCH: value 131072 at row 1, element 2 is beyond 65504"
    assert state(sessions, "fp16") == before


@pytest.mark.parametrize("sid, kind", [("fp32", "F32"), ("int8", "F32"), ("mlx4g32", "F16")])
@pytest.mark.parametrize("part", [0, 1, 100_000, 3_000_000, -1])
def test_a_connection_that_dies_in_the_blob_leaves_nothing(sid, kind, part, sessions, server) -> None:
    data = BLOB.tobytes() if kind == "F32" else BLOB.astype(np.float16).tobytes()
    before = state(sessions, sid)
    dying = server.connect()
    dying.send(
        b"*8\r\n$12\r\nV.STOREBATCH\r\n$%d\r\n%b\r\n$1\r\n0\r\n$1\r\n0\r\n$5\r\n%d\r\n$%d\r\n"
        % (len(sid), sid.encode(), MANY, len(data))
    )
    dying.send(memoryview(data)[:part] if part >= 0 else data + b"\r\n$3\r\nFMT\r\n")
    dying.close()
    wait_for_clients(sessions, 1)
    assert state(sessions, sid) == before
    assert store(sessions, sid, 0, BLOB) == "OK"
    assert idle_resources(server) == (0, 0)


def wait_for_clients(wire, count):
    """The server has noticed that the others are gone."""
    while len(wire.command("CLIENT", "LIST").splitlines()) > count:
        pass


def idle_resources(server):
    """Bytes reserved by writes, and writes that are open."""

    def look(app):
        engine = app.service.store._engine
        return engine.reserved, sum(engine.writing.values())

    return server.call(look)


@pytest.mark.parametrize("sid", ["fp32", "int8"])
def test_commands_after_a_large_one_wait_their_turn(sid, sessions) -> None:
    """Rows come a buffer at a time, and packing runs in threads; replies come in the order of commands."""
    header = b"*6\r\n$12\r\nV.STOREBATCH\r\n$4\r\n%b\r\n$1\r\n0\r\n$1\r\n0\r\n$5\r\n20000\r\n$%d\r\n"
    begin, blob = header % (sid.encode(), BLOB.nbytes), BLOB.tobytes()
    sessions.send(begin + blob + b"\r\nPING\r\n" + begin + blob + b"\r\nECHO end\r\n")
    sessions.expect(b"+OK\r\n+PONG\r\n+OK\r\n$3\r\nend\r\n")


LARGE = {
    "landing": ("V.STOREBATCH", "fp32", 1, 0, MANY, BLOB.tobytes()),
    "two kinds": ("V.STOREBATCH", "fp16", 1, 0, MANY, BLOB.astype(np.float16).tobytes(), "FMT", "F16"),
    "recoded": ("V.STOREBATCH", "fp16", 1, 0, MANY, BLOB.astype(np.float16).tobytes(), "FMT", "BF16"),
    "packed": ("V.STOREBATCH", "int8", 1, 0, MANY, BLOB.tobytes()),
    "state": ("SSM.PREFIX.STORE", "ns", 0, BLOB.tobytes()),
    "string": ("SET", "key", BLOB.tobytes()),
}
"""Every way for some MB to arrive."""


def held(wire):
    """What is there of it."""
    infos = [wire.command("V.INFO", sid) for sid in ("fp32", "fp16", "int8")]
    return infos, wire.command("SSM.PREFIX.FETCH", "ns", 0), wire.command("GET", "key")


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("way", LARGE)
def test_a_disk_that_is_full_in_the_middle(way, after, sessions, server, monkeypatch) -> None:
    before, files = held(sessions), iter(range(after))
    real = os.pwrite

    def refuse(fd, data, offset):
        if len(data) > 4096 and next(files, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(open_pages.os, "pwrite", refuse)
        error = sessions.command(*LARGE[way])
    assert (error.code, error.message) == ("OOM", "no space left for a page")
    assert sessions.command("PING") == "PONG"
    assert held(sessions) == before
    assert idle_resources(server) == (0, 0)
    assert sessions.command(*LARGE[way]) == "OK"


@pytest.mark.parametrize("way", ["landing", "packed"])
def test_two_stores_at_once_into_the_same_rows(way, sessions, server) -> None:
    """Each is whole; the one that ends last stands."""
    name, sid, layer, start, count, first = LARGE[way]
    second = (-BLOB).tobytes()
    late = server.connect()
    head, body, *_ = encode_command((name, sid, layer, start, count, first))
    late.send(head)
    late.send(body[: len(body) // 2])
    assert sessions.command(name, sid, layer, start, count, second) == "OK"
    between = sessions.command("V.FETCH", sid, layer, "RANGE", 0, count, "FMT", "RAW")
    late.send(body[len(body) // 2 :])
    late.send(b"\r\n")
    assert late.reply() == "OK"
    after = sessions.command("V.FETCH", sid, layer, "RANGE", 0, count, "FMT", "RAW")
    assert sessions.command(name, sid, layer, start, count, first) == "OK"
    assert sessions.command("V.FETCH", sid, layer, "RANGE", 0, count, "FMT", "RAW") == after != between


@pytest.mark.parametrize("way", ["landing", "two kinds", "state", "string"])
def test_others_are_looked_at_between_the_buffers_of_a_large_argument(way, server, monkeypatch) -> None:
    """However fast its bytes come, one buffer is written and the next lent in a turn of the event loop."""
    wire, turns, ended, lent = server.connect(), [0], threading.Event(), []
    wire.command("V.CREATE", "fp32", DIM, "VQUANT", "fp32")
    wire.command("V.CREATE", "fp16", DIM, "VQUANT", "fp16")
    real = PageWrite.next_segment

    def next_segment(write):
        lent.append(turns[0])
        return real(write)

    def count(app):
        turns[0] += 1
        if not ended.is_set():
            app.loop.call_soon(count, app)

    server.call(count)
    with monkeypatch.context() as patched:
        patched.setattr(PageWrite, "next_segment", next_segment)
        assert wire.command(*LARGE[way]) == "OK"
    ended.set()
    assert len(lent) >= 3 and len(set(lent)) == len(lent)


def test_a_full_budget(start_local) -> None:
    wire = start_local(max_bytes=3 << 20).connect()
    wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    assert store(wire, "s", 0, BLOB[:5_000]) == "OK"
    error = store(wire, "s", 5_000, BLOB)
    assert error.code == "OOM" and "maxmemory" in error.message and str(3 << 20) in error.message
    assert store(wire, "s", 0, BLOB[:100]) == "OK"
    assert wire.command("V.FETCH", "s", 0, "RANGE", 100, 5_000) == BLOB[100:5_000].tobytes()
