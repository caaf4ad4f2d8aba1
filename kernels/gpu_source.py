"""GPU kernels as text: the parts in `gpu/`, put together for one dialect, format, direction and element type.

Metal Shading Language and CUDA C++ share everything but a prelude (`gpu/metal.h`, `gpu/cuda.h`) and the lines
that say which thread this is. `mx.fast.metal_kernel` and `mx.fast.cuda_kernel` write the signature.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from .codebooks import RVQ, SIGNS, TURBO, TURBO_RATIO_UNIT
from .errors import FormatError
from .formats import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .formats import LayerSpec

_PARTS: Final = Path(__file__).parent / "gpu"

# SIMD groups of 32 lanes in a thread group; fewer where each has a row to itself and keeps more in registers.
_TEAMS: Final = {"int8": 4, "fp8": 4, "rope": 4, "affine": 4}
_MOST_TEAMS: Final = 8

MAX_OCTETS: Final = 2**29 - 1
"""Octets of 8 elements in one launch; the kernels count elements in 32 bits."""

_LONGEST_TURNED: Final = 256

NONE: Final = 0xFFFFFFFF
"""In a `refused` slot: every value of it could be stored."""


class Dialect(enum.Enum):
    """A language the kernels are compiled in."""

    METAL = "metal"
    CUDA = "cuda"


class Direction(enum.Enum):
    """What a kernel does."""

    PACK = "pack"
    UNPACK = "unpack"


# Stems whose lanes take the same octet of several rows, see rows.h.
_IN_COLUMNS: Final = {
    Direction.PACK: ("plain", "affine"),
    Direction.UNPACK: ("plain", "affine", "int8", "fp8"),
}

# Stem of the parts of each family of formats.
_STEMS: Final = {
    "plain": "plain",
    "int8": "int8",
    "fp8": "fp8",
    "rope": "fp8",
    "turbo": "turbo",
    "affine": "affine",
    "qserve": "qserve",
    "rvq": "rvq",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """The text of one kernel, as mlx's kernel builders take it.

    Attributes:
        name: Unique for this text: mlx keeps compiled CUDA kernels by name alone, on disk too.
        inputs: Parameter names of the inputs.
        outputs: Parameter names of the outputs.
        header: Functions.
        body: Inside of the kernel function.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch.

    Attributes:
        kernel: What to run.
        threads: Threads of the grid, whole thread groups.
        group: Threads of a thread group.
        slots: Length of the `refused` output of a pack kernel: each holds the flat index
            `row * dim + element` of the first refused value among those it stands for, or `NONE`.
    """

    kernel: Kernel
    threads: int
    group: int
    slots: int


def supports(spec: LayerSpec) -> bool:
    """Whether there are GPU kernels for the format; `rvq` turns heads of up to 256 elements."""
    details = spec.details
    return details.family in _STEMS and (details.family != "rvq" or spec.head_dim <= _LONGEST_TURNED)


def plan(
    dialect: Dialect,
    spec: LayerSpec,
    direction: Direction,
    element: Element,
    rows: int,
    tuning: Mapping[str, int] | None = None,
) -> Plan:
    """What to launch for `rows` rows.

    Args:
        dialect: Language of the text.
        spec: Format and dim of the layer.
        direction: Pack or unpack.
        element: Type of the elements read or written.
        rows: Number of rows, at least 1.
        tuning: Constants that change speed only, instead of the measured choice (`STEPS`, `KEEP`, `TEAMS`).

    Raises:
        FormatError: There is no GPU kernel for the format, or the rows are too many for one launch.
    """
    if not supports(spec):
        raise FormatError(f"{spec.format}: no GPU kernel")
    stem = _STEMS[spec.details.family]
    octets = -(-spec.dim // 8)
    if rows * octets > MAX_OCTETS:
        raise FormatError(f"{spec.format}: {rows} rows of {spec.dim} are too many for one GPU launch")
    constants = _constants(spec, direction, element, tuning or {})
    group = constants["TEAMS"] * 32
    units = rows * (spec.dim // spec.head_dim if spec.head_dim else 1)
    if stem in _IN_COLUMNS[direction]:
        lanes = -(-rows // constants["STEPS"]) * octets
    elif direction is Direction.PACK:
        lanes = units * (constants["LANES"] if spec.head_dim else 32)
    else:
        lanes = units * (-(-spec.head_dim // 8) if spec.head_dim else octets)
    threads = -(-lanes // group) * group
    return Plan(
        kernel=_kernel(dialect, spec.format, stem, direction, element, tuple(sorted(constants.items()))),
        threads=threads,
        group=group,
        slots=threads // 32 if stem in _IN_COLUMNS[direction] else units,
    )


def _constants(
    spec: LayerSpec, direction: Direction, element: Element, tuning: Mapping[str, int]
) -> dict[str, int]:
    """Every constant a kernel may use, by the name it has in the text."""
    details = spec.details
    octets, octets_of_group = -(-spec.dim // 8), -(-spec.group // 8)
    lanes = min(32, 1 << (octets_of_group - 1).bit_length())
    return {
        "ELEMENT": int(element),
        "LIMIT": int(np.float32(details.limit).view(np.uint32)),
        "BITS": details.bits,
        "GROUP": spec.group,
        "BLOCK": spec.group * details.bits // 8 + details.group_params,
        "LANES": lanes,
        "VARIANT": details.variant,
        "MANTISSA": details.variant or 3,
        "ROPE": spec.rope,
        "TEAMS": _TEAMS.get(details.family, _MOST_TEAMS),
        "STEPS": _steps(details.family, direction, lanes, wide=Element.F32 in (element, details.verbatim)),
        "KEEP": min(4, -(-octets // 32)),
        **tuning,
    }


def _steps(family: str, direction: Direction, lanes: int, *, wide: bool) -> int:
    """Octets that a lane takes at a time."""
    if family == "plain":
        return 2 if wide else 4
    # The lanes of a group share the search for its parameters, one step each.
    return min(8, lanes) if family == "affine" and direction is Direction.PACK else 4


@functools.cache
def _kernel(
    dialect: Dialect,
    format_name: str,
    stem: str,
    direction: Direction,
    element: Element,
    constants: tuple[tuple[str, int], ...],
) -> Kernel:
    packing = direction is Direction.PACK
    tables = "".join(f"#undef {name}\n#define {name} {value}\n" for name, value in _tables(stem, constants))
    header = tables + _join(f"{dialect.value}.h", "numbers.h", "rows.h", "lanes.h", "staging.h", f"{stem}.h")
    parts = _join(f"{dialect.value}.inc", f"{direction.value}.inc", f"{stem}_{direction.value}.inc")
    used = [f"constexpr uint {name} = {value}u;\n" for name, value in constants if name in parts]
    body = "".join(used) + parts
    digest = hashlib.blake2b((header + body).encode(), digest_size=6).hexdigest()
    return Kernel(
        name=f"pionkv_{format_name}_{direction.value}_{element.name.lower()}_{digest}",
        inputs=("src",) if packing else ("packed", "shape"),
        outputs=("out", "refused") if packing else ("out",),
        header=header,
        body=body,
    )


def _tables(stem: str, constants: tuple[tuple[str, int], ...]) -> list[tuple[str, str]]:
    """Codebooks, as macros."""
    bits = dict(constants)["BITS"]
    if stem == "turbo":
        levels = ", ".join(map(str, TURBO[bits]))
        return [("TURBO_LEVELS", levels), ("TURBO_RATIO_UNIT", f"{TURBO_RATIO_UNIT}.0f")]
    if stem == "rvq":
        first, second = (", ".join(map(str, stage)) for stage in RVQ[bits // 2])
        return [
            ("RVQ_FIRST", first),
            ("RVQ_SECOND", second),
            ("RVQ_SIGNS", ", ".join(f"{word}u" for word in SIGNS)),
        ]
    return []


def _join(*names: str) -> str:
    return "\n".join((_PARTS / name).read_text(encoding="utf-8") for name in names)
