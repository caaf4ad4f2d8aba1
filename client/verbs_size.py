"""The verb `size`: what the K/V rows of a model take, by formula, without a server."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pionkv.kernels import FormatError, LayerSpec, UnknownFormat
from rich.console import Console

from .verbs import AsJson, Shown

FP16_BYTES = 2
SIDES = ("k", "v")
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
            for side, name in zip(SIDES, (format, values or format), strict=True)
        }
    except (FormatError, UnknownFormat) as error:
        raise typer.BadParameter(str(error)) from error
    rows = [
        *(_term(f"one row of {side}", (specs[side],), 1) for side in SIDES),
        _term("one token, all layers", specs.values(), layers),
        *(_term(f"all {side}", (specs[side],), layers * tokens) for side in SIDES),
        _term("total", specs.values(), layers * tokens),
    ]
    total, plain = rows[-1]["bytes"], rows[-1]["elements"] * FP16_BYTES
    rows.append({"term": "total in fp16", "elements": rows[-1]["elements"], "bytes": plain})
    rows.append({"term": "fp16 / stored", "bytes": round(plain / total, 3)})
    Shown(as_json, Console()).table(rows, COLUMNS)


def _spec(name: str, kv_heads: int, head_dim: int, rope: int) -> LayerSpec:
    """A row of one layer and side. Raises `FormatError`, `UnknownFormat`."""
    by_head = LayerSpec(name, 1).details.group == 0
    spec = LayerSpec(name, kv_heads * head_dim, rope, head_dim if by_head else 0)
    spec.validate()
    return spec


def _term(name: str, specs: Any, rows: int) -> dict[str, Any]:
    parts = [spec.row_parts for spec in specs]
    found = {field: rows * sum(getattr(part, field) for part in parts) for field in parts[0]._fields}
    elements = rows * sum(spec.dim for spec in specs)
    return {"term": name, "elements": elements, **found, "bytes": sum(found.values())}
