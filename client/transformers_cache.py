"""`TransformersCache`: prefixes of transformers' `DynamicCache` in a store. Imports torch when it is made."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import plan as plans
from .buffers import KEPT_BYTES, Buffers
from .claim import Progress
from .deadline import Clock, Deadline
from .endpoint import DEFAULT_PORT, Endpoint
from .errors import UnsupportedModel
from .identity import token_ids as token_ids_of
from .lane import Lane
from .pace import Pace, Watch
from .prefix_cache import PrefixCache
from .requests import Found
from .reuse import find_worth
from .route import LaneName, Route
from .shape import Shape

if TYPE_CHECKING:
    from transformers import DynamicCache

    from .publish import Filled

_log = logging.getLogger(__name__)


class TransformersCache(PrefixCache["DynamicCache"]):
    """The longest stored prefix of some tokens as a `DynamicCache`, for models of transformers.

    Layers are kept as rows, bfloat16 and float16 and float32 by their bits. A model with a layer of another
    kind, as sliding windows or states, is refused by the name of that kind, and computes. Thread-safe.

    Attributes:
        buffers: The memory that restored rows come in.

    Example::

        store = TransformersCache(model, tokenizer)
        answer = store.generate(ids, max_new_tokens=100)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        url: str = f"redis://127.0.0.1:{DEFAULT_PORT}",
        lane: LaneName = "auto",
        connections: int | None = None,
        vquant: str = plans.AUTO,
        full_fingerprint: bool = False,
        publish_after: int = 16,
        background: bool = True,
        always_fetch: bool = False,
        wait_for_others: float = 60.0,
        prefill_chunk_size: int | None = None,
        waiting_bytes: int = 1 << 30,
        deadline: float = 10.0,
        silence: float = 2.0,
        connect_timeout: float = 0.5,
        kept_bytes: int = KEPT_BYTES,
        clock: Clock = time.monotonic,
    ) -> None:
        """Look at the model; one token is put through it. The server is not asked before it is needed.

        Args:
            model: A causal model of transformers.
            tokenizer: Its tokenizer: part of what identifies a prefix.
            url: Where the server is; see `Endpoint.from_url`.
            lane: How rows come, see `route`; "auto" takes the fastest that there is.
            connections: Over how many connections a large prefix comes at once; None is half of this
                machine's cores, 4 at most.
            vquant: Format of the stored rows; "auto" restores the same bits.
            full_fingerprint: Read every byte of the weights for the fingerprint, instead of samples.
            publish_after: A prefix is published when at least so many of its tokens are new.
            background: Publish beside the generation, from a copy; False publishes before a call returns.
            always_fetch: Restore what is stored even where prefilling it has been measured to be faster.
            wait_for_others: Seconds to wait, at most, for another process that computes the same prefix.
            prefill_chunk_size: Tokens put through the model at once; 2,048 by default.
            waiting_bytes: Bytes that what waits to be published may take.
            deadline: Seconds that a restore, or a publication, may take in all.
            silence: Seconds without a byte moving after which the server counts as hung.
            connect_timeout: Seconds within which a new connection must have answered.
            kept_bytes: Bytes of memory of restored rows that are kept for the next ones, at most.
            clock: Source of the time, in seconds.

        Raises:
            ModuleNotFoundError: torch or transformers is not installed.
            UnknownFormat: There is no format of that name.
            FormatError: The format cannot hold the model's rows.
            ValueError: The address or the lane is none, or a number is out of its range.
        """
        try:
            from . import torch_model
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}; install pionkv[transformers]", name=error.name) from error
        endpoint = Endpoint.from_url(url)
        super().__init__(
            endpoint,
            Route.of(lane, endpoint, connections),
            prefer_unix=lane in ("auto", "map"),
            admission_threshold=1,
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
        self.buffers = Buffers(kept_bytes)
        self._torch = torch_model
        self._model = model
        self._chunk = prefill_chunk_size or torch_model.CHUNK
        self.shape = self._shape_of(vquant)
        self._digest = ""
        if self.shape is not None:
            named = {"caches": self.shape.layout, "format": (self.shape.plan, None)}
            self._digest = torch_model.identify(model, tokenizer, **named, full=full_fingerprint).digest

    @property
    def model_digest(self) -> str:
        """What stands for model, tokenizer and formats in the store; empty when nothing can be stored."""
        return self._digest

    def get_or_prefill(
        self, token_ids: Sequence[int], *, prompt_progress_callback: Progress | None = None
    ) -> DynamicCache:
        """A cache that holds the tokens: what is stored is restored, the rest computed and published.

        Once both have been measured, what is computed faster than it is fetched is not fetched. What another
        process computes at the time is waited for, see `wait_for_others`.

        Args:
            token_ids: The tokens. At least one more is needed to generate.
            prompt_progress_callback: Called after each computed chunk, with the tokens done and all tokens.
        """
        ids = token_ids_of(token_ids)
        if self.shape is None or not ids:
            return self.prefill(ids, prompt_progress_callback)[0]
        return self._by_tokens(self.shape, ids, prompt_progress_callback)

    def generate(self, token_ids: Sequence[int], *, keep_answer: bool = True, **options: Any) -> Any:
        """The model's `generate` with all tokens but the last restored or computed.

        Args:
            token_ids: The prompt.
            keep_answer: Publish the answer with the prompt, so that a conversation's next turn finds both.
            options: As the model's `generate`.

        Returns:
            What the model's `generate` returns.

        Raises:
            ValueError: The prompt is empty.
        """
        ids = token_ids_of(token_ids)
        if not ids:
            raise ValueError("the prompt is empty")
        cache = self.get_or_prefill(ids[:-1])
        answer = self._torch.generate(self._model, ids, cache, options)
        if keep_answer:
            tokens = answer if hasattr(answer, "shape") else answer.sequences
            # The last token has not been put through the model.
            self.keep(tokens[0, :-1].tolist(), cache)
        return answer

    def close(self) -> None:
        """As `PionPromptCache.close`, and give back the memory that is kept."""
        super().close()
        self.buffers.release()

    def _fetch(
        self, lane: Lane, deadline: Deadline, shape: Shape, ids: list[int], pace: Pace | None, beyond: int
    ) -> tuple[Found, DynamicCache]:
        from .head_rows import fetch_heads

        found = find_worth(lane, deadline, self.model_digest, shape, ids, pace, beyond)
        begin = self._clock()
        watch = None if pace is None else Watch(pace, shape.plan.bytes(1), found.tokens, self._clock)
        where = (lane, deadline, found.namespace, shape, found.tokens)
        tokens, arrays = fetch_heads(*where, self._route, watch, found.generation, self.buffers)
        cache = self._torch.cache_of(self._model, shape.layout, self._devices, arrays)
        self._pace.fetched(shape.plan.bytes(tokens), self._clock() - begin)
        return found, cache

    def _held(self, shape: Shape, caches: DynamicCache, known: int) -> int:
        return int(caches.get_seq_length())

    def _filled(self, shape: Shape, caches: DynamicCache, tokens: int) -> Filled:
        return self._torch.filled(shape, caches, tokens)

    def _compute(
        self, ids: list[int], progress: Progress | None, caches: DynamicCache | None, done: int
    ) -> DynamicCache:
        from transformers import DynamicCache

        if caches is None:
            caches = DynamicCache(config=self._model.config)
        self._torch.run(self._model, ids, caches, done, progress, self._chunk)
        return caches

    def _shape_of(self, vquant: str) -> Shape | None:
        try:
            layout, self._devices = self._torch.read_layout(self._model)
        except UnsupportedModel as error:
            self._stats.unsupported = str(error)
            _log.warning("prefixes are not stored: %s", error)
            return None
        return Shape(layout, plans.make_plan(layout.rows, vquant))
