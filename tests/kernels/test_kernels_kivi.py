"""kivi4 and kivi2: groups of tokens for keys, rows for values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import Element, FormatError, Heads, NonFinite, Overflow, ShortBuffer, UnknownFormat, kivi
from pionkv.kernels.kivi import KiviSpec, Side
from pionkv.kernels.oracle.numeric import narrow

Rows = NDArray[np.float32]
BACKENDS = ("oracle", "cpu")


def packed(
    spec: KiviSpec, side: Side, x: Rows, backend: str = "cpu", element: Element = Element.F32
) -> bytes:
    out = bytearray(spec.stored_bytes(side, len(x)))
    kivi.pack(spec, side, narrow(x, element), element, len(x), out, backend=backend)
    return bytes(out)


def unpacked(spec: KiviSpec, side: Side, stored: bytes, rows: int, backend: str = "cpu") -> Rows:
    out = np.zeros((rows, spec.dim), np.float32)
    kivi.unpack(spec, side, stored, rows, Element.F32, out, backend=backend)
    return out


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("name", ["kivi4", "kivi2"])
@pytest.mark.parametrize("rows", [1, 24, 32, 61, 64])
def test_cpu_equals_oracle(name: str, side: Side, rows: int, hard_rows: Rows) -> None:
    spec = KiviSpec(name, 192)
    x = np.concatenate([hard_rows] * 3)[:rows]
    for element in Element:
        one, other = (packed(spec, side, x, backend, element) for backend in BACKENDS)
        assert one == other
        decoded = [unpacked(spec, side, one, rows, backend).tobytes() for backend in BACKENDS]
        assert decoded[0] == decoded[1]


def test_keys_have_a_scale_for_each_channel_and_values_for_each_group_of_a_token() -> None:
    """R54."""
    channel = np.exp2(np.arange(64) % 8).astype(np.float32)
    token = np.exp2(np.arange(32) % 4).astype(np.float32)[:, None]
    spec = KiviSpec("kivi4", 64)
    by_channel = np.sin(np.arange(32 * 64).reshape(32, 64)).astype(np.float32) * channel
    by_token = np.sin(np.arange(32 * 64).reshape(32, 64)).astype(np.float32) * token
    scales = np.frombuffer(packed(spec, Side.KEYS, by_channel)[32 * 32 :][:128], np.float16)
    ratio = scales / (by_channel.max(axis=0) - by_channel.min(axis=0)) * 15
    assert np.allclose(ratio, 1, atol=1e-3)
    rows = np.frombuffer(packed(spec, Side.VALUES, by_token), np.uint8).reshape(32, 40)
    scales = np.ascontiguousarray(rows[:, 32:36]).view(np.float16)
    groups = by_token.reshape(32, 2, 32)
    assert np.allclose(scales / (groups.max(axis=2) - groups.min(axis=2)) * 15, 1, atol=1e-3)


@pytest.mark.parametrize("name", ["kivi4", "kivi2"])
def test_any_chunking_gives_the_same_groups(name: str) -> None:
    """R56."""
    x = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    spec = KiviSpec(name, 64)
    whole = packed(spec, Side.KEYS, x)
    assert whole == b"".join(packed(spec, Side.KEYS, x[i : i + 32]) for i in (0, 32, 64))
    assert packed(spec, Side.VALUES, x) == b"".join(
        packed(spec, Side.VALUES, x[i : i + 1]) for i in range(96)
    )


def test_a_ragged_group_is_filled_by_its_last_row() -> None:
    """R57."""
    x = np.random.default_rng(1).standard_normal((41, 64)).astype(np.float32) + 3
    spec = KiviSpec("kivi4", 64)
    filled = np.concatenate([x, np.repeat(x[-1:], 23, axis=0)])
    stored = packed(spec, Side.KEYS, x)
    assert stored == packed(spec, Side.KEYS, filled)
    decoded = unpacked(spec, Side.KEYS, stored, 41)
    assert decoded.shape == x.shape
    assert np.abs(decoded - x).max() < 0.3  # zeros would have stretched every range to 0


def test_only_whole_groups_beyond_the_residual_close() -> None:
    spec = KiviSpec("kivi4", 128)
    assert [spec.closed_rows(rows, 128) for rows in (0, 127, 128, 159, 160, 4096)] == [0, 0, 0, 0, 32, 3968]
    assert (spec.closed_rows(351, 32), spec.closed_rows(2358, 32)) == (288, 2304)


def test_bytes_of_a_group() -> None:
    # 2 bits: 8D of codes and 4D of parameters beside 64D in fp16; 4 bits: 16D and 4D.
    assert KiviSpec("kivi2", 128).key_group_bytes == 12 * 128
    assert KiviSpec("kivi4", 128).key_group_bytes == 20 * 128
    assert KiviSpec("kivi2", 1024).value_row_bytes == 256 + 128


def test_ledger_of_a_model_with_grouped_query_attention() -> None:
    """R71, R76: the window in full precision is part of the sum."""
    layers, dim, tokens, residual = 32, 8 * 128, 4096, 128
    spec = KiviSpec("kivi2", dim, tokens=32, channels=32)
    closed = spec.closed_rows(tokens, residual)
    keys = layers * spec.stored_bytes(Side.KEYS, closed)
    values = layers * spec.stored_bytes(Side.VALUES, closed)
    codes = 2 * layers * closed * dim * 2 // 8
    tail = 2 * layers * (tokens - closed) * dim * 2
    mib = 1 << 20
    assert codes == 62 * mib
    assert (keys + values - codes, tail) == (31 * mib, 16 * mib)
    assert keys + values + tail == 109 * mib
    assert 2 * layers * tokens * dim * 2 == 512 * mib


@pytest.mark.parametrize(("name", "least"), [("kivi4", 0.995), ("kivi2", 0.93)])
def test_cosine_of_gaussian_rows(name: str, least: float) -> None:
    x = np.random.default_rng(2).standard_normal((256, 128)).astype(np.float32)
    spec = KiviSpec(name, 128)
    for side in Side:
        y = unpacked(spec, side, packed(spec, side, x), len(x))
        cosine = (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
        assert cosine >= least


@pytest.mark.parametrize("backend", BACKENDS)
def test_head_major_keys(backend: str) -> None:
    x = np.random.default_rng(4).standard_normal((40, 128)).astype(np.float16)
    heads = np.zeros((2, 48, 64), np.float16)
    heads[:, :40] = x.reshape(40, 2, 64).transpose(1, 0, 2)
    spec, layout = KiviSpec("kivi2", 128), Heads(2, 48 * 64, 64)
    for side in Side:
        plain, strided = (bytearray(spec.stored_bytes(side, 40)) for _ in range(2))
        kivi.pack(spec, side, x, Element.F16, 40, plain, backend=backend)
        kivi.pack(spec, side, heads, Element.F16, 40, strided, layout=layout, backend=backend)
        assert plain == strided
        back = np.zeros_like(heads)
        kivi.unpack(spec, side, plain, 40, Element.F16, back, layout=layout, backend=backend)
        rows = np.zeros((40, 128), np.float16)
        kivi.unpack(spec, side, plain, 40, Element.F16, rows, backend=backend)
        assert np.array_equal(back[:, :40].transpose(1, 0, 2).reshape(40, 128), rows)


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_refused(side: Side, backend: str) -> None:
    spec = KiviSpec("kivi4", 64)
    x = np.ones((40, 64), np.float32)
    x[37, 9] = np.nan
    with pytest.raises(NonFinite) as non_finite:
        packed(spec, side, x, backend)
    assert (non_finite.value.row, non_finite.value.element) == (37, 9)
    x[37, 9] = -65505
    with pytest.raises(Overflow) as overflow:
        packed(spec, side, x, backend)
    assert (overflow.value.row, overflow.value.element, overflow.value.value) == (37, 9, -65505)


def test_specs_that_do_not_fit() -> None:
    """R55."""
    for wrong in (KiviSpec("kivi4", 80), KiviSpec("kivi4", 0), KiviSpec("kivi4", 64, tokens=1)):
        with pytest.raises(FormatError, match="kivi4"):
            wrong.validate()
    with pytest.raises(FormatError, match="channels 12"):
        KiviSpec("kivi2", 48, channels=12).validate()
    with pytest.raises(UnknownFormat, match="kivi3"):
        KiviSpec("kivi3", 64).validate()
    with pytest.raises(ShortBuffer, match="out holds 19 bytes, 1280 are needed"):
        kivi.pack(KiviSpec("kivi4", 64), Side.KEYS, bytes(256), Element.F32, 1, bytearray(19))
