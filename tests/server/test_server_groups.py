"""kivi4 and kivi2 over the wire: keys by channel in groups of tokens, values by token, new rows as fp16."""

from __future__ import annotations

import numpy as np
import pytest
from pionkv.kernels import Element, LayerSpec, keys_format, pack, unpack

DIM = 64
CLOSED, ROWS = 1152, 1300
"""Of so many rows so many are coded; together they are more than a chunk."""


def make_rows(count, seed=1):
    return np.random.default_rng(seed).standard_normal((count, DIM), np.float32).astype(np.float16)


def expected(format, values, element):
    """What is read: rows of closed groups as decoded, those after them as they came."""
    spec, closed = LayerSpec(format, DIM), values[:CLOSED]
    packed, plain = bytearray(CLOSED * spec.row_bytes), LayerSpec("fp16", DIM)
    pack(spec, closed.tobytes(), Element.F16, CLOSED, packed, backend="oracle")
    out = [bytearray(len(part) * DIM * element.itemsize) for part in (closed, values[CLOSED:])]
    unpack(spec, packed, CLOSED, element, out[0], backend="oracle")
    unpack(plain, values[CLOSED:].tobytes(), len(values) - CLOSED, element, out[1], backend="oracle")
    return bytes(out[0] + out[1])


def encoded(values, kind):
    if kind == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float32).tobytes() if kind == "F32" else values.tobytes()


def info(wire, sid):
    lines = wire.command("V.INFO", sid).decode().split()
    return dict(line.split(":") for line in lines)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "RAW"])
@pytest.mark.parametrize("step", [ROWS, 333, 20])
@pytest.mark.parametrize("format", ["kivi4", "kivi2"])
def test_round_trip(format, step, kind, wire) -> None:
    """R55, R56: large and small blobs of every type, ranges across groups and tail."""
    assert wire.command("KV.PREFIX.REGISTER", "n", DIM, format) == "OK"
    values = make_rows(ROWS)
    if kind == "BF16":
        values = (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float16)
    for sid in ("n_pk", "n_pv"):
        for start in range(0, ROWS, step):
            part = values[start : start + step]
            blob = encoded(part, kind)
            assert wire.command("V.STOREBATCH", sid, 0, start, len(part), blob, "FMT", kind) == "OK"
    formats = {"n_pk": keys_format(format), "n_pv": format}
    for sid, stored in formats.items():
        assert info(wire, sid)["v_format"] == stored
        for form, element in (("F32", Element.F32), ("F16", Element.F16), ("RAW", Element.F16)):
            whole, size = expected(stored, values, element), DIM * element.itemsize
            for start, end in ((0, ROWS), (5, 6), (37, 1000), (CLOSED - 1, CLOSED + 1), (CLOSED - 700, ROWS)):
                rows = wire.command("V.FETCH", sid, 0, "RANGE", start, end, "FMT", form)
                assert rows == whole[start * size : end * size], (sid, form, start, end)
    ids = (3, 1200, 3, 4, 40)
    whole, size = expected(formats["n_pk"], values, Element.F32), DIM * 4
    rows = wire.command("V.FETCH", "n_pk", 0, *ids)
    assert rows == b"".join(whole[each * size : (each + 1) * size] for each in ids)
    assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"
    assert wire.command("KV.PREFIX.REGISTER", "n", DIM, format) == "OK"


def test_the_sides_of_a_schema_and_of_single_sessions(wire) -> None:
    specs = ("K", 2, "fmt=kivi4,dim=64", "fmt=fp16,dim=64", "V", 2, "fmt=kivi2,dim=64", "fmt=kivi2,dim=64")
    assert wire.command("KV.PREFIX.REGISTER", "n", "SCHEMA", *specs) == "OK"
    assert info(wire, "n_pk")["layer_0_fmt"] == "kivi4_keys" and info(wire, "n_pk")["layer_1_fmt"] == "fp16"
    assert info(wire, "n_pv")["v_format"] == "kivi2"
    for sid, stored in (("m_pk", "kivi4_keys"), ("m_pv", "kivi4"), ("s", "kivi4")):
        assert isinstance(wire.command("V.CREATE", sid, DIM, "VQUANT", "kivi4"), int)
        assert info(wire, sid)["v_format"] == stored
    assert wire.command("V.CREATE", "t", 48, "VQUANT", "kivi4").code == "ERR"


def test_what_is_refused_says_why(wire) -> None:
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "kivi4")
    values = make_rows(ROWS)
    wire.command("V.STOREBATCH", "n_pk", 0, 0, ROWS, values.tobytes(), "FMT", "F16")
    refused = wire.command("V.STOREBATCH", "n_pk", 0, 40, 2, values[:2].tobytes(), "FMT", "F16")
    assert f"rows 40..{CLOSED} of layer 0 are in closed groups" in refused.message
    values[1, 7] = np.nan
    refused = wire.command("V.STOREBATCH", "n_pk", 0, ROWS, 2, values[:2].tobytes(), "FMT", "F16")
    assert "non-finite value at row 1301, element 7" in refused.message
    refused = wire.command("KV.PREFIX.MAP", "n")
    assert refused is None or "codes rows in groups" in refused.message
    rows = wire.command("V.FETCH", "n_pk", 0, "RANGE", 0, ROWS, "FMT", "F16")
    assert rows == expected("kivi4_keys", make_rows(ROWS), Element.F16)
