"""`PromptStore`: generate text with mlx-lm, with every prompt's longest stored beginning restored."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .identity import token_ids
from .prompt_cache import PionPromptCache

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or the messages of a chat."""


class PromptStore:
    """mlx-lm's `generate` and `stream_generate` on prompts whose beginnings are kept in a store.

    Example::

        store = PromptStore(model, tokenizer)
        for response in store.stream([{"role": "user", "content": "Why?"}], max_tokens=100):
            print(response.text, end="")

    Attributes:
        cache: The prompt cache that is asked.
    """

    def __init__(self, model: Any, tokenizer: Any, *, keep_answers: bool = True, **options: Any) -> None:
        """Prepare.

        Args:
            model: An mlx-lm model.
            tokenizer: Its tokenizer, mlx-lm's wrapper or what it wraps.
            keep_answers: Publish answers with their prompts, so that a conversation's next turn finds both.
            options: As `PionPromptCache`: where the server is, formats, deadlines.
        """
        from mlx_lm.tokenizer_utils import TokenizerWrapper

        self.model = model
        self.keep_answers = keep_answers
        self.tokenizer = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
        self.cache = PionPromptCache(model, tokenizer=tokenizer, **options)

    def tokens(self, prompt: Prompt, *, prefix: Sequence[int] = ()) -> list[int]:
        """The token ids of a prompt as it is put through the model.

        Args:
            prompt: Text gets the tokenizer's special tokens unless it begins with them, messages the chat
                template.
            prefix: Token ids that go before; then `prompt` gets no special tokens of its own.

        Warns:
            UserWarning: Token ids given begin with two BOS, or with one after a prefix. They are left so.
        """
        bos = getattr(self.tokenizer, "bos_token_id", None)
        before = token_ids(prefix)
        if isinstance(prompt, str):
            ids = self._encode(prompt, special=not before)
        elif len(prompt) and isinstance(prompt[0], Mapping):
            ids = list(self.tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True))
        else:
            ids = token_ids(prompt)  # type: ignore[arg-type]
        if bos is not None:
            if before and ids[:1] == [bos]:
                warnings.warn("the prompt after the prefix begins with BOS, too", stacklevel=2)
            elif ids[:2] == [bos, bos]:
                warnings.warn("the prompt begins with BOS twice", stacklevel=2)
        return before + ids

    def stream(self, prompt: Prompt, *, prefix: Sequence[int] = (), **options: Any) -> Iterator[Any]:
        """Generate as mlx-lm's `stream_generate`.

        All tokens but the last are restored or prefilled, and kept; the last goes through the model here.

        Args:
            prompt: See `tokens`.
            prefix: See `tokens`.
            options: As `stream_generate`: max_tokens, sampler, logits_processors and so on.

        Yields:
            mlx-lm's `GenerationResponse`.

        Raises:
            ValueError: The prompt is empty.
        """
        from mlx_lm.generate import stream_generate

        ids = self.tokens(prompt, prefix=prefix)
        if not ids:
            raise ValueError("the prompt is empty")
        caches = self.cache.get_or_prefill(ids[:-1])
        for response in stream_generate(self.model, self.tokenizer, ids[-1:], prompt_cache=caches, **options):
            ids.append(int(response.token))
            yield response
        if self.keep_answers:
            self.cache.keep(ids, caches)

    def generate(self, prompt: Prompt, *, prefix: Sequence[int] = (), **options: Any) -> str:
        """The text that `stream` yields."""
        return "".join(response.text for response in self.stream(prompt, prefix=prefix, **options))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing waits to be published; as `PionPromptCache.flush`."""
        return self.cache.flush(timeout)

    def close(self) -> None:
        """Publish what waits to be, within the deadline, and close the connections. Usable again."""
        self.cache.close()

    def __enter__(self) -> PromptStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, text: str, *, special: bool) -> list[int]:
        bos = getattr(self.tokenizer, "bos_token", None)
        special = special and (bos is None or not text.startswith(bos))
        return list(self.tokenizer.encode(text, add_special_tokens=special))
