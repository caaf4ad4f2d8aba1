"""Which formats a prefix gets, and what is read out of a model to choose them."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, KVCache
from pionkv.client import requests
from pionkv.client.errors import BadReply, UnsupportedModel
from pionkv.client.layout import read_layout
from pionkv.client.plan import attach, make_plan
from pionkv.client.requests import SessionInfo
from pionkv.client.shape import LayerLayout, SideLayout
from pionkv.kernels import Element, FormatError, LayerSpec, UnknownFormat

SIDE = {element: SideLayout(2, 32, element) for element in Element}


def layout(layers: int, element: Element = Element.F32) -> tuple[LayerLayout, ...]:
    return (LayerLayout(SIDE[element], SIDE[element]),) * layers


def formats(specs: tuple[LayerSpec, ...]) -> list[str]:
    return [spec.format for spec in specs]


@pytest.mark.parametrize(
    ("element", "name"), [(Element.F32, "fp32"), (Element.F16, "fp16"), (Element.BF16, "bf16")]
)
def test_auto_is_the_models_own_type(element: Element, name: str) -> None:
    plan = make_plan(layout(3, element))
    assert plan.uniform == LayerSpec(name, 64)
    assert plan.bytes(10) == 10 * 6 * 64 * element.itemsize


def test_a_named_format_is_used_throughout_whatever_its_case() -> None:
    assert make_plan(layout(2), "MLX4G32").uniform == LayerSpec("mlx4g32", 64)


@pytest.mark.parametrize(
    ("layers", "protect", "values"),
    [
        (5, 1, ["fp16", "mlx4g32", "mlx4g32", "mlx4g32", "fp16"]),
        (5, 2, ["fp16", "fp16", "mlx4g32", "fp16", "fp16"]),
        (4, 2, ["fp16"] * 4),
        (5, 3, ["fp16"] * 5),
        (2, 9, ["fp16"] * 2),
    ],
)
def test_protected_layers_and_all_keys_keep_16_bits(layers: int, protect: int, values: list[str]) -> None:
    """R31."""
    plan = make_plan(layout(layers), "mlx4g32", protect)
    assert formats(plan.keys) == ["fp16"] * layers
    assert formats(plan.values) == values


def test_a_bf16_model_is_protected_by_its_own_type() -> None:
    plan = make_plan(layout(3, Element.BF16), "int8", 1)
    assert formats(plan.keys) == ["bf16"] * 3
    assert formats(plan.values) == ["bf16", "int8", "bf16"]


def test_what_cannot_be_stored_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownFormat, match="turbo9"):
        make_plan(layout(1), "turbo9")
    odd = SideLayout(1, 33, Element.F32)
    for protect in (0, 1):
        with pytest.raises(FormatError, match="33"):
            make_plan((LayerLayout(odd, odd),), "mlx4g32", protect)
    with pytest.raises(ValueError, match="-1"):
        make_plan(layout(1), "fp16", -1)


def test_a_format_by_head_is_told_where_a_head_ends() -> None:
    plan = make_plan(layout(2), "qserve4")
    assert plan.keys == (LayerSpec("qserve4", 64, head_dim=32),) * 2
    assert plan.uniform is None


def test_a_format_that_rotates_needs_more_than_a_name() -> None:
    with pytest.raises(FormatError, match="rope"):
        make_plan(layout(2), "bf16_rope_fp8_body")


def test_sides_of_different_shapes_have_no_uniform_schema() -> None:
    wide = SideLayout(2, 64, Element.F16)
    plan = make_plan((LayerLayout(wide, SIDE[Element.F16]),))
    assert plan.uniform is None
    assert (plan.keys[0].dim, plan.values[0].dim) == (128, 64)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_layout_is_read_from_the_model_itself(tiny: Callable[..., Any], dtype: str) -> None:
    element = {"float32": Element.F32, "float16": Element.F16, "bfloat16": Element.BF16}[dtype]
    side = SideLayout(heads=1, head_dim=16, element=element)
    assert read_layout(tiny(dtype, layers=3, kv_heads=1, head_dim=16)).rows == (LayerLayout(side, side),) * 3


def test_reading_a_layout_computes_nothing(tiny: Callable[..., Any]) -> None:
    model = tiny()
    # A weight that fails when it is computed shows that nothing is.
    model.model.embed_tokens.weight = mx.full(model.model.embed_tokens.weight.shape, math.nan)
    read_layout(model)


def test_what_is_no_row_is_a_state(sliding: Any) -> None:
    layout = read_layout(sliding)
    assert layout.kinds == ("RotatingKVCache", "KVCache")
    assert (layout.row_caches, layout.state_caches, len(layout.rows)) == ((1,), (0,), 1)


class Odd(KVCache):
    """A cache that nobody knows."""


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_unknown_class_is_refused_by_name(tiny: Callable[..., Any], wrapped: bool) -> None:
    model = tiny(layers=2)
    model.make_cache = lambda: [KVCache(), CacheList(KVCache(), Odd()) if wrapped else Odd()]
    with pytest.raises(UnsupportedModel, match="layer 1 keeps a Odd, stored can be KVCache, CacheList, Rot"):
        read_layout(model)


def test_how_rows_stay_packed() -> None:
    assert attach(None, 64) is None
    attached = attach(8, 32)
    assert attached is not None and attached.format == "mlx8g32"
    for bits, group in ((3, 64), (4, 128)):
        with pytest.raises(ValueError, match=f"kv_bits {bits} in groups of {group}"):
            attach(bits, group)


def test_commands_are_written_as_the_wire_contract_says() -> None:
    fp16, mixed = LayerSpec("fp16", 64), (LayerSpec("fp16", 64), LayerSpec("mlx4g32", 32))
    assert requests.create("s", fp16) == ("V.CREATE", b"s", 64, "VQUANT", "fp16")
    texts = ("fmt=fp16,dim=64", "fmt=mlx4g32,dim=32")
    assert requests.create("s", mixed) == ("V.CREATE", b"s", "SCHEMA", 2, *texts)
    assert requests.register("n", fp16, None, 5) == ("KV.PREFIX.REGISTER", b"n", 64, "fp16", "PREFILL_MS", 5)
    assert requests.register(b"n", mixed[:1], mixed[1:]) == (
        "KV.PREFIX.REGISTER", b"n", "SCHEMA", "K", 1, texts[0], "V", 1, texts[1],
    )  # fmt: skip
    assert requests.create("s", [LayerSpec("qserve4", 64, head_dim=32)])[-1] == "fmt=qserve4,dim=64,head=32"
    blocks = ("BLOCKS", 1, 2, bytes(16))
    assert requests.register("n", fp16, None, 5, (1, bytes(16)))[4:] == (*blocks, "PREFILL_MS", 5)
    rows = memoryview(b"")
    assert requests.store("s", 1, 2, 3, rows, "F32") == ("V.STOREBATCH", b"s", 1, 2, 3, rows)
    assert requests.store("s", 1, 2, 3, rows, "BF16") == ("V.STOREBATCH", b"s", 1, 2, 3, rows, "FMT", "BF16")
    assert requests.fetch_all("n", 0, 9, "RAW") == ("V.FETCHALL", b"n_pk", b"n_pv", 0, 9, "FMT", "RAW")


def test_session_info_is_read_from_both_kinds_of_text() -> None:
    uniform = b"value_dim:8\r\nv_format:fp16\r\nnum_layers:2\r\nschema:uniform\r\nlayer_1_tokens:5\r\n"
    assert SessionInfo.parse(uniform) == SessionInfo((LayerSpec("fp16", 8),) * 2, (0, 5))
    mixed = uniform + b"layer_0_dim:4\r\nlayer_0_fmt:int8\r\n"
    assert SessionInfo.parse(mixed).specs == (LayerSpec("int8", 4), LayerSpec("fp16", 8))
    by_head = uniform + b"layer_0_fmt:qserve4\r\nlayer_0_dim:64\r\nlayer_0_head:32\r\nlayer_0_rope:0\r\n"
    assert SessionInfo.parse(by_head).specs[0] == LayerSpec("qserve4", 64, head_dim=32)


@pytest.mark.parametrize(
    "reply", [b"", b"num_layers:x\r\n", b"num_layers:1\r\nvalue_dim:8\r\n", None, 5, "OK"]
)
def test_other_texts_are_bad_replies(reply: object) -> None:
    with pytest.raises(BadReply):
        SessionInfo.parse(reply)
