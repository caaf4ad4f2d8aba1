"""Rows of models that are not mlx's, through a real server and back; no framework is needed for that."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pionkv.client
import pytest
from pionkv.client import TransformersCache, fetching, mapping
from pionkv.client import buffers as buffering
from pionkv.client.buffers import Buffers
from pionkv.client.deadline import Deadline
from pionkv.client.endpoint import Endpoint
from pionkv.client.errors import BadReply, NotStored
from pionkv.client.head_rows import BITS, HeadRows, fetch_heads
from pionkv.client.lane import Lane
from pionkv.client.plan import make_plan
from pionkv.client.publish import publish_tokens
from pionkv.client.reuse import find, name_of
from pionkv.client.route import Route
from pionkv.client.shape import ROWS, LayerLayout, ModelLayout, Shape, SideLayout
from pionkv.kernels.formats import Element

TOKENS = 21
IDS = list(range(1000, 1000 + TOKENS))


def shape(element: Element, vquant: str = "auto") -> Shape:
    """Two layers; keys are wider than values, as in models with latent attention."""
    layer = LayerLayout(SideLayout(2, 48, element), SideLayout(2, 32, element))
    layout = ModelLayout((ROWS, ROWS), (layer, layer))
    return Shape(layout, make_plan(layout.rows, vquant))


def arrays(of: Shape, tokens: int = TOKENS) -> tuple[list[Any], list[Any]]:
    """Keys and values: any bits that are finite."""
    random = np.random.default_rng(3)

    def made(side: SideLayout) -> Any:
        values = random.standard_normal((side.heads, tokens, side.head_dim), np.float32)
        if side.element is Element.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(BITS[side.element])

    layers = of.layout.rows
    return [made(layer.keys) for layer in layers], [made(layer.values) for layer in layers]


@pytest.fixture
def lane(store_port: int, deadline: Deadline) -> Any:
    lane = Lane.open(Endpoint(port=store_port), deadline)
    yield lane
    lane.close()


def published(lane: Lane, deadline: Deadline, model: str, rows: HeadRows, ids: list[int]) -> str:
    name = name_of(model, ids)
    parent = find(lane, deadline, model, ids, whole=False)
    publish_tokens(lane, deadline, name, rows.shape, rows, ids, 7, model, parent)
    return name


@pytest.mark.parametrize("element", [Element.F32, Element.F16, Element.BF16])
def test_the_same_bits_come_back(
    element: Element, lane: Lane, deadline: Deadline, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = shape(element)
    keys, values = arrays(of)
    published(lane, deadline, namespace, HeadRows(of, (keys, values), TOKENS), IDS)
    found = find(lane, deadline, namespace, [*IDS, 5], whole=False)
    assert found is not None and found.tokens == TOKENS
    monkeypatch.setattr(fetching, "BYTES_A_CONNECTION", 1)
    for connections in (1, 2):
        route = Route(connections=connections)
        _, came = fetch_heads(lane, deadline, found.namespace, of, TOKENS, route, at=found.generation)
        assert route.used == connections
        assert [each.tobytes() for each in came[::2]] == [each.tobytes() for each in keys]
        assert [each.tobytes() for each in came[1::2]] == [each.tobytes() for each in values]
    for route in (Route(), Route(maps=True)):
        came, part = fetch_heads(lane, deadline, found.namespace, of, 5, route)
        assert came == 5 and part[1].tobytes() == np.ascontiguousarray(values[0][:, :5]).tobytes()
    monkeypatch.setattr(mapping, "BYTES_A_THREAD", 1)
    _, mapped = fetch_heads(lane, deadline, found.namespace, of, TOKENS, route, at=found.generation)
    assert [each.tobytes() for each in mapped] == [
        each.tobytes() for pair in zip(keys, values, strict=True) for each in pair
    ]
    assert (route.not_mapped, route.mapped_bytes) == (None, of.plan.bytes(5) + of.plan.bytes(TOKENS))
    with pytest.raises(NotStored, match="replaced"):
        fetch_heads(lane, deadline, found.namespace, of, TOKENS, route, at=found.generation + 1)


@pytest.mark.parametrize("element", [Element.F32, Element.F16, Element.BF16])
@pytest.mark.parametrize("vquant", ["fp32", "fp16", "int8", "kivi4"])
def test_other_formats_restore_something_close(
    element: Element, vquant: str, lane: Lane, deadline: Deadline, namespace: str
) -> None:
    of = shape(element, vquant)
    keys, values = arrays(of)
    name = published(lane, deadline, namespace, HeadRows(of, (keys, values), TOKENS), IDS)

    def numbers(bits: Any) -> Any:
        return (bits.astype(np.uint32) << 16).view(np.float32) if element is Element.BF16 else bits

    fetched = fetch_heads(lane, deadline, name, of, TOKENS, Route())[1]
    mapped = fetch_heads(lane, deadline, name, of, TOKENS, route := Route(maps=True))[1]
    assert [each.tobytes() for each in mapped] == [each.tobytes() for each in fetched]
    assert bool(route.mapped_bytes) == (vquant != "kivi4"), "groups of rows have no place of their own"
    for came, sent in zip(fetched[::2], keys, strict=True):
        assert came.dtype == BITS[element] and came.shape == sent.shape
        np.testing.assert_allclose(numbers(came), numbers(sent), atol=0.3 if vquant == "kivi4" else 0.05)


class Stops:
    """As `Watch`: runs of 8 tokens, and so many of them."""

    run = 8

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def stops(self, came: int, left: float) -> bool:
        return came >= self._tokens


@pytest.mark.parametrize("vquant", ["auto", "int8", "fp32"])
@pytest.mark.parametrize("tokens", [8, 16, TOKENS])
def test_runs_end_where_the_rest_is_prefilled(
    vquant: str, tokens: int, lane: Lane, deadline: Deadline, namespace: str
) -> None:
    of = shape(Element.F16, vquant)
    name = published(lane, deadline, namespace, HeadRows(of, arrays(of), TOKENS), IDS)
    whole = fetch_heads(lane, deadline, name, of, TOKENS, Route())[1]
    watch: Any = Stops(tokens)
    came, part = fetch_heads(lane, deadline, name, of, TOKENS, Route(), watch)
    assert came == tokens and all(each.flags.c_contiguous for each in part)
    for one, other in zip(part, whole, strict=True):
        np.testing.assert_array_equal(one, other[:, :came])


def test_memory_of_arrays_is_used_again_once_they_are_gone(
    lane: Lane, deadline: Deadline, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffering, "WORTH_BYTES", 1)
    of, memory = shape(Element.F32), Buffers()
    keys, values = arrays(of)
    name = published(lane, deadline, namespace, HeadRows(of, (keys, values), TOKENS), IDS)

    def fetched() -> list[Any]:
        return fetch_heads(lane, deadline, name, of, TOKENS, Route(), buffers=memory)[1]

    one, other = fetched(), fetched()
    assert not any(np.shares_memory(mine, theirs) for mine in one for theirs in other)
    places = {each.ctypes.data for each in one}
    view = one[0][1:]
    del one
    assert memory.kept > 0
    again = fetched()
    assert len(places & {each.ctypes.data for each in again}) == len(places) - 1
    for each in (other, again):
        assert [rows.tobytes() for rows in each[::2]] == [rows.tobytes() for rows in keys]
        assert [rows.tobytes() for rows in each[1::2]] == [rows.tobytes() for rows in values]
    np.testing.assert_array_equal(view, keys[0][1:])


def test_a_snapshot_is_a_copy_of_what_is_new(lane: Lane, deadline: Deadline, namespace: str) -> None:
    of = shape(Element.F16)
    keys, values = arrays(of)
    rows = HeadRows(of, (keys, values), TOKENS)
    published(lane, deadline, namespace, HeadRows(of, (keys, values), 8), IDS[:8])
    copy = rows.snapshot(8)
    assert copy.nbytes == (TOKENS - 8) * 2 * (96 + 64) * 2
    wanted = [each.copy() for each in keys]
    for each in (*keys, *values):
        each[:] = 0
    name = published(lane, deadline, namespace, copy, IDS)
    _, came = fetch_heads(lane, deadline, name, of, TOKENS, Route())
    assert [each.tobytes() for each in came[::2]] == [each.tobytes() for each in wanted]


def test_rows_of_another_size_are_refused(lane: Lane, deadline: Deadline, namespace: str) -> None:
    of = shape(Element.F16)
    name = published(lane, deadline, namespace, HeadRows(of, arrays(of), TOKENS), IDS)
    with pytest.raises(BadReply, match="bytes for 21 rows of"):
        fetch_heads(lane, deadline, name, shape(Element.F32), TOKENS, Route())


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *arguments, **named)

    monkeypatch.delitem(sys.modules, "pionkv.client.torch_model", raising=False)
    monkeypatch.delattr(pionkv.client, "torch_model", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'torch'; install pionkv\[transformers\]"):
        TransformersCache(object())
