"""`PionPromptCache`: restore a prefix's K/V instead of prefilling it; publish it after the first prefill."""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import plan as plans
from .attend import AttendQueries
from .attend_link import AttendLink
from .claim import Progress, both
from .deadline import Clock, Deadline
from .endpoint import DEFAULT_PORT, Endpoint
from .errors import Absent, OtherTokens, UnsupportedModel
from .identity import token_ids as token_ids_of
from .lane import Lane, Traffic
from .link import Work
from .pace import Pace
from .prefix_cache import PrefixCache
from .requests import Found
from .reuse import Other, explanation, find, held, others, restore_longest
from .route import LaneName, Route
from .stats import reason
from .tls import Tls

if TYPE_CHECKING:
    from .publish import Filled, Source
    from .shape import Shape

_log = logging.getLogger(__name__)


class PionPromptCache(PrefixCache[list[Any]], AttendQueries):
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
        endpoint = Endpoint.of(host, port, unix_socket_path, username, password, tls, url)
        super().__init__(
            endpoint,
            Route.of(lane, endpoint, connections),
            prefer_unix=lane in ("auto", "map"),
            admission_threshold=admission_threshold,
            publish_after=publish_after,
            background=background,
            always_fetch=always_fetch,
            wait_for_others=wait_for_others,
            waiting_bytes=waiting_bytes,
            deadline=deadline,
            silence=silence,
            connect_timeout=connect_timeout,
            clock=clock,
        )
        self.model = model
        self.softmax_bitexact = softmax_bitexact
        self._chunk = prefill_chunk_size
        self.attend = AttendLink(self._link)
        self._attached = plans.attach(kv_bits, kv_group_size)
        if self._attached is not None:
            if vquant.lower() != plans.AUTO or boundary_protect:
                raise ValueError("kv_bits says how rows are stored: leave vquant and boundary_protect out")
            vquant = self._attached.format
        self.shape = None if model is None else self._shape_of(model, vquant, boundary_protect)
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
        turn = self._turn([(namespace, len(ids))])
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

        restored, miss = self._restored(work)
        self._stats.add(tokens_restored=0 if restored is None else len(ids))
        return restored, miss

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

    def stats(self) -> dict[str, int | float | str | None]:
        """Counters, milliseconds, bytes moved, and why the last miss or failed publication came about."""
        return {
            **super().stats(),
            "admission_threshold": self._publisher.admission.threshold,
        }

    def close(self) -> None:
        """Publish what waits to be, within the deadline, and close the connections.

        What is not published by then is given up, and counted as skipped. Used again, it connects again.
        """
        super().close()
        self.attend.close()

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

    def _fetch(
        self, lane: Lane, deadline: Deadline, shape: Shape, ids: list[int], pace: Pace | None, beyond: int
    ) -> tuple[Found, list[Any]]:
        model = self.model_digest
        return restore_longest(lane, deadline, model, shape, ids, self._route, pace, self._clock, beyond)

    def _held(self, shape: Shape, caches: list[Any], known: int) -> int:
        return held(shape, caches, known)

    def _filled(self, shape: Shape, caches: Sequence[Any], tokens: int) -> Filled:
        from .source import Live

        if (objection := shape.objection(caches, tokens)) is not None:
            raise UnsupportedModel(objection)
        return Live(shape, caches, tokens)

    def _compute(
        self, ids: list[int], progress: Progress | None, caches: list[Any] | None, done: int
    ) -> list[Any]:
        from .prefill import default_chunk, prefill

        chunk = self._chunk or default_chunk()
        return prefill(self.model, ids, chunk, progress, caches=caches, done=done, attached=self._attached)

    def _traffic(self) -> Traffic:
        return super()._traffic() + self.attend.traffic
