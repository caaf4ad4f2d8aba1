"""`PrefixAttention`: generate with mlx-lm while the prefix's rows stay in the server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .errors import NotStored
from .identity import token_ids
from .reuse import find, name_of

if TYPE_CHECKING:
    from .attended_cache import RemotePrefix, Rows
    from .deadline import Deadline
    from .lane import Lane
    from .prompt_cache import PionPromptCache
    from .shape import Shape


class PrefixAttention:
    """Has the server attend to the rows of a stored prefix: queries cross the wire instead of rows.

    While the context lasts, mlx-lm's models compute attention through this package: over the rows of the
    prefix in the server, over those of later tokens here, merged under one softmax. Layers with windows or
    recurrent states, which hold little, are restored as always. When the server fails in the middle of an
    answer, the rows are fetched or the prefix is prefilled, and the answer goes on.

    Example::

        cache = PionPromptCache(model, tokenizer=tokenizer)
        with PrefixAttention(cache) as attention:
            caches = attention.get_or_prefill(prefix_ids)
            for token, _ in generate_step(mx.array(suffix_ids), model, prompt_cache=caches):
                ...

    Attributes:
        cache: The prompt cache.
        attended: Prefixes of which rows stayed in the server.
        local: Prefixes that were restored or prefilled here instead, from the beginning or after a failure.
        last_local: Why the last of these was.
    """

    def __init__(self, cache: PionPromptCache) -> None:
        """Prepare; nothing is changed before the context is entered.

        Args:
            cache: Where prefixes are found and, in the end, prefilled.

        Raises:
            UnsupportedModel: The model attends in a way that cannot be split: its layers share keys, keep
                quantised caches, or have sinks, masks or windows of their own. The text names it.
            SeamMoved: mlx-lm computes attention in another way than this package knows.
        """
        from .attention_check import check_model

        self.cache = cache
        self.attended = self.local = 0
        self.last_local: str | None = None
        self._shape: Shape = check_model(cache)
        self._seam: AbstractContextManager[None] | None = None

    def __enter__(self) -> PrefixAttention:
        from .attention_check import hooked

        if self._seam is not None:
            raise RuntimeError("the context has been entered already")
        self._seam = hooked()
        self._seam.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._seam is not None:
            self._seam.__exit__(None, None, None)
            self._seam = None

    def get_or_prefill(self, prefix_token_ids: Sequence[int]) -> list[Any]:
        """Caches that hold exactly the prefix, those of its rows that are stored left where they are.

        Tokens after the longest stored prefix are prefilled. When nothing can be attended to, this is
        `PionPromptCache.get_or_prefill`, which publishes what it had to prefill.

        Args:
            prefix_token_ids: The whole prefix. What follows, at least one token, goes to the generation loop.

        Returns:
            The model's caches. They are of use inside the context only, and raise `RuntimeError` elsewhere.

        Raises:
            RuntimeError: The context has not been entered.
        """
        if self._seam is None:
            raise RuntimeError("enter the context first: with PrefixAttention(cache) as attention")
        ids = token_ids(prefix_token_ids)
        found, miss = self.cache.exchange(lambda lane, deadline: self._find(lane, deadline, ids))
        if found is None:
            self._went_local(str(miss))
            return self.cache.get_or_prefill(ids)
        caches, tokens = found
        self.attended += 1
        if tokens < len(ids):
            caches, _ = self.cache.prefill(ids, None, caches, tokens)
        return caches

    def _find(self, lane: Lane, deadline: Deadline, ids: list[int]) -> tuple[list[Any], int]:
        from .attended_cache import AttendedCache, RemotePrefix
        from .prefix import states

        model = self.cache.model_digest
        found = find(lane, deadline, model, ids, whole=True)
        if found is None:
            raise NotStored("not stored")
        known = ids[: found.tokens]
        # Under any other name somebody may put other rows while they are attended to.
        if found.namespace != (name := name_of(model, known)).encode():
            raise NotStored("stored under a name that does not stand for its tokens")
        layout = self._shape.layout
        prefix = RemotePrefix(self.cache, name, found.tokens, lambda: self._rows(prefix, known))
        held = states(lane, deadline, name, layout, found.tokens)
        caches = dict(zip(layout.state_caches, held, strict=True))
        for layer, index in enumerate(layout.row_caches):
            caches[index] = AttendedCache(prefix, index, layer)
        return [caches[index] for index in range(len(caches))], found.tokens

    def _rows(self, prefix: RemotePrefix, ids: list[int]) -> Rows:
        """The rows of the prefix, here: fetched if the server still gives them, else computed."""
        self._went_local(str(prefix.failure))
        caches = self.cache.get_or_prefill(ids)
        held = [caches[index] for index in self._shape.layout.row_caches]
        return [(cache.keys, cache.values) for cache in held]

    def _went_local(self, why: str) -> None:
        self.local += 1
        self.last_local = why
