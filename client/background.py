"""Publications that run beside the generation: in order, in one thread, and no more of them than fit."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_STORES = 64
"""Publications that wait, at most."""

_log = logging.getLogger(__name__)
_queues: weakref.WeakSet[StoreQueue] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Store:
    """A publication that waits.

    Attributes:
        ids: The tokens.
        nbytes: Bytes that are kept for it.
        work: Publishes, within a deadline, and raises nothing.
        done: Called afterwards, and when it is given up.
    """

    ids: Sequence[int]
    nbytes: int
    work: Callable[[], object]
    done: Callable[[], object]


class StoreQueue:
    """A bounded queue and its thread, which lives while there is something to do. Thread-safe.

    A process that ends drains it before, at most for `exit_seconds`; what is lost then is logged.

    Args:
        most_bytes: Bytes that all that waits may take.
        most_items: Publications that may wait, the one that runs included.
        exit_seconds: How long the end of the process waits.
    """

    def __init__(self, most_bytes: int, most_items: int = MOST_STORES, exit_seconds: float = 10.0) -> None:
        self.most_bytes = most_bytes
        self.most_items = most_items
        self.exit_seconds = exit_seconds
        self._begin()
        _queues.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._stores: deque[Store] = deque()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._stores)

    def refusal(self, nbytes: int) -> str | None:
        """Why a publication of so many bytes would not be taken now; None: it would."""
        held, count = sum(store.nbytes for store in list(self._stores)), len(self._stores)
        if count >= self.most_items:
            return f"{count} stores wait, at most {self.most_items} may"
        if held + nbytes > self.most_bytes:
            return f"{nbytes} bytes on top of {held} that wait, at most {self.most_bytes} may"
        return None

    def put(self, store: Store) -> str | None:
        """Take a publication, or say why not, at once; `done` of one that is not taken is not called."""
        with self._changed:
            refusal = self.refusal(store.nbytes)
            if refusal is not None:
                return refusal
            self._stores.append(store)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pionkv stores", daemon=True)
                self._thread.start()
        return None

    def flush(self, timeout: float | None = None) -> bool:
        """Wait, for so many seconds at most, until nothing waits; whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._stores, timeout)

    def wait_for(self, ids: Sequence[int], timeout: float) -> bool:
        """Likewise, until no publication of a beginning of these tokens waits."""

        def concerns(store: Store) -> bool:
            return list(ids[: len(store.ids)]) == list(store.ids)

        with self._changed:
            return self._changed.wait_for(lambda: not any(map(concerns, self._stores)), timeout)

    def close(self, timeout: float) -> int:
        """Flush, then give up what still waits; how many those are. The queue stays usable."""
        self.flush(timeout)
        with self._changed:
            running, lost = list(self._stores)[:1], list(self._stores)[1:]
            self._stores = deque(running)
            self._changed.notify_all()
        for store in lost:
            store.done()
        return len(lost)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._stores:
                    self._thread = None
                    return
                store = self._stores[0]
            try:
                store.work()
            except Exception:
                _log.exception("a store in the background failed")
            finally:
                store.done()
            with self._changed:
                self._stores.popleft()
                self._changed.notify_all()


def _drain() -> None:
    for queue in list(_queues):
        queue.flush(queue.exit_seconds)
        if len(queue):
            _log.warning("%d prefixes were not stored before the process ended", len(queue))


def _forget() -> None:
    """In a forked child: the thread and what it does are the parent's."""
    for queue in list(_queues):
        queue._begin()


atexit.register(_drain)
os.register_at_fork(after_in_child=_forget)
