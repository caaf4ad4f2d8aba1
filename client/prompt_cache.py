"""`PionPromptCache`: restore a prefix's K/V instead of prefilling it; publish it after the first prefill."""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import plan as plans
from .admission import Admission
from .attend import AttendQueries
from .attend_link import AttendLink
from .background import StoreQueue
from .breaker import Breaker
from .claim import Turn, both
from .deadline import Clock, Deadline
from .endpoint import DEFAULT_PORT, Endpoint
from .errors import Absent, NotStored, OtherTokens, UnsupportedModel
from .identity import token_ids as token_ids_of
from .lane import Lane
from .link import Link, Work
from .pace import Pace
from .publisher import Publisher
from .requests import Found, tokens_of
from .reuse import Declined, Other, explanation, find, held, names_of, others, restore_longest
from .route import LaneName, Route
from .stats import Stats, attempt, reason
from .tls import Tls

if TYPE_CHECKING:
    from .prefill import Progress
    from .publish import Source
    from .shape import Shape

T = TypeVar("T")

_log = logging.getLogger(__name__)


class PionPromptCache(AttendQueries):
    """A prompt cache for mlx-lm that is kept in a store and shared by every process that asks it.

    `get_or_prefill` returns caches that are ready for mlx-lm's `generate_step` or `stream_generate` with the
    rest of the prompt, whatever happens to the server: one that is down, slow, stopped or wrong costs at most
    the deadline, after which the model prefills. Thread-safe.

    Example::

        cache = PionPromptCache(model, tokenizer=tokenizer)
        caches = cache.get_or_prefill(prefix_ids)
        for token, _ in generate_step(mx.array(suffix_ids), model, prompt_cache=caches):
            ...

    The longest stored prefix of the tokens is used, and the rest is prefilled. What may be reused is told by
    token ids and by a fingerprint of model and tokenizer; nothing has to be named. A caller who names a
    prefix gets that one or none: token ids are compared none the less.
    """

    def __init__(
        self,
        model: Any = None,
        vquant: str = plans.AUTO,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        stage2: bool = False,
        admission_threshold: int = 1,
        boundary_protect: int = 0,
        prefill_chunk_size: int | None = None,
        softmax_bitexact: bool = False,
        *,
        tokenizer: Any = None,
        full_fingerprint: bool = False,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        publish_after: int = 16,
        background: bool = True,
        waiting_bytes: int = 1 << 30,
        lane: LaneName = "auto",
        connections: int | None = None,
        always_fetch: bool = False,
        wait_for_others: float = 60.0,
        unix_socket_path: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: Tls | None = None,
        url: str | None = None,
        deadline: float = 10.0,
        silence: float = 2.0,
        connect_timeout: float = 0.5,
        clock: Clock = time.monotonic,
    ) -> None:
        """Prepare; the server is not asked before it is needed.

        Args:
            model: An mlx-lm model. None is enough for `lookup`.
            vquant: Format of the stored rows, by name. "auto" is the model's own element type, which restores
                the same bits; other formats take less room and restore something close.
            host: The server's name or address.
            port: The server's TCP port.
            stage2: Taken for compatibility; `PrefixAttention` has the server compute attention.
            admission_threshold: A prefix is published at its so-many-th miss in this process.
            boundary_protect: If above 0, `vquant` is used for the values of the middle layers only; the first
                and the last so many layers, and all keys, are kept in 16 bits.
            prefill_chunk_size: Tokens prefilled at once; 2,048 by default, 256 on a CPU. Processes that
                are to get the same bits need the same size.
            softmax_bitexact: Taken for compatibility: with `vquant="auto"` every restore has the same bits.
            tokenizer: The model's tokenizer, of any kind: part of what identifies a prefix.
            full_fingerprint: Read every byte of the weights for the fingerprint, instead of samples.
            kv_bits: If given, caches are mlx-lm's QuantizedKVCache of so many bits, 4 or 8, stored packed and
                restored without unpacking. Exact for models in float16 and bfloat16.
            kv_group_size: Elements that share a scale then, 32 or 64.
            publish_after: A prefix without a name is published when at least so many of its tokens were new.
            background: Publish beside the generation, from a copy; False publishes before the call returns.
            waiting_bytes: Bytes that what waits to be published may take; what does not fit is not published.
            lane: How rows come: "auto" chooses the fastest that works; see `route.LaneName`.
            connections: Over how many connections a large prefix comes at once, where it does not come out of
                files; None is half of this machine's cores, 4 at most.
            always_fetch: Restore what is stored even where prefilling it has been measured to be faster.
            wait_for_others: Seconds to wait, at most, for another process that computes the same prefix.
            unix_socket_path: Path of the server's Unix socket, used instead of host and port.
            username: User that the password belongs to.
            password: The server's password.
            tls: How TCP connections are secured; None: they are not.
            url: All of these as one address, see `Endpoint.from_url`: `rediss://host:port` is TLS.
            deadline: Seconds that a restore, or a publication, may take in all.
            silence: Seconds without a byte moving after which the server counts as hung.
            connect_timeout: Seconds within which a new connection must have answered.
            clock: Source of the time, in seconds.

        Raises:
            UnknownFormat: There is no format of that name.
            FormatError: The format cannot hold the model's rows.
            ValueError: A number is out of its range.
        """
        if admission_threshold < 1:
            raise ValueError(f"admission_threshold is {admission_threshold}, it must be at least 1")
        if prefill_chunk_size is not None and prefill_chunk_size < 1:
            raise ValueError(f"prefill_chunk_size is {prefill_chunk_size}, it must be at least 1")
        if stage2:
            warnings.warn("stage2 has no effect: see PrefixAttention", stacklevel=2)
        self.model = model
        self.softmax_bitexact = softmax_bitexact
        self._chunk = prefill_chunk_size
        self._clock = clock
        self._stats = Stats()
        endpoint = Endpoint(host, port, unix_socket_path, username, password, tls)
        endpoint = endpoint if url is None else Endpoint.from_url(url)
        self._route = Route.of(lane, endpoint, connections)
        breaker, prefer_unix = Breaker(clock=clock), lane in ("auto", "map")

        def link() -> Link:
            bounds = {"total": deadline, "silence": silence, "connect": connect_timeout}
            return Link(endpoint, **bounds, breaker=breaker, prefer_unix=prefer_unix, clock=clock)

        self._link = link()
        self.attend = AttendLink(self._link)
        # A connection of its own: a publication must not hold up a restore.
        stores_link = link() if background else self._link
        self._publisher = Publisher(
            stores_link,
            self._stats,
            Admission(admission_threshold),
            StoreQueue(waiting_bytes, exit_seconds=deadline) if background else None,
            publish_after=publish_after,
            deadline=deadline,
            clock=clock,
        )
        self._publish_after = publish_after
        self._pace = Pace()
        self._always_fetch = always_fetch
        self._wait = wait_for_others
        self._silence = silence
        self._attached = plans.attach(kv_bits, kv_group_size)
        if self._attached is not None:
            if vquant.lower() != plans.AUTO or boundary_protect:
                raise ValueError("kv_bits says how rows are stored: leave vquant and boundary_protect out")
            vquant = self._attached.format
        self.shape = None if model is None else self._shape_of(model, vquant, boundary_protect)
        """How the model's caches look and are stored; None when they are not."""
        self._tokenizer = tokenizer
        self._full_fingerprint = full_fingerprint
        self._digest: str | None = None

    @staticmethod
    def make_namespace(*parts: str) -> str:
        """A name for what the parts identify: 32 hex digits of the SHA-256 of the parts joined by ``|``."""
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]

    def lookup(self, namespace: str) -> bool:
        """Whether the server holds the prefix; False when it cannot be asked."""

        def ask(lane: Lane, deadline: Deadline) -> object:
            lane.send(("KV.PREFIX.LOOKUP", namespace), deadline)
            return lane.receive(deadline)

        return self.exchange(ask)[0] == "HIT"

    @property
    def model_digest(self) -> str:
        """What stands for model, tokenizer and formats in the store; see `fingerprint`."""
        if self._digest is None:
            from .fingerprint import identify

            shape = self.shape
            self._digest = identify(
                self.model,
                self._tokenizer,
                caches=shape and shape.layout,
                format=shape and (shape.plan, shape.attached),
                full=self._full_fingerprint,
            ).digest
        return self._digest

    def get_or_prefill(
        self,
        prefix_token_ids: Sequence[int],
        namespace: str | None = None,
        *,
        prompt_progress_callback: Progress | None = None,
    ) -> list[Any]:
        """Caches that hold exactly the prefix: restored as far as the server has it, the rest prefilled.

        What had to be prefilled is published.

        Args:
            prefix_token_ids: The whole prefix. What follows, at least one token, goes to the generation loop.
            namespace: Name of the prefix, the same in all processes; see `make_namespace`. None finds the
                longest stored prefix by its tokens.
            prompt_progress_callback: Called after each prefilled chunk, with the tokens done and all tokens.

        Returns:
            The model's mlx-lm caches, not shared with anything: they may be written to.

        Raises:
            RuntimeError: This object was made without a model. For what is no token id, see `token_ids`.
        """
        if self.model is None:
            raise RuntimeError("get_or_prefill needs a model")
        ids = token_ids_of(prefix_token_ids)
        if self.shape is None or not ids:
            return self.prefill(ids, prompt_progress_callback)[0]
        if namespace is None:
            return self._by_tokens(self.shape, ids, prompt_progress_callback)
        return self._by_name(self.shape, ids, namespace, prompt_progress_callback)

    def _by_name(self, shape: Shape, ids: list[int], namespace: str, progress: Progress | None) -> list[Any]:
        from .publish import publish
        from .source import Live

        self._publisher.wait_for(ids)
        restored, miss = self._named(shape, ids, namespace)
        turn = self._turn([(namespace, len(ids))], self._wait_until())
        while isinstance(miss, Absent) and not turn.hit and turn.wait():
            restored, miss = self._named(shape, ids, namespace)
        if restored is not None:
            return restored
        try:
            caches, milliseconds = self.prefill(ids, both(turn.renew, progress))
            if isinstance(miss, OtherTokens):
                # Its rows would be overwritten one by one while somebody may be reading them.
                self._stats.last_unpublished = str(miss)
                return caches
            model = self.model_digest

            def store(source: Source) -> Work[int]:
                return lambda lane, deadline: publish(
                    lane, deadline, namespace, shape, source, ids, round(milliseconds), model
                )

            self._publisher.publish(namespace, ids, Live(shape, caches, len(ids)), 0, store, turn)
            return caches
        finally:
            turn.give_back()

    def _named(
        self, shape: Shape, ids: list[int], namespace: str
    ) -> tuple[list[Any] | None, Exception | None]:
        from .prefix import restore

        def work(lane: Lane, deadline: Deadline) -> list[Any]:
            return restore(lane, deadline, namespace, shape, ids, self._route)

        restored, miss = self._restore(work)
        self._stats.add(tokens_restored=0 if restored is None else len(ids))
        return restored, miss

    def _by_tokens(self, shape: Shape, ids: list[int], progress: Progress | None) -> list[Any]:
        from .source import Live

        model = self.model_digest
        self._publisher.wait_for(ids)
        parent, caches, miss = self._longest(shape, ids)
        until = self._wait_until()
        turn = self._turn(names_of(model, ids, tokens_of(parent)), until)
        while self._is_wanted(ids, parent, miss) and not turn.hit and turn.wait():
            parent, caches, miss = self._longest(shape, ids)
            if not turn.hit:
                turn = self._turn(names_of(model, ids, tokens_of(parent)), until)
        known = tokens_of(parent)
        done = 0 if caches is None else held(shape, caches, known)
        self._stats.add(tokens_restored=done, fetches_cut=0 < done < known)
        self._publisher.remember(ids[:known])
        if caches is not None and done == len(ids):
            return caches
        try:
            caches, milliseconds = self.prefill(ids, both(turn.renew, progress), caches, done)
            milliseconds *= len(ids) / (len(ids) - done)
            live = Live(shape, caches, len(ids))
            self._publisher.publish_tokens(model, live, ids, known, lambda *_: parent, milliseconds, turn)
            return caches
        finally:
            turn.give_back()

    def _longest(
        self, shape: Shape, ids: list[int], beyond: int = 0
    ) -> tuple[Found | None, list[Any] | None, Exception | None]:
        """What is stored of the tokens, caches that hold it, or why there are none."""
        model, pace = self.model_digest, None if self._always_fetch else self._pace

        def work(lane: Lane, deadline: Deadline) -> tuple[Found, list[Any]]:
            return restore_longest(lane, deadline, model, shape, ids, self._route, pace, self._clock, beyond)

        restored, miss = self._restore(work)
        if isinstance(miss, Declined):
            self._stats.add(fetches_declined=1)
            return miss.found, None, miss
        return (None, None, miss) if restored is None else (*restored, None)

    def _is_wanted(self, ids: list[int], parent: Found | None, miss: Exception | None) -> bool:
        """Whether what is missing would be restored if somebody published it, and is enough to be."""
        answered = miss is None or (isinstance(miss, NotStored) and not isinstance(miss, Declined))
        return answered and len(ids) - tokens_of(parent) >= self._publish_after

    def _wait_until(self) -> float:
        # A prefix that is not going to be published makes nobody wait for it.
        return self._clock() + (self._wait if self._publisher.admission.threshold == 1 else 0.0)

    def _turn(self, names: list[tuple[str, int]], until: float) -> Turn:
        return Turn(self.exchange, names, self._silence, self._clock, until, self._pace.prefill)

    def explain(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """What `get_or_prefill` would find for these tokens, without restoring anything.

        Returns:
            `tokens` and `stored`, how many there are and how many of them are stored; the `namespace` that
            holds them, or None; `model`, this model's digest; `others`, for each other model that has some
            stored, how many, and in what it differs; and a `reason` where nothing is stored or asked.
        """
        ids, shape = token_ids_of(token_ids), self.shape
        if shape is None or not ids:
            return explanation(len(ids), None, None, self._stats.unsupported or "no tokens")
        model, whole = self.model_digest, shape.whole

        def ask(lane: Lane, deadline: Deadline) -> tuple[Found | None, list[Other]]:
            return find(lane, deadline, model, ids, whole=whole), others(lane, deadline, model, ids)

        answered, failure = self.exchange(ask)
        return explanation(len(ids), model, answered, "" if failure is None else reason(failure))

    def restore(self, token_ids: Sequence[int], *, beyond: int = 0) -> tuple[list[Any] | None, int]:
        """The longest stored beginning of some tokens; nothing is prefilled, and nobody is waited for.

        For loops that prefill themselves: give `prefilled` what that took, and `keep` what came of it.

        Args:
            token_ids: The tokens.
            beyond: More than so many must be stored, else nothing is restored.

        Returns:
            Caches as of `get_or_prefill`, and how many of the tokens they hold; None and 0 when nothing is
            restored, and `stats` says why.
        """
        ids = token_ids_of(token_ids)
        if self.shape is None or not ids:
            return None, 0
        found, caches, _ = self._longest(self.shape, ids, beyond)
        known = tokens_of(found)
        self._publisher.remember(ids[:known])
        if caches is None:
            return None, 0
        known = held(self.shape, caches, known)
        self._stats.add(tokens_restored=known)
        return caches, known

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Note what prefilling so many tokens took: it decides what is restored, and is stored."""
        self._stats.add(tokens_prefilled=tokens)
        self._stats.last_prefill_ms = seconds * 1000
        self._pace.prefilled(tokens, seconds)

    def keep(self, token_ids: Sequence[int], caches: Sequence[Any], prefill_ms: float = 0.0) -> bool:
        """Publish caches that were filled elsewhere, as by generating an answer.

        Args:
            token_ids: The tokens that they hold, all of them.
            caches: One for each of the model's; they are read only.
            prefill_ms: What it takes to compute them; 0 takes it from what has been measured.

        Returns:
            Whether they are stored now, or wait to be; `stats` says why not.
        """
        ids, shape = token_ids_of(token_ids), self.shape
        if shape is None or len(ids) < self._publish_after:
            return False
        if (objection := shape.objection(caches, len(ids))) is not None:
            self._stats.last_unpublished = objection
            return False
        if not prefill_ms and self._pace.prefill:
            prefill_ms = len(ids) / self._pace.prefill * 1000
        whole, model = shape.whole, self.model_digest
        from .source import Live

        def parent(lane: Lane, deadline: Deadline) -> Found | None:
            return find(lane, deadline, model, ids, whole=whole)

        live, known = Live(shape, caches, len(ids)), self._publisher.known(ids)
        return self._publisher.publish_tokens(model, live, ids, known, parent, prefill_ms)

    def stats(self) -> dict[str, int | float | str | None]:
        """Counters, milliseconds, bytes moved, and why the last miss or failed publication came about."""
        return self._stats.report(
            self._link.traffic + self._publisher.traffic + self.attend.traffic,
            admission_threshold=self._publisher.admission.threshold,
            bytes_mapped=self._route.mapped_bytes,
            connections=self._route.used,
            last_not_mapped=self._route.not_mapped,
            stores_waiting=self._publisher.waiting,
            prefill_tokens_per_second=self._pace.prefill,
            link_bytes_per_second=self._pace.link,
        )

    def flush(self, timeout: float | None = None) -> bool:
        """Wait, for so many seconds at most, until nothing waits to be published; whether it came to that."""
        return self._publisher.flush(timeout)

    def interrupt(self) -> None:
        """End what another thread asks the server, if anything: its connection is closed.

        It restores nothing then, and prefills: only a progress callback that raises ends that. Publications
        in the background go on.
        """
        self._link.interrupt()

    def close(self) -> None:
        """Publish what waits to be, within the deadline, and close the connections.

        What is not published by then is given up, and counted as skipped. Used again, it connects again.
        """
        self._publisher.close()
        self._link.close()
        self.attend.close()

    def __enter__(self) -> PionPromptCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shape_of(self, model: Any, vquant: str, boundary_protect: int) -> Shape | None:
        from .layout import read_layout
        from .rows import load_kernels
        from .shape import Shape

        try:
            layout = read_layout(model)
        except UnsupportedModel as error:
            self._stats.unsupported = str(error)
            _log.warning("prefixes are not stored: %s", error)
            return None
        plan = plans.make_plan(layout.rows, vquant, boundary_protect)
        load_kernels(layout.rows, plan)
        return Shape(layout, plan, self._attached)

    def prefill(
        self, ids: list[int], progress: Progress | None, caches: list[Any] | None = None, done: int = 0
    ) -> tuple[list[Any], float]:
        """Have the model compute tokens after the first `done`, which `caches` hold; milliseconds it took."""
        from .prefill import default_chunk, prefill

        begin = self._clock()
        chunk = self._chunk or default_chunk()
        caches = prefill(self.model, ids, chunk, progress, caches=caches, done=done, attached=self._attached)
        milliseconds = self._since(begin)
        self.prefilled(len(ids) - done, milliseconds / 1000)
        return caches, milliseconds

    def _restore(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        begin = self._clock()
        found, miss = self.exchange(work)
        self._stats.add(fetch_ms_total=self._since(begin), hits=found is not None, misses=found is None)
        if miss is not None:
            self._stats.last_miss = reason(miss)
        return found, miss

    def exchange(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        """Ask the server: what came of it, or what went wrong, which is counted and never raised."""
        return attempt(self._link, self._stats, work)

    def _since(self, begin: float) -> float:
        return (self._clock() - begin) * 1000
