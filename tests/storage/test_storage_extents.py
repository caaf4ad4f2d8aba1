"""Extent lists against the array they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pionkv.storage.extents import cut, rows_of, slice_rows, splice

PAGES, PAGE_ROWS = 4, 40


def expand(extents):
    """The (page, page row) of every row, as one number each."""
    parts = [page * PAGE_ROWS + np.arange(row, row + count) for page, row, count in extents]
    return np.concatenate(parts) if parts else np.empty(0, dtype=int)


def assert_well_formed(extents):
    assert all(count > 0 for _, _, count in extents)
    for (page, row, count), following in zip(extents, extents[1:], strict=False):
        assert (page, row + count) != following[:2], "two neighbors that could be one"


runs = st.tuples(
    st.floats(0, 1), st.integers(0, PAGES - 1), st.integers(0, PAGE_ROWS - 1), st.integers(1, PAGE_ROWS)
)


@st.composite
def written(draw):
    """An extent list made by writes, and the array that the same writes make."""
    extents, model = (), np.empty(0, dtype=int)
    for where, page, row, count in draw(st.lists(runs, max_size=12)):
        start = int(where * len(model))
        extents = splice(extents, start, (page, row, count))
        new = np.arange(page * PAGE_ROWS + row, page * PAGE_ROWS + row + count)
        model = np.concatenate([model[:start], new, model[start + count :]])
    return extents, model


@given(written())
def test_splicing_is_assignment_to_an_array(made):
    extents, model = made
    assert_well_formed(extents)
    assert rows_of(extents) == len(model)
    np.testing.assert_array_equal(expand(extents), model)


@given(written(), st.data())
def test_slicing_and_cutting_are_slices(made, data):
    extents, model = made
    start = data.draw(st.integers(0, len(model)))
    end = data.draw(st.integers(start, len(model)))
    np.testing.assert_array_equal(expand(slice_rows(extents, start, end)), model[start:end])
    np.testing.assert_array_equal(expand(cut(extents, end)), model[:end])
    assert_well_formed(cut(extents, end))


def test_rows_appended_in_page_order_stay_one_extent():
    extents = ()
    for row in range(100):
        extents = splice(extents, row, (7, row, 1))
    assert extents == ((7, 0, 100),)


def test_an_overwrite_in_the_middle_makes_three():
    assert splice(((1, 0, 10),), 4, (2, 0, 2)) == ((1, 0, 4), (2, 0, 2), (1, 6, 4))
