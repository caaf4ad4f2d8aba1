"""The model of a verb: one that mlx-lm loads, or that of the demonstration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .command_line import end


@dataclass(frozen=True)
class LoadedModel:
    """A model, and what goes between text and token ids.

    Attributes:
        name: What it was loaded from.
        model: The model.
        tokenizer: Its tokenizer.
        encode: The token ids of a prompt: a text, token ids, or the messages of a chat.
        decode: The text of token ids.
    """

    name: str
    model: Any
    tokenizer: Any
    encode: Callable[[Any], list[int]]
    decode: Callable[[Sequence[int]], str]


def load_model(name: str | None) -> LoadedModel:
    """Load a folder or name as mlx-lm does; None is the model of `pionkv demo`.

    Raises:
        typer.Exit: It cannot be loaded; a line says why.
    """
    from pionkv.kernels.blas import preload_blas

    # Before mlx is imported: it has to find the BLAS that was loaded first.
    preload_blas()
    try:
        return _demo_model() if name is None else _mlx_model(name)
    except ModuleNotFoundError as error:
        reason = f"{error}; install pionkv[mlx]"
    except Exception as error:
        # What a file that is no model makes its readers raise, they do not say.
        reason = f"the model cannot be loaded: {error}"
    end(reason)


def _mlx_model(name: str) -> LoadedModel:
    from mlx_lm import load

    from .prompt_store import PromptStore

    model, tokenizer, *_ = load(name)
    encode = PromptStore(model, tokenizer).tokens
    return LoadedModel(name, model, tokenizer, encode, lambda ids: str(tokenizer.decode(list(ids))))


def _demo_model() -> LoadedModel:
    from .demo import smollm

    loaded = smollm.load()

    def encode(prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return loaded.tokenizer.encode(prompt)
        if isinstance(prompt[0], Mapping):
            return loaded.tokenizer.chat(prompt)
        return list(prompt)

    return LoadedModel(smollm.PACKAGE, loaded.model, loaded.tokenizer, encode, loaded.tokenizer.decode)
