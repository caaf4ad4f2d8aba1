"""The prefix transactions of one connection. Others cannot touch them, and they end with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from pionkv.protocol.errors import CommandError
from pionkv.storage import PrefixPlan, Receipt, Transaction, TransactionDead

from .arguments import Argument, blob, keyword
from .errors import describe

if TYPE_CHECKING:
    from .service import Service


Answer = Coroutine[Any, Any, "bytes | None"]
"""What a handler that takes its time returns; see `dispatch.Slow`."""


class Preparation:
    """A transaction and its lease, which begins anew whenever the transaction is used.

    Attributes:
        transaction: The transaction.
        lease_ms: How long it may be left alone.
    """

    def __init__(self, service: Service, transaction: Transaction, lease_ms: int) -> None:
        self.transaction = transaction
        self.lease_ms = lease_ms
        self._loop = service.loop
        self._metrics = service.metrics
        self._metrics.transactions["begun"] += 1
        self._timer: asyncio.TimerHandle | None = None
        self.renew()

    def renew(self) -> None:
        """The transaction was used."""
        self._stop_timer()
        if self.transaction.is_open:
            self._timer = self._loop.call_later(self.lease_ms / 1000, self._run_out)

    def end(self, reason: str) -> None:
        """Let it leave no trace, unless it was published."""
        self._stop_timer()
        if self.transaction.is_open:
            self.transaction.abort(reason)
            self._metrics.transactions["ended"] += 1

    def publish(self) -> Receipt:
        """Make it visible. Raises as `Transaction.publish`."""
        try:
            receipt = self.transaction.publish()
        finally:
            if not self.transaction.is_open:
                self._metrics.transactions["ended" if self.transaction.reason else "published"] += 1
        self._stop_timer()
        return receipt

    async def run(self, command: str, store: Callable[[], bytes | Answer]) -> bytes | None:
        """Store something into it. What fails ends it: it cannot be what its client thinks it is."""
        try:
            result = store()
            answer = result if isinstance(result, bytes) else await result
        except Exception as error:
            self.end(describe(error, command)[1])
            raise
        self.renew()
        return answer

    def _run_out(self) -> None:
        self.end(f"its lease of {self.lease_ms} ms ran out")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Preparations:
    """The transactions that a connection has begun, dead ones included until they are aborted."""

    def __init__(self) -> None:
        self._found: dict[bytes, Preparation] = {}

    def begin(self, service: Service, plan: PrefixPlan, lease_ms: int) -> bytes:
        """Begin a transaction; its id.

        Raises:
            CommandError: This connection has one open for the namespace, or as many as it may.
            StorageError: As `Store.begin_transaction`.
        """
        limit = service.limits.transactions
        if self.of_namespace(plan.namespace) is not None:
            raise CommandError("ERR", "this connection has a transaction open for the namespace")
        if len(self._found) >= limit:
            raise CommandError("ERR", f"{len(self._found)} transactions on this connection (limit {limit})")
        txn = secrets.token_hex(16).encode()
        transaction = service.store.begin_transaction(txn, plan)
        self._found[txn] = Preparation(service, transaction, lease_ms)
        return txn

    def find(self, txn: bytes) -> Preparation | None:
        """The transaction of this id, dead or alive."""
        return self._found.get(txn)

    def live(self, txn: bytes) -> Preparation:
        """The open transaction of this id; its lease begins anew.

        Raises:
            CommandError: This connection has none.
            TransactionDead: It has ended.
        """
        found = self._found.get(txn)
        if found is None:
            raise unknown()
        if found.transaction.reason:
            raise TransactionDead(found.transaction.reason)
        found.renew()
        return found

    def of_session(self, sid: bytes) -> Preparation | None:
        """The open transaction of which a session is a side."""
        for found in self._found.values():
            if found.transaction.is_open and found.transaction.has_session(sid):
                return found
        return None

    def of_namespace(self, namespace: bytes) -> Preparation | None:
        """The open transaction of a namespace."""
        for found in self._found.values():
            if found.transaction.is_open and found.transaction.plan.namespace == namespace:
                return found
        return None

    def refuse_outside(self, command: str, found: Preparation | None) -> None:
        """What is stored outside a transaction would make it stale: its own client means it to be inside.

        Raises:
            CommandError: There is one.
        """
        if found is not None:
            text = "this connection has a transaction open for it (name it with TXN)"
            raise CommandError("ERR", f"{command}: {text}")

    def remove(self, txn: bytes) -> None:
        """Forget a transaction that was published or aborted."""
        found = self._found.pop(txn, None)
        if found is not None:
            found.end("it was aborted")

    def close(self) -> None:
        """The connection has ended."""
        for txn in list(self._found):
            self.remove(txn)


def named(args: Sequence[Argument], first: int) -> bytes | None:
    """What TXN says among the options that begin at `first`."""
    for place in range(first, len(args) - 1, 2):
        if keyword(args[place]) == "TXN":
            return blob(args[place + 1])
    return None


def unknown() -> CommandError:
    """The error for an id that stands for nothing here."""
    return CommandError("NOTXN", "no such transaction on this connection")
