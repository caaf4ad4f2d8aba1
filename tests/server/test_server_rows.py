"""Rows in every element type and format: what comes back is what the kernels' oracle says."""

from __future__ import annotations

import numpy as np
import pytest
from pionkv.kernels import FORMATS, Element, LayerSpec, pack, unpack
from pionkv.kernels.formats import HEAD

DIM = 64
INPUTS = {"F32": Element.F32, "F16": Element.F16, "BF16": Element.BF16}
SMALL, LARGE = 3, 20_000
"""Rows that the parser gathers, and rows that arrive in more than two chunks even as two-byte elements."""


def make_rows(count, seed=1):
    """Elements as (F32, F16, BF16) bytes of about the same values."""
    values = np.random.default_rng(seed).standard_normal((count, DIM), np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    return {"F32": values.tobytes(), "F16": values.astype(np.float16).tobytes(), "BF16": bf16.tobytes()}


def make_session(wire, format):
    """A session `s` of one layer, and its spec; formats that want a rope or a head size get one."""
    known = FORMATS[format]
    spec = LayerSpec(format, DIM, 32 if known.family == "rope" else 0, 32 if known.group == HEAD else 0)
    text = (
        f"fmt={format},dim={DIM}" + (",rope=32" if spec.rope else "") + (",head=32" if spec.head_dim else "")
    )
    assert isinstance(wire.command("V.CREATE", "s", "SCHEMA", 1, text), int)
    return spec


def packed(spec, data, element, count):
    out = bytearray(count * spec.row_bytes)
    pack(spec, data, element, count, out, backend="oracle")
    return bytes(out)


def unpacked(spec, data, count, element):
    out = bytearray(count * spec.dim * element.itemsize)
    unpack(spec, data, count, element, out, backend="oracle")
    return bytes(out)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("format", FORMATS)
def test_round_trip(format, kind, count, wire) -> None:
    spec = make_session(wire, format)
    data = make_rows(count)[kind]
    expected = packed(spec, data, INPUTS[kind], count)
    assert wire.command("V.STOREBATCH", "s", 0, 0, count, data, "FMT", kind) == "OK"
    fetch = ("V.FETCH", "s", 0, "RANGE", 0, count)
    assert wire.command(*fetch, "FMT", "RAW") == expected
    as_f32 = unpacked(spec, expected, count, Element.F32)
    assert wire.command(*fetch) == as_f32
    assert wire.command(*fetch, "FMT", "F32") == as_f32
    assert wire.command(*fetch, "FMT", "F16") == unpacked(spec, expected, count, Element.F16)
    assert wire.command(*fetch, "FMT", "NATIVE") == (expected if format == "fp16" else as_f32)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("format", FORMATS)
def test_raw_round_trip(format, count, wire) -> None:
    """R65: packed rows go in and out byte for byte."""
    spec = make_session(wire, format)
    expected = packed(spec, make_rows(count)["F32"], Element.F32, count)
    assert wire.command("V.STOREBATCH", "s", 0, 0, count, expected, "fmt", "raw") == "OK"
    assert wire.command("V.FETCH", "s", 0, "RANGE", 0, count, "FMT", "RAW") == expected


@pytest.mark.parametrize("format", ["mlx4g32", "fp16", "bf16"])
def test_the_declaration_counts_and_not_what_was_declared_before(format, wire) -> None:
    spec = LayerSpec(format, DIM)
    wire.command("V.CREATE", "s", DIM, "VQUANT", format)
    for start, kind in enumerate(["F16", "BF16", "BF16", "F16", "BF16"]):
        data = make_rows(LARGE, start)[kind]
        assert wire.command("V.STOREBATCH", "s", start, 0, LARGE, data, "FMT", kind) == "OK"
        raw = wire.command("V.FETCH", "s", start, "RANGE", 0, LARGE, "FMT", "RAW")
        assert raw == packed(spec, data, INPUTS[kind], LARGE)


def test_any_bits_survive_where_nothing_is_recoded(wire) -> None:
    words = np.arange(65536, dtype=np.uint16).tobytes()
    for format, kind in (("fp16", "F16"), ("bf16", "BF16")):
        wire.command("V.CREATE", format, DIM, "VQUANT", format)
        assert wire.command("V.STOREBATCH", format, 0, 0, 1024, words, "FMT", kind) == "OK"
        assert wire.command("V.FETCH", format, 0, "RANGE", 0, 1024, "FMT", "RAW") == words
    assert wire.command("V.FETCH", "fp16", 0, "RANGE", 0, 1024, "FMT", "NATIVE") == words


def test_appends_and_overwrites_of_any_size(wire) -> None:
    """The model of a layer is an array; writes start anywhere up to its end."""
    wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    random = np.random.default_rng(7)
    model = np.zeros((0, DIM), np.float32)
    for _ in range(40):
        count = int(random.choice([1, 7, 300, 2_000, 9_000]))
        start = int(random.integers(0, len(model) + 1))
        rows = random.standard_normal((count, DIM), np.float32)
        assert wire.command("V.STOREBATCH", "s", 0, start, count, rows.tobytes()) == "OK"
        model = np.concatenate([model[:start], rows, model[start + count :]])
        low = int(random.integers(0, len(model)))
        high = int(random.integers(low + 1, len(model) + 1))
        assert wire.command("V.FETCH", "s", 0, "RANGE", low, high) == model[low:high].tobytes()
        ids = random.integers(0, len(model), 50)
        assert wire.command("V.FETCH", "s", 0, *map(int, ids)) == model[ids].tobytes()
    assert wire.command("V.FETCH", "s", 0, "RANGE", 0, len(model)) == model.tobytes()


def test_ids_in_any_number_and_order(wire) -> None:
    data = np.frombuffer(make_rows(LARGE)["F32"], np.float32).reshape(LARGE, DIM)
    spec = LayerSpec("int8", DIM)
    raw = np.frombuffer(packed(spec, data.tobytes(), Element.F32, LARGE), np.uint8).reshape(LARGE, -1)
    wire.command("V.CREATE", "s", DIM)
    wire.command("V.STOREBATCH", "s", 0, 0, LARGE, data.tobytes())
    ids = np.random.default_rng(3).integers(0, LARGE, 30_000)
    assert wire.command("V.FETCH", "s", 0, *map(int, ids), "FMT", "RAW") == raw[ids].tobytes()
    as_f32 = np.frombuffer(unpacked(spec, raw.tobytes(), LARGE, Element.F32), np.float32).reshape(LARGE, DIM)
    assert wire.command("V.FETCH", "s", 0, *map(int, ids)) == as_f32[ids].tobytes()
