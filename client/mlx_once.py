"""mlx-lm's generation loop, with prompts put aside that somebody else computes at the time.

One thread serves all requests of a server, so it must not wait. A request whose prompt another request, or
another server, is computing is put aside before mlx-lm sees it, and handed on when that is published, or is
not going to be. What this server computes it claims first: in the store, where all servers see it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm import server

from .claim import Turn

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
"""Between two looks at what a prompt that was put aside waits for."""

Request = tuple[Any, Any, Any]
"""The queue that takes what comes of a request, the request, and its arguments, as mlx-lm has them."""


class Claimed:
    """Stands in for the queue of a request whose prompt is computed under a claim: what is put tells how far.

    Args:
        queue: The request's own.
        turn: The claim.
    """

    def __init__(self, queue: Any, turn: Turn) -> None:
        self._queue = queue
        self._turn = turn
        self._context: Any = None

    def put(self, item: Any) -> None:
        """Keep the claim while the prompt is prefilled, and give it back when the request is over."""
        if isinstance(item, tuple):
            self._turn.renew(*item)
        elif item is None or isinstance(item, Exception):
            self._turn.give_back()
        elif isinstance(item, server.GenerationContext):
            self._context = item
        self._queue.put(item)

    def ends(self) -> bool:
        """Whether nothing is claimed any more; a request that nobody waits for gives its claim back."""
        if self._turn.ours and getattr(self._context, "_should_stop", False):
            self._turn.give_back()
        return not self._turn.ours


@dataclass
class Aside:
    """A request that waits.

    Attributes:
        request: As it came.
        tokenized: What its prompt was made into.
        turn: What it waits for.
        looked: When that was asked for last.
    """

    request: Request
    tokenized: Any
    turn: Turn
    looked: float

    def ends(self, now: float) -> bool:
        """Whether it has waited long enough, or need not wait any more."""
        if self.turn.late:
            return True
        if now - self.looked < LOOK_SECONDS:
            return False
        self.looked = now
        return self.turn.settled()


class Generator(server.ResponseGenerator):  # type: ignore[misc]
    """mlx-lm's; its thread leaves nothing behind: a process that ends with its streams open is aborted.

    Args:
        model_provider: mlx-lm's.
        prompt_cache: The prompt cache; mlx-lm's own where nothing can be stored.
        clock: Source of the time, in seconds.
    """

    def __init__(
        self, model_provider: Any, prompt_cache: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Before mlx-lm's, which starts the thread.
        self._clock = clock
        self._aside: list[Aside] = []
        self._claimed: list[Claimed] = []
        self._tokenized: tuple[Any, Any] | None = None
        super().__init__(model_provider, prompt_cache)

    def _run_generate(self) -> None:
        try:
            super()._run_generate()
        finally:
            mx.clear_streams()

    def _next_request(self, timeout: float | None = None) -> Request | None:
        self._claimed = [each for each in self._claimed if not each.ends()]
        now = self._clock()
        for each in self._aside:
            if each.ends(now):
                self._aside.remove(each)
                return self._begun(each.request, each)
        if self._aside and timeout is not None:
            timeout = min(timeout, LOOK_SECONDS)
        request = super()._next_request(timeout)
        return None if request is None else self._begun(request)

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        made, self._tokenized = self._tokenized, None
        if made is not None and made[0] is request:
            return made[1]
        return super()._tokenize(tokenizer, request, args)

    def _begun(self, request: Request, waited: Aside | None = None) -> Request | None:
        """The request as mlx-lm is to have it; None if it is put aside."""
        queue, asked, args = request
        claim = getattr(self.prompt_cache, "claim", None)
        if claim is None or not self._is_loaded(args.model) or any(server._image_parts(asked.messages)):
            return request
        try:
            tokenizer = self.model_provider.tokenizer
            tokenized = self._tokenize(tokenizer, asked, args) if waited is None else waited.tokenized
        except Exception:
            # mlx-lm meets it, too, and answers it.
            return request
        turn: Turn | None = claim(
            self.model_provider.model_key, tokenized[0], None if waited is None else waited.turn
        )
        if turn is not None and turn.waits and not turn.late:
            if waited is None:
                _log.info("a prompt of %d tokens waits for another that computes it", len(tokenized[0]))
            self._aside.append(Aside(request, tokenized, turn, self._clock()))
            return None
        self._tokenized = asked, tokenized
        if turn is None or not turn.ours:
            return request
        self._claimed.append(Claimed(queue, turn))
        return self._claimed[-1], asked, args

    def _is_loaded(self, wanted: Any) -> bool:
        """Whether a request is for the model that is loaded; another is loaded when its turn comes."""
        provider = self.model_provider
        return bool(
            provider.model_key
            == (
                provider._model_map.get(wanted.model, wanted.model),
                provider._adapter_map.get(wanted.model, wanted.adapter),
                provider._draft_model_map.get(wanted.draft, wanted.draft),
            )
        )
