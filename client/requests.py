"""The store's commands as a client writes them, and the texts it reads back. Does no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pionkv.kernels.formats import Element, LayerSpec
from pionkv.protocol.request import Word

from .errors import BadReply

if TYPE_CHECKING:
    from .plan import Plan

Name = str | bytes
Command = Sequence[Word]
Blocks = tuple[int, bytes]
"""Tokens that one hash stands for, and the hashes, 8 bytes each."""


def as_bytes(name: Name) -> bytes:
    """A name as it goes over the wire."""
    return name.encode() if isinstance(name, str) else name


def sessions_of(namespace: Name) -> tuple[bytes, bytes]:
    """The names of the two sessions of a prefix: keys, values."""
    name = as_bytes(namespace)
    return name + b"_pk", name + b"_pv"


def create(sid: Name, specs: LayerSpec | Sequence[LayerSpec]) -> Command:
    """`V.CREATE`, uniform for one spec and with a schema for a list of them."""
    if isinstance(specs, LayerSpec):
        return ("V.CREATE", as_bytes(sid), specs.dim, "VQUANT", specs.format)
    return ("V.CREATE", as_bytes(sid), "SCHEMA", *_schema(specs))


def register(
    namespace: Name,
    keys: LayerSpec | Sequence[LayerSpec],
    values: Sequence[LayerSpec] | None = None,
    prefill_ms: int | None = None,
    blocks: Blocks | None = None,
    model: str | None = None,
) -> Command:
    """`KV.PREFIX.REGISTER`, uniform for one spec and with schemas for two lists of them."""
    options: list[Word] = []
    if blocks is not None:
        size, hashes = blocks
        options += ["BLOCKS", size, len(hashes) // 8, hashes]
    if prefill_ms is not None:
        options += ["PREFILL_MS", prefill_ms]
    if model is not None:
        options += ["MODEL", model]
    if isinstance(keys, LayerSpec):
        return ("KV.PREFIX.REGISTER", as_bytes(namespace), keys.dim, keys.format, *options)
    schemas = ("SCHEMA", "K", *_schema(keys), "V", *_schema(values or keys))
    return ("KV.PREFIX.REGISTER", as_bytes(namespace), *schemas, *options)


def begin(
    namespace: Name,
    layout: LayerSpec | Sequence[LayerSpec],
    plan: "Plan",
    ids: Sequence[int],
    prefill_ms: int,
    model: str,
    parent: "Found | None",
) -> Command:
    """`KV.PREFIX.BEGIN`, uniform for one spec and with schemas for a list of them."""
    if isinstance(layout, LayerSpec):
        schema: Command = ("KV", layout.dim, layout.format, "LAYERS", len(plan.keys))
    else:
        schema = ("SCHEMA", "K", *_schema(plan.keys), "V", *_schema(plan.values))
    source: Command = () if parent is None else ("FROM", parent.namespace, parent.tokens)
    told = ("TOKENS", np.asarray(ids, "<u4").tobytes(), "MODEL", model, "PREFILL_MS", prefill_ms)
    return ("KV.PREFIX.BEGIN", as_bytes(namespace), *schema, *source, *told)


def store(
    sid: Name, layer: int, start: int, count: int, rows: memoryview, form: str, txn: bytes | None = None
) -> Command:
    """`V.STOREBATCH`; `form` is F32, F16, BF16 or RAW."""
    option: Command = () if form == Element.F32.name else ("FMT", form)
    within: Command = () if txn is None else ("TXN", txn)
    return ("V.STOREBATCH", as_bytes(sid), layer, start, count, rows, *option, *within)


def fetch_all(
    namespace: Name,
    start: int,
    end: int,
    form: str,
    layers: tuple[int, int] | None = None,
    at: int | None = None,
) -> Command:
    """`V.FETCHALL` of both sides.

    Args:
        namespace: The prefix.
        start: The first row.
        end: One past the last row.
        form: What the rows come as.
        layers: The first of the layers and one past the last; None: all.
        at: The generation that they must be of; None: any.
    """
    some: Command = () if layers is None else ("LAYERS", *layers)
    then: Command = () if at is None else ("AT", at)
    return ("V.FETCHALL", *sessions_of(namespace), start, end, "FMT", form, *some, *then)


def places(sid: Name, start: int, end: int, layers: tuple[int, int] | None) -> Command:
    """`V.MAP`; `layers`: the first of them and one past the last, None: all."""
    some: Command = () if layers is None else ("LAYERS", *layers)
    return ("V.MAP", as_bytes(sid), start, end, *some)


def match(ids: Sequence[int], model: str, *, whole: bool) -> Command:
    """`KV.PREFIX.MATCH`."""
    option: Command = ("WHOLE",) if whole else ()
    return ("KV.PREFIX.MATCH", np.asarray(ids, "<u4").tobytes(), "MODEL", model, *option)


@dataclass(frozen=True, slots=True)
class Found:
    """What `KV.PREFIX.MATCH` found.

    Attributes:
        namespace: The prefix.
        tokens: How many of the tokens asked it holds.
        generation: That of its rows.
    """

    namespace: bytes
    tokens: int
    generation: int

    @classmethod
    def parse(cls, reply: object, asked: int) -> "Found | None":
        """Read a reply to a question about `asked` tokens.

        Raises:
            BadReply: It is no such reply.
        """
        if reply is None:
            return None
        match reply:
            case [bytes(namespace), int(tokens), int(generation)] if 0 < tokens <= asked:
                return cls(namespace, tokens, generation)
        raise BadReply("KV.PREFIX.MATCH answered something else")


def _schema(specs: Sequence[LayerSpec]) -> Command:
    return (len(specs), *(_spec(spec) for spec in specs))


def _spec(spec: LayerSpec) -> str:
    rope = f",rope={spec.rope}" if spec.rope else ""
    head = f",head={spec.head_dim}" if spec.head_dim else ""
    return f"fmt={spec.format},dim={spec.dim}{rope}{head}"


def read_lines(reply: object) -> dict[str, str]:
    """The `name:value` lines of an INFO-like reply.

    Raises:
        BadReply: It is no text of that kind.
    """
    if not isinstance(reply, bytes):
        raise BadReply("a text was expected")
    lines = reply.decode("utf-8", "replace").splitlines()
    return {name: value for name, mark, value in (line.partition(":") for line in lines) if mark}


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What `V.INFO` says about a session.

    Attributes:
        specs: Format and dim of each layer.
        rows: Rows that each layer holds.
    """

    specs: tuple[LayerSpec, ...]
    rows: tuple[int, ...]

    @classmethod
    def parse(cls, reply: object) -> "SessionInfo":
        """Read the reply of `V.INFO <sid>`.

        Raises:
            BadReply: It is not such a reply.
        """
        lines = read_lines(reply)
        try:
            layers = range(int(lines["num_layers"]))
            dim, name = lines["value_dim"], lines["v_format"]
            # Most often nothing is said of single layers but how many rows they hold.
            if all(each.endswith("_tokens") for each in lines if each.startswith("layer_")):
                specs = (LayerSpec(name, int(dim)),) * len(layers)
            else:
                specs = tuple(
                    LayerSpec(
                        lines.get(f"layer_{layer}_fmt", name),
                        int(lines.get(f"layer_{layer}_dim", dim)),
                        int(lines.get(f"layer_{layer}_rope", 0)),
                        int(lines.get(f"layer_{layer}_head", 0)),
                    )
                    for layer in layers
                )
            rows = tuple(int(lines.get(f"layer_{layer}_tokens", 0)) for layer in layers)
        except (KeyError, ValueError) as error:
            raise BadReply("V.INFO answered something else") from error
        return cls(specs, rows)


def tokens_of(found: Found | None) -> int:
    """How many tokens were found."""
    return 0 if found is None else found.tokens
