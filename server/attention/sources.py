"""Which stored rows an attention command means.

Rows stored by ATTEND.PREFIX.STORE under `sid` are an ordinary prefix, `<sid>:attend`: in the byte budget,
durable, evicted and dropped like any other. Without one, `sid` means the prefix of that name, and the name
`<ns>_attn`, under which the original's client asks for the rows of `ns`, means `ns`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from pionkv.kernels.attention import PackedLayer
from pionkv.storage import Expired, Rows, RowsNotStored, Stale, Store, UnknownSession

from ..acl.user import User

SIDES = (b"_pk", b"_pv")
OWN = b":attend"
"""Ends the name of the prefix that ATTEND.PREFIX.STORE fills."""
CLIENT = b"_attn"
"""Ends the name under which the original's client asks for the rows of a prefix."""
PIECE_ROWS = 2048
"""Rows whose digests are checked before others get their turn."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of one layer of a prefix, as they are now.

    Attributes:
        namespace: The prefix.
        layer: The layer.
        rows: Rows that both sides have.
        dim: Elements of a row of keys.
        marks: What stands for these very rows, of both sides: other rows have others.
    """

    namespace: bytes
    layer: int
    rows: int
    dim: int
    marks: tuple[int, int]


def find(store: Store, namespace: bytes, layer: int) -> Source | None:
    """The rows of a layer; None when there are none, or the prefix has ended.

    Raises:
        Quarantined: Its bytes failed their check.
    """
    try:
        k, v = (store.layer(namespace + side, layer) for side in SIDES)
    except (UnknownSession, Expired):
        return None
    if k is None or v is None:
        return None
    return Source(namespace, layer, min(k.rows, v.rows), k.spec.dim, (k.mark, v.mark))


def resolve(store: Store, user: User, sid: bytes, layer: int) -> Source | None:
    """The rows that `sid` means. Raises as `find`."""
    found = (find(store, name, layer) for name in stored_names(user, sid))
    return next(filter(None, found), None)


def stored_names(user: User, sid: bytes) -> Iterator[bytes]:
    """The prefixes whose rows `sid` may mean, the first that is there counts."""
    yield sid + OWN
    yield sid
    if sid.endswith(CLIENT) and user.lists(bare := sid.removesuffix(CLIENT)):
        yield bare


async def read(store: Store, source: Source, head_dim: int) -> PackedLayer:
    """The bytes of a source, their digests checked a piece at a time.

    Raises:
        Stale: The rows are others by now, fewer, or gone.
        AttentionError: They do not have heads of `head_dim` elements.
        Quarantined: As `Store.rows`.
    """
    k, v = await read_sides(store, source, SIDES)
    return PackedLayer.of((k.spec, k.runs), (v.spec, v.runs), head_dim)


async def read_sides(store: Store, source: Source, sides: tuple[bytes, ...]) -> list[Rows]:
    """The rows of some sides. Raises as `read`."""
    sids = [source.namespace + side for side in sides]
    try:
        for sid in sids:
            await check_rows(store, sid, source.layer, source.rows)
        found = store.rows_of_layers(sids, (source.layer,), 0, source.rows)
    except (UnknownSession, Expired, RowsNotStored) as error:
        raise Stale(sids[0]) from error
    now = find(store, source.namespace, source.layer)
    if now is None or now.marks != source.marks:
        raise Stale(sids[0])
    return [rows for rows in found if rows is not None]


async def check_rows(store: Store, sid: bytes, layer: int, rows: int) -> None:
    """Have every digest of a layer checked, a piece at a time: others get their turn in between."""
    for start in range(0, rows, PIECE_ROWS):
        store.rows(sid, layer, start, min(start + PIECE_ROWS, rows))
        if rows > PIECE_ROWS:
            await asyncio.sleep(0)
