"""A tokenizer built from the metadata of a GGUF file, with its chat template."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

SPECIAL = 3  # tokenizer.ggml.token_type of a control token

Message = Mapping[str, str]


class GgufTokenizer:
    """Byte-level BPE as the metadata describe it.

    Attributes:
        eos_id: The token that ends an answer.
        chat_template: The template of a conversation.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Build the tokenizer.

        Args:
            metadata: The metadata of `mx.load(path, return_metadata=True)`.

        Raises:
            ValueError: The file describes a tokenizer of another kind.
        """
        kind = (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"])
        if kind != ("gpt2", "smollm"):
            raise ValueError(f"tokenizer {kind[0]!r} with pre-tokenizer {kind[1]!r} is not supported")
        self.eos_id = int(metadata["tokenizer.ggml.eos_token_id"].item())
        self._tokenizer = _byte_level_bpe(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.merges"],
            metadata["tokenizer.ggml.token_type"].tolist(),
        )
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self.chat_template = str(metadata["tokenizer.chat_template"])
        self._template = environment.from_string(self.chat_template)

    def save(self, folder: Path) -> None:
        """Write it as `transformers` reads it, and so mlx-lm: `tokenizer.json` and its configuration."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        described = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": self.chat_template,
            "eos_token": self._tokenizer.id_to_token(self.eos_id),
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; the text of a special token becomes that token."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def chat(self, messages: Sequence[Message], *, answer: bool = True) -> list[int]:
        """Token ids of a conversation in the model's template.

        Args:
            messages: Each has a "role" and a "content".
            answer: End with the header of the assistant's turn.
        """
        return self.encode(self._template.render(messages=messages, add_generation_prompt=answer))


def _byte_level_bpe(tokens: list[str], merges: list[str], types: list[int]) -> tokenizers.Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == SPECIAL
        ]
    )
    return tokenizer
