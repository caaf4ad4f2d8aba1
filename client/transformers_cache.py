"""`TransformersCache`: prefixes of transformers' `DynamicCache` in a store. Imports torch when it is made."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import plan as plans
from .admission import Admission
from .background import StoreQueue
from .breaker import Breaker
from .deadline import Clock, Deadline
from .endpoint import DEFAULT_PORT, Endpoint
from .errors import UnsupportedModel
from .identity import token_ids as token_ids_of
from .lane import Lane
from .link import Link
from .pace import Pace
from .publisher import Publisher
from .requests import Found
from .reuse import Declined, find, find_worth
from .shape import Shape
from .stats import Stats, attempt, reason

if TYPE_CHECKING:
    from transformers import DynamicCache

_log = logging.getLogger(__name__)


class TransformersCache:
    """The longest stored prefix of some tokens as a `DynamicCache`, for models of transformers.

    Layers are kept as rows, bfloat16 and float16 and float32 by their bits. A model with a layer of another
    kind, as sliding windows or states, is refused by the name of that kind, and computes. Thread-safe.

    Example::

        store = TransformersCache(model, tokenizer)
        cache = store.get_or_prefill(ids[:-1])
        model.generate(torch.tensor([ids]), past_key_values=cache, max_new_tokens=100)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        url: str = f"redis://127.0.0.1:{DEFAULT_PORT}",
        vquant: str = plans.AUTO,
        full_fingerprint: bool = False,
        publish_after: int = 16,
        background: bool = True,
        always_fetch: bool = False,
        waiting_bytes: int = 1 << 30,
        deadline: float = 10.0,
        silence: float = 2.0,
        connect_timeout: float = 0.5,
        clock: Clock = time.monotonic,
    ) -> None:
        """Look at the model; one token is put through it. The server is not asked before it is needed.

        Args:
            model: A causal model of transformers.
            tokenizer: Its tokenizer: part of what identifies a prefix.
            url: Where the server is; see `Endpoint.from_url`.
            vquant: Format of the stored rows; "auto" restores the same bits.
            full_fingerprint: Read every byte of the weights for the fingerprint, instead of samples.
            publish_after: A prefix is published when at least so many of its tokens are new.
            background: Publish beside the generation, from a copy; False publishes before a call returns.
            always_fetch: Restore what is stored even where prefilling it has been measured to be faster.
            waiting_bytes: Bytes that what waits to be published may take.
            deadline: Seconds that a restore, or a publication, may take in all.
            silence: Seconds without a byte moving after which the server counts as hung.
            connect_timeout: Seconds within which a new connection must have answered.
            clock: Source of the time, in seconds.

        Raises:
            ModuleNotFoundError: torch or transformers is not installed.
            UnknownFormat: There is no format of that name.
            FormatError: The format cannot hold the model's rows.
            ValueError: The address is none.
        """
        try:
            from . import torch_model
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}; install pionkv[transformers]", name=error.name) from error
        self._torch = torch_model
        self._model = model
        self._clock = clock
        self._stats = Stats()
        self._pace = Pace()
        self._always_fetch = always_fetch
        endpoint, breaker = Endpoint.from_url(url), Breaker(clock=clock)

        def link() -> Link:
            times = {"total": deadline, "silence": silence, "connect": connect_timeout}
            return Link(endpoint, **times, breaker=breaker, prefer_unix=True, clock=clock)

        self._link = link()
        self._publish_after = publish_after
        self._publisher = Publisher(
            link() if background else self._link,
            self._stats,
            Admission(1),
            StoreQueue(waiting_bytes, exit_seconds=deadline) if background else None,
            publish_after=publish_after,
            deadline=deadline,
            clock=clock,
        )
        self._shape = self._shape_of(vquant)
        self._digest = ""
        if self._shape is not None:
            named = {"caches": self._shape.layout, "format": (self._shape.plan, None)}
            self._digest = torch_model.identify(model, tokenizer, **named, full=full_fingerprint).digest

    @property
    def model_digest(self) -> str:
        """What stands for model, tokenizer and formats in the store; empty when nothing can be stored."""
        return self._digest

    def restore(self, token_ids: Sequence[int], *, beyond: int = 0) -> tuple[DynamicCache | None, int]:
        """The longest stored beginning of some tokens; nothing is computed.

        Args:
            token_ids: The tokens.
            beyond: More than so many must be stored, else nothing is restored.

        Returns:
            A cache, each layer where the model has it, and how many tokens it holds; None and 0 when nothing
            is restored, and `stats` says why.
        """
        ids, shape, model = token_ids_of(token_ids), self._shape, self._digest
        if shape is None or not ids:
            return None, 0
        from .head_rows import fetch

        pace = None if self._always_fetch else self._pace

        def work(lane: Lane, deadline: Deadline) -> tuple[DynamicCache, int]:
            found = find_worth(lane, deadline, model, shape, ids, pace, beyond)
            begin = self._clock()
            arrays = fetch(lane, deadline, found.namespace, shape, found.tokens)
            cache = self._torch.cache_of(self._model, shape.layout, self._devices, arrays)
            self._pace.fetched(shape.plan.bytes(found.tokens), self._clock() - begin)
            return cache, found.tokens

        begin = self._clock()
        answer, miss = attempt(self._link, self._stats, work)
        milliseconds = (self._clock() - begin) * 1000
        self._stats.add(fetch_ms_total=milliseconds, hits=answer is not None, misses=answer is None)
        if answer is None:
            self._stats.add(fetches_declined=isinstance(miss, Declined))
            self._stats.last_miss = None if miss is None else reason(miss)
            return None, 0
        cache, tokens = answer
        self._stats.add(tokens_restored=tokens)
        self._publisher.remember(ids[:tokens])
        return cache, tokens

    def keep(self, token_ids: Sequence[int], cache: DynamicCache, prefill_ms: float = 0.0) -> bool:
        """Publish what a cache holds; only rows that are new are sent.

        Args:
            token_ids: The tokens; the cache may hold more than them.
            cache: Read only.
            prefill_ms: What it takes to compute them, if known.

        Returns:
            Whether they are stored now, or wait to be; `stats` says why not.
        """
        ids, shape, model = token_ids_of(token_ids), self._shape, self._digest
        if shape is None or len(ids) < self._publish_after:
            return False

        def parent(lane: Lane, deadline: Deadline) -> Found | None:
            return find(lane, deadline, model, ids, whole=False)

        try:
            rows = self._torch.filled(shape, cache, len(ids))
        except UnsupportedModel as error:
            self._stats.last_unpublished = str(error)
            return False
        known = self._publisher.known(ids)
        return self._publisher.publish_tokens(model, rows, ids, known, parent, prefill_ms)

    def get_or_prefill(self, token_ids: Sequence[int]) -> DynamicCache:
        """A cache that holds the tokens: what is stored is restored, the rest computed and published.

        Once both have been measured, what is computed faster than it is fetched is not fetched.
        """
        from transformers import DynamicCache

        ids = token_ids_of(token_ids)
        self._publisher.wait_for(ids)
        cache, known = self.restore(ids)
        if cache is None:
            cache = DynamicCache(config=self._model.config)
        if known < len(ids):
            begin = self._clock()
            self._torch.run(self._model, ids[known:], cache)
            seconds = self._clock() - begin
            self._pace.prefilled(len(ids) - known, seconds)
            self._stats.last_prefill_ms = milliseconds = seconds * 1000
            self._stats.add(tokens_prefilled=len(ids) - known)
            self.keep(ids, cache, milliseconds * len(ids) / (len(ids) - known))
        return cache

    def stats(self) -> dict[str, int | float | str | None]:
        """Counters, milliseconds, bytes moved, and why the last miss or failed publication came about."""
        traffic = self._link.traffic + self._publisher.traffic
        return self._stats.report(
            traffic,
            stores_waiting=self._publisher.waiting,
            prefill_tokens_per_second=self._pace.prefill,
            link_bytes_per_second=self._pace.link,
        )

    def flush(self, timeout: float | None = None) -> bool:
        """Wait, for so many seconds at most, until nothing waits to be published; whether it came to that."""
        return self._publisher.flush(timeout)

    def close(self) -> None:
        """Publish what waits to be, within the deadline, and close the connections. Usable again."""
        self._publisher.close()
        self._link.close()

    def __enter__(self) -> TransformersCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shape_of(self, vquant: str) -> Shape | None:
        try:
            layout, self._devices = self._torch.read_layout(self._model)
        except UnsupportedModel as error:
            self._stats.unsupported = str(error)
            _log.warning("prefixes are not stored: %s", error)
            return None
        return Shape(layout, plans.make_plan(layout.rows, vquant))
