"""KV.PREFIX.WARM for attention: rows of a prefix ready, under the name by which they will be asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pionkv.storage import Store, UnknownNamespace

from ..acl.permit import NO_KEY
from .desk import RowsGone
from .sources import CLIENT, OWN
from .storing import drop_prefixes

if TYPE_CHECKING:
    from ..acl.user import User
    from ..service import Service


def give_name(service: Service, user: User, namespace: bytes, name: bytes) -> bytes:
    """Let a name mean the rows of a prefix in attention commands; the prefix that holds them under it.

    What ATTEND.PREFIX.STORE has stored under that name goes. A name that means the prefix by itself takes
    nothing more; another becomes a fork, which shares the pages.

    Raises:
        CommandError: The user may not change what the name means.
        UnknownNamespace, NameLimit, Quarantined: As `Store.fork`.
    """
    store = service.store
    means_it = name in (namespace, namespace + CLIENT)
    if means_it and not _is_there(store, name + OWN):
        return namespace
    if not user.lists(name, write=True):
        raise NO_KEY.again()
    drop_prefixes(service, [name + OWN])
    if means_it:
        return namespace
    store.fork(namespace, name + OWN)
    return name + OWN


def _is_there(store: Store, namespace: bytes) -> bool:
    try:
        store.namespace(namespace)
    except UnknownNamespace:
        return False
    return True


async def make_ready(service: Service, namespace: bytes, layers: Iterable[int], head_dim: int) -> None:
    """Have layers ready for attention, as far as they may be kept; without an engine nothing is done.

    Raises:
        AttentionError, StorageError: As `Desk.attend`.
    """
    if await service.attention.engine() is None:
        return
    for layer in layers:
        try:
            await service.attention.warm((namespace, layer, head_dim))
        except RowsGone:
            return
