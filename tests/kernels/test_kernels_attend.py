"""Attention over stored rows, compared with the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from pionkv.kernels import FORMATS, Element, LayerSpec, pack
from pionkv.kernels.attention import (
    Attended,
    AttentionError,
    Engine,
    HeadMap,
    PackedLayer,
    Query,
    Selector,
    Suffix,
    contiguous_map,
    load_engine,
    mlx_rows,
    oracle,
)
from pionkv.kernels.attention.mlx_engine import MlxEngine
from pionkv.storage.runs import Run

HEAD_DIMS = (32, 64, 80, 96, 128, 160, 192, 256, 512)
LEAST_COSINE = 0.9999
LSE_ERROR = 1e-3

Floats = NDArray[np.float32]


@pytest.fixture(scope="module", params=[False, True])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine with and without mlx's own attention."""
    return MlxEngine(fused=request.param)


def test_this_machine_has_an_engine() -> None:
    found = load_engine()
    assert found is not None
    assert found.device in ("cpu", "metal", "cuda")


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def packed(spec: LayerSpec, rows: Floats, cuts: tuple[int, ...] = ()) -> tuple[LayerSpec, list[Run]]:
    """Rows `[H, N, D]` as a store has them, in as many parts as there are cuts and one more."""
    flat = np.ascontiguousarray(rows.swapaxes(0, 1).reshape(rows.shape[1], -1))
    out = bytearray(-(-len(flat) // spec.details.tokens) * spec.details.tokens * spec.row_bytes)
    pack(spec, flat, Element.F32, len(flat), out)
    ends = [0, *cuts, len(flat)]
    whole = Run(spec, memoryview(out), len(flat))
    return spec, [whole.cut(low, high) for low, high in zip(ends, ends[1:], strict=False)]


def decoded(side: tuple[LayerSpec, list[Run]], heads: int) -> NDArray[np.float64]:
    spec, runs = side
    out = np.empty((sum(run.count for run in runs), spec.dim), np.float32)
    filled = 0
    for run in runs:
        run.unpack(Element.F32, memoryview(out[filled:]).cast("B"))
        filled += run.count
    return out.reshape(len(out), heads, -1).swapaxes(0, 1).astype(np.float64)


class Case:
    """A layer as it is stored, and as the oracle sees it."""

    def __init__(self, heads: int, rows: int, dim: int, format: str = "fp16", v_format: str = "") -> None:
        head = 0 if FORMATS[format].group else dim
        specs = [LayerSpec(name, heads * dim, head_dim=head) for name in (format, v_format or format)]
        sides = [
            packed(spec, normal(seed, heads, rows, dim), (rows // 3, rows // 2))
            for seed, spec in enumerate(specs)
        ]
        self.layer = PackedLayer.of(*sides, dim)
        self.k, self.v = (decoded(side, heads) for side in sides)


def assert_close(found: Attended, out: NDArray[np.float64], lse: NDArray[np.float64] | None = None) -> None:
    assert found.out.dtype == np.float32
    assert found.out.shape == out.shape
    cosine = (found.out * out).sum(-1) / np.linalg.norm(found.out, axis=-1) / np.linalg.norm(out, axis=-1)
    assert cosine.min() >= LEAST_COSINE
    np.testing.assert_allclose(np.linalg.norm(found.out, axis=-1), np.linalg.norm(out, axis=-1), rtol=5e-3)
    if lse is not None:
        assert found.lse is not None
        assert np.abs(found.lse - lse).max() <= LSE_ERROR


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("streamed", [False, True])
def test_every_head_dim(engine: Engine, dim: int, count: int, streamed: bool) -> None:
    case = Case(2, 300, dim)
    rows = engine.stream(case.layer) if streamed else engine.load(case.layer)
    assert rows.nbytes == (0 if streamed else engine.resident_bytes(case.layer))
    q, head_map = normal(9, 4, count, dim), contiguous_map(4, 2)
    out, lse = oracle.attend(q, case.k, case.v, head_map)
    (found,) = engine.attend(rows, [Query(q, lse=True)], head_map)
    assert_close(found, out, lse)
    (found,) = engine.attend(rows, [Query(q)], head_map)
    assert_close(found, out)
    assert found.lse is None


@pytest.mark.parametrize("window", [0, 1, 7, 299, 300, 1000])
@pytest.mark.parametrize("head_map", [(0, 1, 2), (0, 0, 1, 1, 2, 2), (2, 0, 1, 0, 2, 1), (1, 1, 1, 0), (2,)])
def test_windows_and_head_maps(engine: Engine, window: int, head_map: HeadMap) -> None:
    case = Case(3, 300, 64)
    q = normal(9, len(head_map), 3, 64)
    out, lse = oracle.attend(q, case.k, case.v, head_map, window=window)
    (found,) = engine.attend(engine.load(case.layer), [Query(q, lse=True)], head_map, window)
    assert_close(found, out, lse)


@pytest.mark.parametrize(("count", "suffix"), [(1, 1), (1, 9), (9, 9), (4, 9), (9, 4), (3, 0)])
@pytest.mark.parametrize("window", [0, 20])
def test_a_suffix_is_causal_and_merged(engine: Engine, count: int, suffix: int, window: int) -> None:
    case, head_map = Case(2, 200, 64), contiguous_map(6, 2)
    q, k, v = normal(9, 6, count, 64), normal(10, 2, suffix, 64), normal(11, 2, suffix, 64)
    out, lse = oracle.attend(q, case.k, case.v, head_map, window=window, suffix=(k, v))
    (found,) = engine.attend(engine.load(case.layer), [Query(q, Suffix(k, v), lse=True)], head_map, window)
    assert_close(found, out, lse)


def test_queries_of_several_callers_share_a_pass(engine: Engine) -> None:
    case, head_map = Case(2, 200, 64), contiguous_map(4, 2)
    suffix = Suffix(normal(20, 2, 3, 64), normal(21, 2, 3, 64))
    queries = [
        Query(normal(9, 4, 1, 64)),
        Query(normal(10, 4, 3, 64), suffix),
        Query(normal(11, 4, 2, 64), lse=True),
    ]
    found = engine.attend(engine.load(case.layer), queries, head_map)
    for query, one in zip(queries, found, strict=True):
        own = (query.suffix.k, query.suffix.v) if query.suffix is not None else None
        assert_close(one, *oracle.attend(query.q, case.k, case.v, head_map, suffix=own)[: 1 + query.lse])
    alone = engine.attend(
        engine.load(case.layer), [Query(normal(9, 4, 1, 64)), Query(q=queries[2].q)], head_map
    )
    assert_close(alone[1], oracle.attend(queries[2].q, case.k, case.v, head_map)[0])


@pytest.mark.parametrize("format", [name for name in FORMATS if FORMATS[name].family != "rope"])
def test_every_format_against_its_own_rows(engine: Engine, format: str) -> None:
    case, head_map = Case(2, 150, 64, format), contiguous_map(4, 2)
    q = normal(9, 4, 2, 64)
    out, lse = oracle.attend(q, case.k, case.v, head_map)
    (found,) = engine.attend(engine.load(case.layer), [Query(q, lse=True)], head_map)
    assert_close(found, out, lse)


@pytest.mark.parametrize("formats", [("mlx4g32", "mlx4g32"), ("mlx8g64", "mlx8g32"), ("int8", "mlx4g64")])
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_packed_rows_stay_packed(formats: tuple[str, str], dim: int) -> None:
    engine = MlxEngine(quantized=True)
    case, head_map = Case(2, 300, dim, *formats), contiguous_map(4, 2)
    rows = engine.load(case.layer)
    assert rows.nbytes == engine.resident_bytes(case.layer)
    if "int8" not in formats and dim % 64 == 0:
        assert rows.nbytes < 300 * 2 * dim * 2 * 2
    for count in (1, 4):
        q = normal(9, 4, count, dim)
        out, lse = oracle.attend(q, case.k, case.v, head_map, window=200)
        (found,) = engine.attend(rows, [Query(q, lse=True)], head_map, 200)
        assert_close(found, out, lse)
    q = normal(12, 4, 1, dim)
    seen = oracle.seen_in_blocks(
        oracle.block_scores(q[:, 0], case.k, head_map, 16, Selector.QUEST), 300, 16, 5
    )
    found = engine.attend_blocks(rows, Query(q, lse=True), head_map, 16, 5, Selector.QUEST)
    assert_close(found, *oracle.attend(q, case.k, case.v, head_map, seen))


@pytest.mark.parametrize("make", ["load", "stream"])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("suffix", [0, 4])
def test_rows_by_index(engine: Engine, make: str, window: int, suffix: int) -> None:
    case, head_map = Case(2, 120, 64), contiguous_map(4, 2)
    q, k, v = normal(9, 4, 1, 64), normal(10, 2, suffix, 64), normal(11, 2, suffix, 64)
    rng = np.random.default_rng(3)
    indices = np.stack([rng.permutation(120)[:30] for _ in head_map]).astype(np.int32)
    indices[1, 1] = indices[1, 0]
    counts = np.array([30, 2, 17, 1], np.uint32)
    seen = oracle.seen_by_index(indices, counts, 120, window)
    out, lse = oracle.attend(q, case.k, case.v, head_map, seen, suffix=(k, v))
    rows = getattr(engine, make)(case.layer)
    query = Query(q, Suffix(k, v), lse=True)
    assert_close(engine.attend_at(rows, query, head_map, indices, counts, window), out, lse)


def test_a_head_that_names_no_row_gets_zeros(engine: Engine) -> None:
    case, head_map = Case(2, 20, 64), (0, 1)
    indices = np.zeros((2, 3), np.int32)
    query = Query(normal(9, 2, 1, 64))
    rows = engine.load(case.layer)
    found = engine.attend_at(rows, query, head_map, indices, np.array([0, 1], np.uint32))
    assert not found.out[0].any()
    np.testing.assert_allclose(found.out[1, 0], case.v[1, 0], rtol=1e-3)
    assert not engine.attend_at(rows, query, head_map, indices, np.zeros(2, np.uint32)).out.any()


@pytest.mark.parametrize("selector", list(Selector))
@pytest.mark.parametrize(("block", "most", "window"), [(16, 4, 0), (7, 3, 10), (64, 100, 0), (1, 9, 0)])
@pytest.mark.parametrize("make", ["load", "stream"])
def test_rows_by_rank_of_their_block(
    engine: Engine, selector: Selector, block: int, most: int, window: int, make: str
) -> None:
    case, head_map = Case(2, 250, 64), contiguous_map(6, 2)
    q = normal(9, 6, 1, 64)
    ranks = oracle.block_scores(q[:, 0], case.k, head_map, block, selector)
    seen = oracle.seen_in_blocks(ranks, 250, block, most, window)
    out, lse = oracle.attend(q, case.k, case.v, head_map, seen)
    rows = getattr(engine, make)(case.layer)
    for _ in range(2):
        found = engine.attend_blocks(rows, Query(q, lse=True), head_map, block, most, selector, window)
        assert_close(found, out, lse)


def test_pieces_of_rows_and_of_queries_make_no_difference(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, head_map = Case(2, 250, 64), contiguous_map(4, 2)
    q, k, v = normal(9, 4, 11, 64), normal(10, 2, 11, 64), normal(11, 2, 11, 64)
    expected = oracle.attend(q, case.k, case.v, head_map, window=240, suffix=(k, v))
    for name, value in (("SCORES", 2 * 2 * 3 * 9), ("FEWEST_ROWS", 9), ("PICKED", 256)):
        monkeypatch.setattr(f"pionkv.kernels.attention.mlx_engine.{name}", value)
    monkeypatch.setattr("pionkv.kernels.attention.mlx_rows.PIECE_ELEMENTS", 128 * 40)
    for rows in (engine.load(case.layer), engine.stream(case.layer)):
        (found,) = engine.attend(rows, [Query(q, Suffix(k, v), lse=True)], head_map, 240)
        assert_close(found, *expected)
        one = normal(12, 4, 1, 64)
        ranks = oracle.block_scores(one[:, 0], case.k, head_map, 16, Selector.QUEST)
        seen = oracle.seen_in_blocks(ranks, 250, 16, 6)
        sparse = engine.attend_blocks(rows, Query(one, lse=True), head_map, 16, 6, Selector.QUEST)
        assert_close(sparse, *oracle.attend(one, case.k, case.v, head_map, seen))


def test_large_scores_stay_finite(engine: Engine) -> None:
    case, head_map = Case(1, 50, 64), (0,)
    q = normal(9, 1, 2, 64) * 1000
    (found,) = engine.attend(engine.load(case.layer), [Query(q, lse=True)], head_map)
    out, lse = oracle.attend(q, case.k, case.v, head_map)
    assert_close(found, out)
    assert found.lse is not None
    np.testing.assert_allclose(found.lse, lse, rtol=1e-3)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda e, r: e.attend(r, [Query(normal(1, 2, 1, 32))], (0, 1)), "do not fit heads of 64"),
        (lambda e, r: e.attend(r, [Query(normal(1, 2, 1, 64))], (0, 2)), "does not fit 2 key/value heads"),
        (lambda e, r: e.attend(r, [Query(normal(1, 2, 1, 64))], ()), "does not fit 2 key/value heads"),
        (
            lambda e, r: e.attend(
                r, [Query(normal(1, 2, 1, 64), Suffix(normal(1, 1, 2, 64), normal(1, 1, 2, 64)))], (0, 1)
            ),
            "suffix of 1 heads",
        ),
        (
            lambda e, r: e.attend_at(
                r, Query(normal(1, 2, 1, 64)), (0, 1), np.full((2, 1), 20, np.int32), np.ones(2, np.uint32)
            ),
            "row 20 is not within 0..19",
        ),
        (
            lambda e, r: e.attend_at(
                r, Query(normal(1, 2, 1, 64)), (0, 1), np.full((2, 1), -1, np.int32), np.ones(2, np.uint32)
            ),
            "row -1 is not within 0..19",
        ),
        (
            lambda e, r: e.attend_at(
                r, Query(normal(1, 2, 1, 64)), (0, 1), np.zeros((2, 1), np.int32), np.full(2, 2, np.uint32)
            ),
            "a count of 2 rows, 1 are given",
        ),
        (
            lambda e, r: e.attend_blocks(r, Query(normal(1, 2, 2, 64)), (0, 1), 4, 2, Selector.QUEST),
            "are not one for each of 2 heads",
        ),
    ],
)
def test_what_does_not_fit_is_refused(engine: Engine, ask: Callable[..., object], says: str) -> None:
    rows = engine.load(Case(2, 20, 64).layer)
    with pytest.raises(AttentionError, match=says):
        ask(engine, rows)


def test_sides_must_have_the_same_heads() -> None:
    k, v = (packed(LayerSpec("fp16", dim), normal(1, 1, 3, dim)) for dim in (64, 96))
    with pytest.raises(AttentionError, match="rows of 64 and 96 elements"):
        PackedLayer.of(k, v, 32)
    with pytest.raises(AttentionError, match="do not have heads of 48"):
        PackedLayer.of(k, k, 48)
    with pytest.raises(AttentionError, match="no rows"):
        PackedLayer.of(k, (k[0], []), 64)
    with pytest.raises(AttentionError, match="no multiple"):
        contiguous_map(5, 2)


def test_the_longer_side_is_cut() -> None:
    sides = [packed(LayerSpec("fp16", 64), normal(seed, 1, rows, 64)) for seed, rows in ((1, 9), (2, 5))]
    assert PackedLayer.of(sides[0], sides[1], 64).rows == 5


def test_quantised_products_are_tried_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mlx_rows.quantized_products_work() or MlxEngine().device == "cuda"

    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("quantized_matmul: not implemented on this device")

    monkeypatch.setattr(mlx_rows.mx, "quantized_matmul", missing)
    assert not mlx_rows.quantized_products_work()
    monkeypatch.setattr(mlx_rows.mx, "quantized_matmul", lambda x, w, *_, **__: x @ x.swapaxes(-1, -2))
    assert not mlx_rows.quantized_products_work()
