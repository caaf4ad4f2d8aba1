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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .formats import Element, LayerSpec

_PARTS: Final = Path(__file__).parent / "gpu"

TEAMS: Final = 8
"""SIMD groups of 32 lanes in a thread group."""

MAX_OCTETS: Final = 2**31 - 1
"""Octets of 8 elements in one launch; the kernels count them in 32 bits."""

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


# Stem of the parts of each family of formats; whether its pack kernel reports refused values by row or head
# (otherwise by runs of 32 octets).
_FAMILIES: Final = {
    "plain": ("plain", False),
    "int8": ("int8", True),
    "fp8": ("fp8", True),
    "rope": ("fp8", True),
    "turbo": ("turbo", True),
    "affine": ("affine", False),
    "qserve": ("qserve", True),
    "rvq": ("rvq", True),
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
        slots: Length of the `refused` output of a pack kernel.
        octets: Octets of a row.
        slots_per_row: 0 where a slot stands for 32 octets and holds a position among their elements; else the
            slot holds a position in the row.
    """

    kernel: Kernel
    threads: int
    group: int
    slots: int
    octets: int
    slots_per_row: int

    def first_refused(self, refused: NDArray[np.uint32], dim: int) -> int:
        """Flat index `row * dim + element` of the first refused value, or -1."""
        bad = refused != NONE
        if not bad.any():
            return -1
        slot = int(bad.argmax())
        position = int(refused[slot])
        if self.slots_per_row:
            return slot // self.slots_per_row * dim + position
        row, octet = divmod(slot * 32 + position // 8, self.octets)
        return row * dim + octet * 8 + position % 8


def supports(spec: LayerSpec) -> bool:
    """Whether there are GPU kernels for the format; `rvq` turns heads of up to 256 elements."""
    details = spec.details
    return details.family in _FAMILIES and (details.family != "rvq" or spec.head_dim <= _LONGEST_TURNED)


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
    stem, reports_groups = _FAMILIES[spec.details.family]
    octets = -(-spec.dim // 8)
    if rows * octets > MAX_OCTETS:
        raise FormatError(f"{spec.format}: {rows} rows of {spec.dim} are too many for one GPU launch")
    constants = _constants(spec, element, tuning or {})
    group = constants["TEAMS"] * 32
    packing = direction is Direction.PACK
    units = rows * (spec.dim // spec.head_dim if spec.head_dim else 1)
    if packing and reports_groups:
        lanes = units * (constants["LANES"] if spec.head_dim else 32)
    elif spec.head_dim:
        lanes = units * -(-spec.head_dim // 8)
    else:
        lanes = -(-rows * octets // (constants["STEPS"] if packing and stem == "affine" else 1))
    return Plan(
        kernel=_kernel(dialect, spec.format, stem, direction, element, tuple(sorted(constants.items()))),
        threads=-(-lanes // group) * group,
        group=group,
        slots=units if reports_groups else -(-rows * octets // 32),
        octets=octets,
        slots_per_row=units // rows if reports_groups else 0,
    )


def _constants(spec: LayerSpec, element: Element, tuning: Mapping[str, int]) -> dict[str, int]:
    """Every constant a kernel may use, by the name it has in the text."""
    details = spec.details
    octets, octets_of_group = -(-spec.dim // 8), -(-spec.group // 8)
    return {
        "ELEMENT": int(element),
        "LIMIT": int(np.float32(details.limit).view(np.uint32)),
        "BITS": details.bits,
        "GROUP": spec.group,
        "BLOCK": spec.group * details.bits // 8 + details.group_params,
        "LANES": min(32, 1 << (octets_of_group - 1).bit_length()),
        "VARIANT": details.variant,
        "MANTISSA": details.variant or 3,
        "ROPE": spec.rope,
        "TEAMS": TEAMS,
        "STEPS": 2,
        "KEEP": min(4, -(-octets // 32)),
        **tuning,
    }


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
