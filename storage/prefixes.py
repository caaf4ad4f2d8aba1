"""What a store does with prefixes as wholes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import claims, listing, manifests, namespaces, receipts, transactions
from .accounts import EVERYTHING, Listing
from .bases import PrefixPlan
from .engine import Engine
from .gone import Gone
from .ledger import Count
from .manifests import Admission
from .receipts import Receipt
from .reorder import reorder
from .transactions import Transaction
from .verify import verify


class PrefixCalls:
    """The calls of a `Store` about whole prefixes."""

    _engine: Engine

    def begin_transaction(self, txn: bytes, plan: PrefixPlan) -> Transaction:
        """Begin a successor of a prefix that nobody sees until it is published.

        Args:
            txn: Its id, which nobody has used or will use.
            plan: What it is to make.

        Raises:
            UnknownNamespace, RowsNotStored, Quarantined: The parent is not there, or not with such rows.
            SchemaMismatch: The namespace or its parent has another schema or number of layers.
            Uneven: Layers to go on from do not hold the same rows.
            BeyondTokens: There are more rows to go on from than tokens.
            OutOfBudget: Its rows can never fit the budget.
            NameLimit, LayerLimit: As elsewhere.
        """
        return transactions.begin(self._engine, txn, plan)

    def receipt(self, txn: bytes) -> Receipt | None:
        """What publishing a transaction has made, here or in another process, now or before a restart."""
        with self._engine.catalog.snapshot() as reader:
            return receipts.find(reader, txn)

    def claim(self, namespace: bytes, owner: bytes, lease: float) -> claims.Answer:
        """Ask for the right to compute a prefix; again by the same owner, the lease begins anew.

        Args:
            namespace: The prefix; it need not be there.
            owner: Who asks; no two of any process may be the same.
            lease: Seconds after which the claim is over.

        Raises:
            NameLimit: The name is empty or too long.
        """
        return claims.claim(self._engine, namespace, owner, lease)

    def release_claim(self, namespace: bytes, owner: bytes) -> bool:
        """Give a claim back; whether there was one."""
        return claims.release(self._engine, namespace, owner)

    def is_claimed(self, namespace: bytes) -> bool:
        """Whether somebody has the right to compute a prefix."""
        return claims.is_claimed(self._engine, namespace)

    def truncate(self, namespace: bytes, tokens: int) -> int:
        """Cut every layer of both sides to at most `tokens` rows; states go when rows do. The generation.

        Raises:
            UnknownNamespace: No such namespace.
            BadRange: Negative tokens.
            Quarantined: Its bytes failed their check.
        """
        return namespaces.truncate(self._engine, namespace, tokens)

    def fork(self, namespace: bytes, child: bytes, tokens: int | None = None) -> int:
        """Make `child` hold the first `tokens` rows (default all) of a namespace; the child's generation.

        No rows are copied, and neither sees later changes of the other. The tokens and the manifest come
        along, and states when no rows are left out.

        Raises:
            UnknownNamespace: No such namespace.
            NamespaceExists: The child is there already.
            NameLimit, BadRange, Quarantined: As elsewhere.
        """
        return namespaces.fork(self._engine, namespace, child, tokens)

    def blocks(self, namespace: bytes) -> tuple[int, bytes] | None:
        """Tokens per block and block hashes as registered, or None. Raises `UnknownNamespace`."""
        return namespaces.blocks(self._engine, namespace)

    def manifest(self, namespace: bytes) -> bytes | None:
        """The manifest as set, or None. Raises `UnknownNamespace`."""
        return namespaces.manifest(self._engine, namespace)

    def set_manifest(self, namespace: bytes, manifest: bytes) -> None:
        """Set the manifest. Raises `UnknownNamespace`."""
        namespaces.set_manifest(self._engine, namespace, manifest)

    def admit(self, namespace: bytes, manifest: Mapping[str, Any]) -> Admission:
        """Whether the rows of a namespace are what someone with this manifest would have computed.

        Raises:
            Incompatible: The first identity field that differs.
            UnknownNamespace, Uneven, Quarantined: There is nothing whole to admit to.
        """
        return manifests.admit(self._engine, namespace, manifest)

    def reorder(self, sids: Sequence[bytes], order: Sequence[int]) -> int:
        """Let session i hold what session `order[i]` held, all in one step; the generation this makes.

        No rows are copied. What the sessions hold afterwards is shared until one of them changes. The tokens
        of a prefix go with its K side; its states are removed.

        Raises:
            BadOrder: `order` is not a place among the sessions for each of them, or one is named twice.
            SchemaMismatch: A session would get rows of another schema or side.
            UnknownSession, Quarantined, Immutable: As elsewhere.
        """
        return reorder(self._engine, sids, order)

    def verify(self, namespace: bytes) -> Iterator[int]:
        """Check every row and state of a namespace against its digests again, some megabytes at each step.

        Yields:
            Bytes checked by this step.

        Raises:
            UnknownNamespace: No such namespace.
            StaleGeneration: It has changed meanwhile.
            Quarantined: Bytes fail their check, now or before.
        """
        return verify(self._engine, namespace)

    def ledger(self, name: bytes | None) -> Count:
        """Where the bytes of a session or namespace are, or with None of the whole store."""
        return Count(self._engine, name)

    def ttl(self, name: bytes) -> float | None:
        """Seconds until a namespace ends; None when it does not. Raises `UnknownNamespace`.

        Here, and for pins and `expire`, a session that belongs to no namespace is named by its own name.
        """
        ends = namespaces.ends(self._engine, name)
        return ends - self._engine.clock() if ends else None

    def pin(self, name: bytes) -> int:
        """Keep a namespace from eviction once more; how many pins hold it. Raises `UnknownNamespace`."""
        return namespaces.pin(self._engine, name, 1)

    def unpin(self, name: bytes) -> int:
        """Take a pin away, if there is one; how many are left. Raises `UnknownNamespace`."""
        return namespaces.pin(self._engine, name, -1)

    def expire(self, name: bytes, at: float) -> None:
        """Let a namespace end at a time of the store's clock; 0 for never. Raises `UnknownNamespace`."""
        namespaces.expire(self._engine, name, at)

    def miss_reason(self, namespace: bytes) -> str:
        """Why `lookup` answers None: absent, expired, incomplete, quarantined and why; empty for a hit."""
        return namespaces.miss_reason(self._engine, namespace)

    def scan_namespaces(
        self, after: bytes | None, count: int, wanted: Listing = EVERYTHING
    ) -> tuple[list[bytes], bool]:
        """The first `count` names of a listing after one, in order; and whether there may be more."""
        return listing.scan_namespaces(self._engine, after, count, wanted)

    def page_files(self, namespace: bytes) -> list[Path]:
        """The files that hold its rows and states now. Raises `UnknownNamespace`."""
        return listing.page_files(self._engine, namespace)

    def gone(self, namespace: bytes) -> Gone | None:
        """Why a namespace is no more, and since when, if that is known still."""
        return listing.find_gone(self._engine, namespace)
