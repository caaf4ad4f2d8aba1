"""The questions of ATTEND.PREFIX.*, as calls: RESP and the binary lane ask them alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pionkv.kernels.attention import (
    MAX_HEAD_DIM,
    Attended,
    AttentionError,
    Engine,
    HeadMap,
    Query,
    ResidentRows,
    Selector,
    contiguous_map,
)
from pionkv.protocol.errors import CommandError

from .desk import Manner, RowsGone
from .residents import Place
from .sources import Source, resolve

if TYPE_CHECKING:
    from ..acl.user import User
    from ..service import Service

QUERY, FUSED = "ATTEND.PREFIX.QUERY", "ATTEND.PREFIX.QUERY_FUSED"
SPARSE, AUTO = "ATTEND.PREFIX.QUERY_SPARSE", "ATTEND.PREFIX.QUERY_SPARSE_AUTO"
AUTO_FUSED = "ATTEND.PREFIX.QUERY_SPARSE_AUTO_FUSED"
STORE, LOOKUP = "ATTEND.PREFIX.STORE", "ATTEND.PREFIX.LOOKUP"

REFUSE = "refuse"
"""The setting of `attend_cold` under which rows that are not ready are not made so by a query."""

_NO_ENGINE = "attention engine not available (start with --metal-attention or --cuda-attention)"
_NO_METAL = "Metal attention not available (start with --metal-attention)"
_FAILED = {
    QUERY: "session not found, or unsupported D",
    FUSED: "session not found, GQA mismatch, or unsupported D",
    SPARSE: "session not found, K_sparse_max=0, or unsupported D",
    AUTO: "session not found, B=0, K_top=0, or unsupported D",
    AUTO_FUSED: "session not found, invalid params, or unsupported D",
}
COLD = CommandError("COLDMISS", "session evicted to cold tier (call KV.PREFIX.WARM)")


@dataclass(frozen=True, slots=True)
class Target:
    """The rows that a command is about.

    Attributes:
        command: Its name.
        sid: What it calls them.
        layer: The layer.
        head_dim: Elements of a head.
    """

    command: str
    sid: bytes
    layer: int
    head_dim: int

    @property
    def failed(self) -> CommandError:
        """There are no such rows, or none with such heads."""
        return CommandError("ERR", f"{self.command} failed ({_FAILED[self.command]})")


async def engine_of(service: Service, command: str) -> Engine:
    """The engine. Raises `CommandError` with the original's text when this machine has none."""
    engine = await service.attention.engine()
    if engine is None:
        raise CommandError("ERR", _NO_ENGINE if command in (STORE, QUERY, AUTO) else _NO_METAL)
    return engine


async def source_of(service: Service, user: User, target: Target) -> Source:
    """The rows that a query is about.

    Raises:
        CommandError: There is no engine, there are no such rows, or they are cold and stay so.
    """
    await engine_of(service, target.command)
    source = None
    if 1 <= target.head_dim <= MAX_HEAD_DIM:
        source = resolve(service.store, user, target.sid, target.layer)
    if source is None:
        raise target.failed
    if is_cold(service, source, target.head_dim):
        service.metrics.attend_cold_misses += 1
        raise COLD.again()
    return source


def is_cold(service: Service, source: Source, head_dim: int) -> bool:
    """Whether a query on these rows is refused, because they are not ready and the settings say so."""
    if service.settings.attend_cold != REFUSE:
        return False
    return service.attention.residents.get(place_of(source, head_dim), source.marks) is None


def place_of(source: Source, head_dim: int) -> Place:
    """Where rows are kept ready."""
    return source.namespace, source.layer, head_dim


def head_map_of(target: Target, source: Source, heads: int) -> HeadMap:
    """The usual map of so many query heads onto the heads of the rows.

    Raises:
        AttentionError: They do not fit.
    """
    if source.dim % target.head_dim:
        raise AttentionError(f"rows of {source.dim} elements do not have heads of {target.head_dim}")
    return contiguous_map(heads, source.dim // target.head_dim)


def check_heads(target: Target, source: Source, kv_heads: int) -> None:
    """Whether the rows have so many heads. Raises `AttentionError`."""
    if source.dim != kv_heads * target.head_dim:
        raise AttentionError(
            f"rows of {source.dim} elements are not {kv_heads} heads of {target.head_dim}: GQA mismatch"
        )


async def dense(
    service: Service, target: Target, source: Source, query: Query, head_map: HeadMap, window: int
) -> Attended:
    """Attention over all rows in the window; 0 and less for all there are.

    Raises:
        CommandError: The rows are gone.
        AttentionError: The query does not fit them.
    """
    service.metrics.attend_queries[target.command] += 1
    manner = Manner(place_of(source, target.head_dim), head_map, max(0, window))
    try:
        return await service.attention.attend(manner, query)
    except RowsGone:
        raise target.failed from None


@dataclass(frozen=True, slots=True)
class ByIndex:
    """Rows that the caller names for each query head: indices `[H_q, K]`, counts `[H_q]`."""

    indices: NDArray[np.int32]
    counts: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ByBlock:
    """Rows of the blocks that rank highest for each query head."""

    block: int
    most: int
    selector: Selector


async def sparse(
    service: Service,
    target: Target,
    source: Source,
    query: Query,
    head_map: HeadMap,
    choice: ByIndex | ByBlock,
    window: int,
) -> Attended:
    """Attention over chosen rows and those in the window. Raises as `dense`."""

    def work(engine: Engine, rows: ResidentRows) -> Attended:
        recent = max(0, window)
        if isinstance(choice, ByIndex):
            return engine.attend_at(rows, query, head_map, choice.indices, choice.counts, recent)
        how = choice.block, choice.most, choice.selector
        return engine.attend_blocks(rows, query, head_map, *how, recent)

    service.metrics.attend_queries[target.command] += 1
    try:
        answer = await service.attention.work(place_of(source, target.head_dim), work)
    except RowsGone:
        raise target.failed from None
    assert answer is not None
    return answer
