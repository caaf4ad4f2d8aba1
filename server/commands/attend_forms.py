"""How the commands of ATTEND.PREFIX.* are written: numbers, then blobs whose sizes follow from them.

Sizes are checked on the header of a blob, before any of it is taken, and again when the command is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels.attention import MAX_HEAD_DIM, MAX_HEADS, HeadMap
from pionkv.protocol.errors import CommandError
from pionkv.protocol.limits import Limits

from ..arguments import Argument, integer
from ..attention.asking import AUTO, AUTO_FUSED, FUSED, QUERY, SPARSE, STORE
from ..clients import Client
from ..dispatch import Opener
from ..receiving import Receiver, Refused, Spooled

FIRST = 3
"""Position of the first argument after the session and the layer."""
WORD = 4

Numbers = Mapping[str, int]
HEADS, KV_HEADS, DIM, SUFFIX = ("H", "H_q"), "H_kv", "D", "S_suf"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob of words of four bytes, or of single bytes.

    Attributes:
        name: As in the usage.
        factors: Names of the numbers whose product is how many words it has.
        wrong: The error for another size.
        multiple: It may have that many words several times over.
        optional: It may be empty.
        unit: Bytes of a word.
    """

    name: str
    factors: tuple[str, ...]
    wrong: str
    multiple: bool = False
    optional: bool = False
    unit: int = WORD

    def check(self, numbers: Numbers, length: int) -> None:
        """Raises `CommandError` for a length that is not its size."""
        size = self.unit * prod(numbers[name] for name in self.factors)
        fits = (length >= size and length % size == 0) if self.multiple else length == size
        if not fits and not (self.optional and not length):
            raise CommandError("ERR", self.wrong)


@dataclass(frozen=True, slots=True)
class Form:
    """One command.

    Attributes:
        command: Its name.
        numbers: Names of the numbers after the layer, in order.
        blobs: The blobs after them, in order.
        invalid: The error for a number that is too small.
        may_be_zero: The number that need not be positive.
        negative: The error when it is negative.
    """

    command: str
    numbers: tuple[str, ...]
    blobs: tuple[Blob, ...]
    invalid: str
    may_be_zero: str = ""
    negative: str = ""

    def read_numbers(self, args: Sequence[Argument], limits: Limits) -> Numbers:
        """The numbers by name.

        Raises:
            CommandError: One is no integer, too small or too large.
        """
        found = {name: integer(args[FIRST + place]) for place, name in enumerate(self.numbers)}
        if any(value < 1 for name, value in found.items() if name != self.may_be_zero):
            raise CommandError("ERR", self.invalid)
        if found.get(self.may_be_zero, 0) < 0:
            raise CommandError("ERR", self.negative)
        heads = next(found[name] for name in HEADS if name in found)
        if heads % found.get(KV_HEADS, 1):
            raise CommandError("ERR", "H_q must be a multiple of H_kv (GQA)")
        if heads > MAX_HEADS:
            raise CommandError("ERR", f"{self.command}: {heads} heads (limit {MAX_HEADS})")
        if found[DIM] > MAX_HEAD_DIM:
            raise CommandError("ERR", f"{self.command} failed (unsupported D? supported: 1..{MAX_HEAD_DIM})")
        for name in ("N", SUFFIX, "K_sparse_max"):
            if found.get(name, 0) > limits.rows:
                raise CommandError("ERR", f"{self.command}: {found[name]} rows (limit {limits.rows})")
        return found

    @property
    def first_option(self) -> int:
        """Position of what follows the blobs."""
        return FIRST + len(self.numbers) + len(self.blobs)

    def positions(self) -> dict[int, Blob]:
        """The blobs by their position in the command line."""
        return {FIRST + len(self.numbers) + place: blob for place, blob in enumerate(self.blobs)}

    def read(self, args: Sequence[Argument], limits: Limits) -> Asked:
        """The command, whose blobs have arrived.

        Raises:
            CommandError: As `read_numbers`; or a blob has another size than the numbers say.
        """
        numbers = self.read_numbers(args, limits)
        blobs = {}
        for position, blob in self.positions().items():
            data = body(args[position])
            check_blob(self, blob, numbers, data.nbytes, limits)
            blobs[blob.name] = data
        return Asked(numbers, blobs)


@dataclass(frozen=True, slots=True)
class Asked:
    """The numbers and the blobs of one command, by name."""

    numbers: Numbers
    blobs: Mapping[str, memoryview] = field(default_factory=dict)

    def floats(self, name: str, heads: str) -> NDArray[np.float32]:
        """A blob as float32 `[heads, rows, D]`."""
        array = np.frombuffer(self.blobs[name], np.dtype("<f4"))
        return array.reshape(self.numbers[heads], -1, self.numbers[DIM])

    @property
    def head_map(self) -> HeadMap:
        """The head map as it was given; empty if it was."""
        return tuple(self.blobs["head_map"])


def check_blob(form: Form, blob: Blob, numbers: Numbers, length: int, limits: Limits) -> None:
    """Raises `CommandError` for a blob of another size, or of too many queries."""
    blob.check(numbers, length)
    count = length // (WORD * prod(numbers[name] for name in blob.factors)) if blob.multiple else 1
    if count > limits.attend_queries:
        raise CommandError("ERR", f"{form.command}: {count} queries (limit {limits.attend_queries})")


def body(argument: Argument) -> memoryview:
    """The bytes of a blob, wherever it was received."""
    if isinstance(argument, Spooled):
        return argument.data
    if isinstance(argument, Receiver):
        error = argument.error if isinstance(argument, Refused) else None
        raise error or CommandError("ERR", f"argument of {argument.length} bytes is too large here")
    return memoryview(argument)


def _q(text: str, *factors: str, multiple: bool = False) -> Blob:
    return Blob("Q", factors, text, multiple=multiple)


_SUFFIX_SIZE = "K_suf / V_suf size mismatch (expected H_kv*S_suf*D*4 each)"
_SUFFIXES = tuple(Blob(name, ("H_kv", "S_suf", "D"), _SUFFIX_SIZE) for name in ("K_suf", "V_suf"))
_STORED = tuple(
    Blob(name, ("H", "N", "D"), "K/V blob size mismatch (expected H*N*D*4 each)") for name in ("K", "V")
)
_MAP = Blob("head_map", ("H_q",), "head_map size mismatch (expected H_q bytes)", unit=1)
_MAP_OR_NOT = Blob(
    "head_map", ("H_q",), "head_map size must be 0 (identity) or H_q bytes", optional=True, unit=1
)
_ONE_OF_EACH = _q("Q blob size must be H_q*D*4", "H_q", "D")

FORMS = {
    form.command: form
    for form in (
        Form(STORE, ("H", "N", "D"), _STORED, "invalid H/N/D (must be > 0)"),
        Form(
            QUERY,
            ("H", "D", "top_k"),
            (_q("Q blob size must be a positive multiple of H*D*4", "H", "D", multiple=True),),
            "invalid H/D/top_k (must be > 0)",
        ),
        Form(
            FUSED,
            ("H_q", "D", "S_suf", "H_kv"),
            (
                _q("Q blob size must be a positive multiple of H_q*D*4", "H_q", "D", multiple=True),
                *_SUFFIXES,
                _MAP,
            ),
            "invalid H_q/D/H_kv (must be > 0) or S_suf (>= 0)",
            SUFFIX,
            "invalid H_q/D/H_kv (must be > 0) or S_suf (>= 0)",
        ),
        Form(
            SPARSE,
            ("H", "D", "K_sparse_max"),
            (
                _q("Q blob size must be H*D*4", "H", "D"),
                Blob("indices", ("H", "K_sparse_max"), "indices blob size must be H*K_sparse_max*4"),
                Blob("counts", ("H",), "counts blob size must be H*4"),
            ),
            "invalid H/D/K_sparse_max (must be > 0)",
        ),
        Form(
            AUTO,
            ("H_q", "D", "B", "K_top", "H_kv"),
            (_ONE_OF_EACH, _MAP_OR_NOT),
            "invalid H_q/D/B/K_top/H_kv (must be > 0)",
        ),
        Form(
            AUTO_FUSED,
            ("H_q", "D", "B", "K_top", "H_kv", "S_suf"),
            (_ONE_OF_EACH, *_SUFFIXES, _MAP_OR_NOT),
            "invalid H_q/D/B/K_top/H_kv (must be > 0)",
            SUFFIX,
            "S_suf must be >= 0",
        ),
    )
}


def _open(form: Form, blob: Blob, client: Client, args: Sequence[Argument], length: int) -> Receiver | None:
    """Whether a large blob is taken: those of a STORE into buffers that are lent, others into memory."""
    service = client.service
    check_blob(form, blob, form.read_numbers(args, service.limits), length, service.limits)
    return Spooled(service.spools, length) if form.command == STORE else None


def _openers(form: Form) -> dict[int, Opener]:
    found: dict[int, Callable[[Client, Sequence[Argument], int], Receiver | None]] = {
        position: partial(_open, form, blob) for position, blob in form.positions().items()
    }
    return found


OPENERS: dict[str, dict[int, Opener]] = {name: _openers(form) for name, form in FORMS.items()}
