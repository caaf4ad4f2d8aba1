"""The verb `size`: what the K/V rows of a model take, by formula, without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from pionkv.kernels import FormatError, LayerSpec, UnknownFormat, keys_format
from pionkv.kernels.formats import RowParts

from .command_line import AsJson, Shown

FP16_BYTES = 2
SIDES = ("k", "v")
Part = tuple[LayerSpec, int]
"""Rows of one format."""
COLUMNS = ("term", "elements", "codes", "scales", "full_precision", "bytes")


def size(
    layers: Annotated[int, typer.Option(help="Layers with a K/V cache.", min=1)],
    kv_heads: Annotated[int, typer.Option(help="K/V heads of a layer.", min=1)],
    head_dim: Annotated[int, typer.Option(help="Elements of a head.", min=1)],
    tokens: Annotated[int, typer.Option(help="Tokens.", min=1)],
    format: Annotated[str, typer.Option(help="Format of the rows; with --values that of the keys.")] = "fp16",
    values: Annotated[str | None, typer.Option(help="Format of the values, where it is another.")] = None,
    rope: Annotated[
        int, typer.Option(help="Leading elements kept in 16 bits, where the format has such.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Print what K/V rows take: 2 sides x layers x tokens x the bytes of a row, term by term."""
    try:
        specs = {
            side: _spec(name, kv_heads, head_dim, rope)
            for side, name in zip(SIDES, (keys_format(format), values or format), strict=True)
        }
    except (FormatError, UnknownFormat) as error:
        raise typer.BadParameter(str(error)) from error
    rows = [
        *(_term(f"one row of {side}", _coded(specs[side], 1)) for side in SIDES),
        _term("one token, all layers", [part for spec in specs.values() for part in _coded(spec, layers)]),
        *(_term(f"all {side}", _stored(specs[side], layers, tokens)) for side in SIDES),
        _term("total", [part for spec in specs.values() for part in _stored(spec, layers, tokens)]),
    ]
    total, plain = rows[-1]["bytes"], rows[-1]["elements"] * FP16_BYTES
    rows.append({"term": "total in fp16", "elements": rows[-1]["elements"], "bytes": plain})
    rows.append({"term": "fp16 / stored", "bytes": round(plain / total, 3)})
    Shown(as_json).table(rows, COLUMNS)


def _spec(name: str, kv_heads: int, head_dim: int, rope: int) -> LayerSpec:
    """A row of one layer and side. Raises `FormatError`, `UnknownFormat`."""
    by_head = LayerSpec(name, 1).details.group == 0
    spec = LayerSpec(name, kv_heads * head_dim, rope, head_dim if by_head else 0)
    spec.validate()
    return spec


def _coded(spec: LayerSpec, rows: int) -> list[Part]:
    return [(spec, rows)]


def _stored(spec: LayerSpec, layers: int, tokens: int) -> list[Part]:
    """Rows of all layers: coded ones, and those of a format that codes groups that wait for theirs."""
    coded = spec.coded_rows(tokens)
    return [(spec, layers * coded), (spec.wire, layers * (tokens - coded))]


def _term(name: str, parts: Iterable[Part]) -> dict[str, Any]:
    found, elements = dict.fromkeys(RowParts._fields, 0), 0
    for spec, rows in parts:
        elements += rows * spec.dim
        for field in found:
            found[field] += rows * getattr(spec.row_parts, field)
    return {"term": name, "elements": elements, **found, "bytes": sum(found.values())}
