"""Schemas as they are written in V.CREATE and KV.PREFIX.REGISTER."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pionkv.kernels import LAYER_FORMATS, FormatError, LayerSpec, keys_format
from pionkv.kernels.formats import HEAD
from pionkv.protocol.errors import CommandError
from pionkv.protocol.limits import Limits
from pionkv.storage import Schema

from .arguments import Argument, Cursor, integer, integer_within, shown

DEFAULT_FORMAT = "int8"
ROPE_FORMAT = "bf16_rope_fp8_body"
UNIFORM_FORMATS = tuple(
    name for name, known in LAYER_FORMATS.items() if known.family != "rope" and known.group != HEAD
)
"""Formats that need no more than a dim: the others say per layer where a head or the rotated part ends."""


def for_keys(schema: Schema) -> Schema:
    """The schema of a K side for which this one was given: formats of groups have another one for keys."""
    count = schema.num_layers
    specs = [schema.layer(layer) for layer in range(count or 1)]
    keys = [replace(spec, format=keys_format(spec.format)) for spec in specs]
    return schema if keys == specs else Schema(keys, uniform=count is None)


def uniform(command: str, clause: str, format: str, dim: int) -> Schema:
    """One spec for every layer.

    Args:
        command: For error texts.
        clause: What the command calls the format.
        format: As it was given.
        dim: Elements of a row.

    Raises:
        CommandError: The format is unknown, needs more than a dim, or does not take this one.
    """
    name = format.lower()
    if name in LAYER_FORMATS and name not in UNIFORM_FORMATS:
        needs = "rope" if name == ROPE_FORMAT else "head"
        raise CommandError("ERR", f"{command}: {name} requires SCHEMA form with per-layer {needs}=N")
    if name not in LAYER_FORMATS:
        wanted = "|".join(UNIFORM_FORMATS)
        raise CommandError("ERR", f"{command}: unknown {clause} '{format}' (want {wanted})")
    try:
        return Schema.uniform(LayerSpec(name, dim))
    except FormatError as error:
        raise CommandError("ERR", f"{command}: {error}") from error


def layer_count(command: str, cursor: Cursor, limits: Limits) -> int:
    """The N of `SCHEMA N`, with N specs behind it."""
    if not cursor:
        raise CommandError("ERR", f"{command} SCHEMA requires N (layer count)")
    count = integer(cursor.take())
    if count <= 0:
        raise CommandError("ERR", f"{command} SCHEMA: N must be positive")
    if count > limits.layers:
        raise CommandError("ERR", f"{command} SCHEMA: N exceeds {limits.layers}")
    if cursor.left < count:
        raise CommandError("ERR", f"{command} SCHEMA: not enough layer specs (need {count})")
    return count


def per_layer(command: str, cursor: Cursor, limits: Limits, default_dim: int = 0) -> Schema:
    """`N spec_0 ... spec_{N-1}`.

    A spec is comma-separated `fmt=`, `dim=`, `rope=` and `head=` (elements of a head), in any order.

    Raises:
        CommandError: The count or a spec is not usable; the text names the layer.
    """
    count = layer_count(command, cursor, limits)
    return Schema.per_layer(
        [
            _spec(f"{command} SCHEMA: layer {index}", cursor.take(), limits, default_dim)
            for index in range(count)
        ]
    )


def _spec(where: str, argument: Argument, limits: Limits, default_dim: int) -> LayerSpec:
    fields = _fields(where, argument)
    format = fields.get("fmt", DEFAULT_FORMAT).lower()
    if format not in LAYER_FORMATS:
        raise CommandError("ERR", f"{where} unknown fmt")
    dim = _number(where, "dim", fields, limits.dim, default_dim)
    rope, head = (_number(where, key, fields, limits.dim, 0) for key in ("rope", "head"))
    if dim == 0:
        raise CommandError("ERR", f"{where} missing dim and no default supplied")
    if format == ROPE_FORMAT and not 0 < rope < dim:
        raise CommandError("ERR", f"{where} {ROPE_FORMAT} needs rope=N (0 < N < dim)")
    by_head = LAYER_FORMATS[format].group == HEAD
    if by_head and head == 0:
        raise CommandError("ERR", f"{where} {format} needs head=N (elements of a head)")
    spec = LayerSpec(format, dim, rope if format == ROPE_FORMAT else 0, head if by_head else 0)
    try:
        spec.validate()
    except FormatError as error:
        raise CommandError("ERR", f"{where} {error}") from error
    return spec


def _fields(where: str, argument: Argument) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for segment in shown(argument, 256).split(","):
        key, _, value = segment.partition("=")
        key = key.lower()
        if key == "s":
            raise CommandError(
                "ERR",
                f"{where.partition(': ')[0]}: S-tensor reserved (route SSM/SWA-tail state through STATE.*)",
            )
        if key not in ("fmt", "dim", "rope", "head") or not value:
            raise CommandError("ERR", f"{where} unknown key")
        found[key] = value
    return found


def _number(where: str, key: str, fields: Mapping[str, str], high: int, default: int) -> int:
    if key not in fields:
        return default
    message = f"{where} {key} must be 1-{high}"
    try:
        return integer_within(fields[key].encode(), 1, high, message)
    except CommandError:
        raise CommandError("ERR", message) from None
