"""The page file's layout and header, as docs/page-format.md has them."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pionkv.kernels import LayerSpec
from pionkv.storage import Schema
from pionkv.storage.page import BLOCK, BadHeader, PageKind, PageLayout, align, parse_header

UNIFORM = Schema.uniform(LayerSpec("fp16", 96))
MIXED = Schema.per_layer([LayerSpec("fp16", 96), LayerSpec("mlx4g32", 96), LayerSpec("fp32", 96)])
HEAVY = Schema.per_layer([LayerSpec("fp32" if i % 2 else "fp16", 32 + i) for i in range(1024)])

layouts = st.builds(
    PageLayout,
    st.just(PageKind.ROWS),
    st.integers(1, 5000),
    st.sampled_from(
        [{0: UNIFORM}, {1: MIXED}, {0: MIXED, 1: MIXED}, {0: UNIFORM, 1: UNIFORM}, {0: HEAVY, 1: HEAVY}]
    ),
)


@given(layouts, st.integers(0, 2**64 - 1))
def test_a_header_comes_back(layout, number):
    """R24."""
    header = layout.encode(number)
    assert len(header) == layout.header_bytes and len(header) % BLOCK == 0
    found, again = parse_header(header + b"rows")
    assert found == number
    assert (again.kind, again.capacity, dict(again.sides)) == (
        layout.kind,
        layout.capacity,
        dict(layout.sides),
    )


@given(layouts)
def test_regions_lie_in_order_at_block_boundaries_without_overlap(layout):
    position = layout.header_bytes
    for layer in range(3):
        for side in sorted(layout.sides):
            assert layout.has(layer, side)
            assert layout.offset(layer, side) == position
            position += align(layout.capacity * layout.row_bytes(layer, side))
        assert layout.file_bytes(layer) >= position
    assert position % BLOCK == 0


def test_a_page_has_no_regions_but_its_own():
    layout = PageLayout(PageKind.ROWS, 8, {1: MIXED})
    assert not layout.has(0, 0) and not layout.has(3, 1) and not layout.has(-1, 1)
    with pytest.raises(KeyError):
        layout.offset(3, 1)


def test_a_state_is_one_run_after_the_header():
    layout = PageLayout(PageKind.STATE, 5000, {})
    assert layout.has(0, 0) and not layout.has(1, 0) and not layout.has(0, 1)
    assert layout.offset(0, 0) == layout.header_bytes == BLOCK
    assert layout.file_bytes(0) == BLOCK + 8192
    assert parse_header(layout.encode(9))[1].kind is PageKind.STATE


def test_every_flipped_bit_of_a_header_is_noticed():
    header = PageLayout(PageKind.ROWS, 8, {0: UNIFORM, 1: UNIFORM}).encode(1)
    for position in range(0, len(header) * 8, 7):
        damaged = bytearray(header)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(BadHeader):
            parse_header(damaged)


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1])
def test_a_short_header_is_noticed(length):
    with pytest.raises(BadHeader):
        parse_header(PageLayout(PageKind.ROWS, 8, {0: UNIFORM}).encode(1)[:length])


@pytest.mark.parametrize(
    ("offset", "form", "value", "text"),
    [
        (8, "<I", 2, "version 2"),
        (12, "<I", 8192, "header length"),
        (12, "<I", 100, "header length"),
        (24, "<Q", 0, "page kind"),
        (32, "<B", 7, "page kind"),
        (33, "<B", 0, "do not fit"),
        (33, "<B", 3, "schema"),
        (36, "<B", 5, "side table"),
        (41, "<B", 9, "schema"),
    ],
)
def test_a_sealed_header_that_makes_no_sense_is_refused(offset, form, value, text):
    header = bytearray(PageLayout(PageKind.ROWS, 8, {0: UNIFORM}).encode(1))
    struct.pack_into(form, header, offset, value)
    header[-8:] = struct.pack("<Q", xxhash.xxh3_64_intdigest(header[:-8]))
    with pytest.raises(BadHeader, match=text):
        parse_header(header)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(start):
    with pytest.raises(BadHeader):
        parse_header(start.ljust(BLOCK, b"\0"))
