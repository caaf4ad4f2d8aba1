"""mlx-lm's own HTTP server with a prompt cache that outlives it and is shared: `pionkv mlx-server`.

`mlx_lm.server` keeps the caches of earlier requests in an `LRUPromptCache`, in the memory of one process.
Here that class is replaced by one that also asks a store for the longest stored beginning of a prompt, and
gives it whatever the server keeps. Everything else is mlx-lm's: endpoints, batching, streaming, options.
The seam is no public interface of mlx-lm, so it is looked at before it is used.
"""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import FunctionType
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.models.cache import LRUPromptCache, can_trim_prompt_cache, trim_prompt_cache

from .claim import Turn
from .endpoint import Endpoint
from .mlx_once import Generator
from .prefill import on_cpu
from .prompt_cache import PionPromptCache
from .signals import ended_by_sigterm
from .stats import FAILURES

LEAST_GAIN = 16
"""Tokens that a stored prefix must hold beyond what this process holds itself."""
MOST_PROMPTS = 64
"""Prompts whose prefill is timed at once."""

REPLACED = ("run", "LRUPromptCache", "ResponseGenerator", "stream_generate")
"""Of mlx-lm's server, while it runs here."""

_log = logging.getLogger(__name__)

_PARAMETERS: dict[Callable[..., Any], tuple[str, ...]] = {
    server.run: ("host", "port", "model_provider"),
    LRUPromptCache.__init__: ("self", "max_size"),
    LRUPromptCache.fetch_nearest_cache: ("self", "model", "tokens"),
    LRUPromptCache.insert_cache: ("self", "model", "tokens", "prompt_cache", "cache_type"),
    server.ResponseGenerator._next_request: ("self", "timeout"),
    server.ResponseGenerator._tokenize: ("self", "tokenizer", "request", "args"),
    server.GenerationContext.stop: ("self",),
}


class SeamMoved(RuntimeError):
    """mlx-lm's server does not keep its caches in the way that is known here; the text says where."""


def check_seam() -> None:
    """Look at what is about to be replaced.

    Raises:
        SeamMoved: It is not what it was.
    """
    for function, names in _PARAMETERS.items():
        found = tuple(inspect.signature(function).parameters)[: len(names)]
        if found != names:
            raise _moved(f"{function.__qualname__} takes {', '.join(found)}, not {', '.join(names)}")
    used: tuple[tuple[Any, str], ...] = (
        (server.main, "run"),
        (server.run, "LRUPromptCache"),
        (server.run, "ResponseGenerator"),
        (server.ResponseGenerator.__init__, "_run_generate"),
        (server.ResponseGenerator._generate, "_tokenize"),
        (server.ResponseGenerator._generate, "_image_parts"),
        (server.ResponseGenerator._generate, "fetch_nearest_cache"),
        (server.ResponseGenerator._generate, "insert_cache"),
        (server.ResponseGenerator._serve_single, "fetch_nearest_cache"),
        (server.ResponseGenerator._serve_single, "insert_cache"),
        (server.ResponseGenerator._serve_single, "stream_generate"),
        *((server.ModelProvider.load, name) for name in ("_model_map", "_adapter_map", "_draft_model_map")),
        *(
            (server.ModelProvider.__init__, name)
            for name in ("model", "tokenizer", "model_key", "draft_model")
        ),
    )
    for function, name in used:
        if not isinstance(function, FunctionType) or name not in function.__code__.co_names:
            raise _moved(f"{function.__qualname__} does not use {name}")


def _moved(what: str) -> SeamMoved:
    return SeamMoved(f"mlx-lm {version('mlx-lm')} keeps its caches in another way than this knows: {what}")


class ModelStore:
    """The store of the model that mlx-lm has loaded; another one when it loads another.

    Used by one thread, that which generates. Holds nothing of mlx.

    Args:
        provider: mlx-lm's `ModelProvider`.
        endpoint: Where the store is.
        options: Other options of `PionPromptCache`.
        clock: Source of the time, in seconds.
    """

    def __init__(
        self,
        provider: Any,
        endpoint: Endpoint,
        options: dict[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._options = options
        self._endpoint = endpoint
        self._clock = clock
        self._key: object = None
        self._store: PionPromptCache | None = None
        self._failures = 0
        self._in_use = True
        self._begun: deque[tuple[list[int], int, float]] = deque(maxlen=MOST_PROMPTS)
        self._served: list[int] | None = None
        self._computing: list[tuple[list[int], Turn]] = []

    def claim(self, model: object, tokens: list[int], held: int, after: Turn | None) -> Turn | None:
        """Claim what is missing of a prompt; see `PionPromptCache.claim`."""
        try:
            store = self._store_of(model, tokens)
            if store is None or len(tokens) - held <= LEAST_GAIN:
                return None
            turn = store.claim(tokens[:-1], beyond=held, after=after)
        except Exception:
            self._give_up()
            return None
        self._computing = [each for each in self._computing if each[1].ours]
        if turn is not None and turn.ours:
            self._computing.append((list(tokens), turn))
        return turn

    def restore(self, model: object, tokens: list[int], held: int) -> tuple[list[Any] | None, int]:
        """Caches of more of the tokens than `held`, and how many; or None and `held`."""
        self._served = None
        try:
            return self._restore(model, tokens, held)
        except Exception:
            self._give_up()
            return None, held

    def keep(self, model: object, tokens: list[int], caches: list[Any]) -> None:
        """Publish caches in the background."""
        try:
            store = self._store_of(model, tokens)
            if store is not None:
                self._time(store, tokens)
                store.keep(tokens, caches, turn=self._turn_of(tokens))
        except Exception:
            self._give_up()

    def prefilled(self, caches: list[Any]) -> None:
        """Publish the prompt that is served alone, all but its last token, which the caches hold by now."""
        if self._served is not None:
            self.keep(self._key, self._served[:-1], caches)

    def close(self) -> None:
        """Publish what waits to be, within the deadline."""
        if self._store is not None:
            self._store.close()

    def _restore(self, model: object, tokens: list[int], held: int) -> tuple[list[Any] | None, int]:
        store = self._store_of(model, tokens)
        if store is None or len(tokens) - held <= LEAST_GAIN:
            return None, held
        caches, count = store.restore(tokens[:-1], beyond=held + LEAST_GAIN - 1)
        if caches is not None:
            held = count
            _log.info("%d of %d prompt tokens were restored from the store", count, len(tokens))
        self._tell(store)
        self._served = list(tokens)
        # A prompt that was broken off is not timed by the next one that is alike.
        others = [each for each in self._begun if each[0] != tokens]
        self._begun = deque([*others, (list(tokens), held, self._clock())], MOST_PROMPTS)
        return caches, held

    def _give_up(self) -> None:
        """A mistake of ours must not end the thread that generates for everybody."""
        _log.exception("the store of this model is not used any more")
        self._store = None

    def _store_of(self, model: object, tokens: Sequence[int]) -> PionPromptCache | None:
        """What stores for a model; None where nothing can be: images stand in a prompt as negative ids."""
        if model != self._key:
            self._key, self._store = model, self._made(model)
        return None if any(token < 0 for token in tokens) else self._store

    def _made(self, model: object) -> PionPromptCache | None:
        provider = self._provider
        if provider.model is None or model != provider.model_key:
            return None
        if provider.draft_model is not None:
            _log.warning("prompts are not stored: with a draft model the caches are those of two models")
            return None
        try:
            options = {**vars(self._endpoint), **self._options}
            store = PionPromptCache(provider.model, tokenizer=provider.tokenizer, **options)
        except ValueError as error:
            _log.warning("prompts are not stored: %s", error)
            return None
        _log.info("prompts are stored for model %s", store.model_digest)
        # mlx-lm frees a model before it loads the next: nobody else may hold it.
        store.model = None
        return store

    def _turn_of(self, tokens: list[int]) -> Turn | None:
        """The claim under which these were computed, once they are all that was claimed."""
        for prompt, turn in self._computing:
            if tokens[: len(prompt) - 1] == prompt[:-1]:
                return turn
        return None

    def _time(self, store: PionPromptCache, tokens: list[int]) -> None:
        """Measure how fast prompts are prefilled, by the first caches that are kept of each."""
        for each in self._begun:
            prompt, held, begin = each
            if held < len(tokens) < len(prompt) and prompt[: len(tokens)] == tokens:
                store.prefilled(len(tokens) - held, self._clock() - begin)
                self._begun.remove(each)
                return

    def _tell(self, store: PionPromptCache) -> None:
        """Say once that the store cannot be used, and once that it can again."""
        stats = store.stats()
        failures = sum(int(stats[name] or 0) for name in FAILURES)
        failed, self._failures = failures > self._failures, failures
        if failed and self._in_use:
            _log.warning("the store at %s is not used: %s", self._endpoint, stats["last_miss"])
        if not failed and not self._in_use:
            _log.info("the store at %s is used again", self._endpoint)
        self._in_use = not failed


class StoredPromptCache(LRUPromptCache):  # type: ignore[misc]
    """mlx-lm's prompt cache, with a store behind it.

    What this process holds itself is used as mlx-lm does; the store is asked where it may hold more. A store
    that cannot be used leaves mlx-lm's own behaviour, and a warning.

    Args:
        max_size: Caches that are held in this process, as mlx-lm counts them.
        store: The store.
    """

    def __init__(self, max_size: int, store: ModelStore) -> None:
        super().__init__(max_size)
        self._store = store
        self._nearest: tuple[Any, list[int], list[Any] | None, list[int]] | None = None

    def claim(self, model: Any, tokens: list[int], after: Turn | None = None) -> Turn | None:
        """Claim what neither this process nor the store holds of a prompt; see `PionPromptCache.claim`."""
        caches, rest = self._held(model, tokens)
        turn = self._store.claim(model, tokens, len(tokens) - len(rest), after)
        # Unless it has to wait it is fetched next.
        self._nearest = None if turn is not None and turn.waits else (model, tokens, caches, rest)
        return turn

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> tuple[list[Any] | None, list[int]]:
        """The caches of the longest beginning of a prompt that is known, and the tokens that they lack.

        At least one token is left, which is what generating needs.
        """
        nearest, self._nearest = self._nearest, None
        if nearest is not None and nearest[:2] == (model, tokens):
            caches, rest = nearest[2:]
        else:
            caches, rest = self._held(model, tokens)
        stored, held = self._store.restore(model, tokens, len(tokens) - len(rest))
        return (caches, rest) if stored is None else (stored, tokens[held:])

    def _held(self, model: Any, tokens: list[int]) -> tuple[list[Any] | None, list[int]]:
        """What this process holds, and the tokens that it lacks: at least one."""
        caches, rest = super().fetch_nearest_cache(model, tokens)
        return _leaving_one(caches, rest, tokens)

    def insert_cache(
        self, model: Any, tokens: list[int], prompt_cache: list[Any], *, cache_type: str = "assistant"
    ) -> None:
        """Keep caches here as mlx-lm does, and publish them in the background."""
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        self._store.keep(model, tokens, prompt_cache)


def _leaving_one(
    caches: list[Any] | None, rest: list[int], tokens: list[int]
) -> tuple[list[Any] | None, list[int]]:
    """mlx-lm returns no token to go on with where it holds the whole prompt."""
    if caches is None or rest or not tokens:
        return caches, rest
    if can_trim_prompt_cache(caches) and trim_prompt_cache(caches, 1) == 1:
        return caches, tokens[-1:]
    return None, tokens


def serve(arguments: Sequence[str], endpoint: Endpoint, options: dict[str, Any]) -> None:
    """Run mlx-lm's server until SIGTERM or Ctrl-C.

    Args:
        arguments: Its command line.
        endpoint: Where the store is.
        options: Other options of `PionPromptCache`: the format, deadlines.

    Raises:
        SeamMoved: This version of mlx-lm is another than this knows.
        SystemExit: mlx-lm does not take the arguments, or was asked for its help.
    """
    check_seam()
    if on_cpu():
        # There it runs a C++ compiler, which not every machine has, and gains little.
        mx.disable_compile()
    stores: list[ModelStore] = []
    replaced = {name: getattr(server, name) for name in REPLACED}

    def run(host: str, port: int, model_provider: Any, *more: Any, **named: Any) -> None:
        def prompt_cache(max_size: int = 10) -> LRUPromptCache:
            if not _storable(model_provider.cli_args):
                return LRUPromptCache(max_size)
            stores.append(ModelStore(model_provider, endpoint, _with_bits(options, model_provider)))
            return StoredPromptCache(max_size, stores[-1])

        def stream_generate(
            *given: Any, prompt_cache: Any, prompt_progress_callback: Any, **named: Any
        ) -> Any:
            def progress(done: int, total: int) -> None:
                prompt_progress_callback(done, total)
                if 0 < done == total - 1 and stores:
                    stores[-1].prefilled(prompt_cache)

            own = {"prompt_cache": prompt_cache, "prompt_progress_callback": progress}
            return replaced["stream_generate"](*given, **own, **named)

        server.LRUPromptCache, server.ResponseGenerator = prompt_cache, Generator
        server.stream_generate = stream_generate
        replaced["run"](host, port, model_provider, *more, **named)

    server.run, before = run, sys.argv
    sys.argv = ["pionkv mlx-server", *arguments]
    try:
        with ended_by_sigterm():
            server.main()
    finally:
        sys.argv = before
        for name, value in replaced.items():
            setattr(server, name, value)
        for store in stores:
            store.close()


def _storable(arguments: Any) -> bool:
    if mx.distributed.init().size() > 1:
        _log.warning("prompts are not stored: every process holds a part of the model only")
        return False
    return True


def _with_bits(options: dict[str, Any], provider: Any) -> dict[str, Any]:
    """Caches that are quantised from the first token on are stored packed; those that are later, before."""
    arguments = provider.cli_args
    if arguments.kv_bits is None or arguments.quantized_kv_start > 0:
        return options
    return {**options, "kv_bits": arguments.kv_bits, "kv_group_size": arguments.kv_group_size}
