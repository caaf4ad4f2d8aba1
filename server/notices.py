"""Notices of what happens to prefixes, on the channels where Redis clients look for events of keys.

    __keyevent@0__:publish    the namespace: it can be restored now, or holds newer rows
    __keyevent@0__:drop       the namespace: it is gone
    __keyspace@0__:<ns>       publish or drop

A tenant gets those of its own namespaces, under its own names. A notice follows the command that caused it.
What is evicted, ends by itself, or goes with FLUSHALL is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pionkv.storage import Store, UnknownNamespace, tag_of, tenant_of

from .pubsub import Channels

PUBLISH, DROP = b"publish", b"drop"
SUFFIXES = (b"_pk", b"_pv")


def namespace_of(sid: bytes) -> bytes | None:
    """The namespace that a session is a side of, or None."""
    return sid[:-3] if sid.endswith(SUFFIXES) and len(sid) > 3 else None


class Notices:
    """Sends notices; costs nothing as long as nobody listens."""

    def __init__(self, channels: Channels, store: Store) -> None:
        self._channels = channels
        self._store = store
        self.on_change: Callable[..., None] | None = None
        """Told of each prefix that changed, and whether that was in one step."""

    def __bool__(self) -> bool:
        return bool(self._channels) or self.on_change is not None

    def changed(self, sid: bytes) -> None:
        """Rows of a session were stored: its namespace may have become one that can be restored."""
        namespace = namespace_of(sid) if self else None
        if namespace is not None:
            self._changed(namespace, whole=False)

    def published(self, namespace: bytes) -> None:
        """A namespace may have become one that can be restored, in one step."""
        self._changed(namespace, whole=True)

    def _changed(self, namespace: bytes, *, whole: bool) -> None:
        if self.on_change is not None:
            self.on_change(namespace, whole=whole)
        if self._channels and self._store.lookup(namespace) is not None:
            self._send(PUBLISH, namespace)

    def present(self, namespaces: Iterable[bytes]) -> list[bytes]:
        """Those of the namespaces that are there, to be given to `dropped`; none when nobody listens."""
        if not self._channels:
            return []
        return [name for name in dict.fromkeys(namespaces) if self._is_there(name)]

    def dropped(self, namespaces: Iterable[bytes]) -> None:
        """These namespaces are gone."""
        for namespace in namespaces:
            self._send(DROP, namespace)

    def _is_there(self, namespace: bytes) -> bool:
        try:
            self._store.namespace(namespace)
        except UnknownNamespace:
            return False
        return True

    def _send(self, event: bytes, namespace: bytes) -> None:
        self._send_as(b"", event, namespace)
        if tenant := tenant_of(namespace):
            tag = tag_of(tenant)
            self._send_as(tag, event, namespace.removeprefix(tag))

    def _send_as(self, tag: bytes, event: bytes, namespace: bytes) -> None:
        self._channels.publish(tag + b"__keyspace@0__:" + namespace, event)
        self._channels.publish(tag + b"__keyevent@0__:" + event, namespace)
