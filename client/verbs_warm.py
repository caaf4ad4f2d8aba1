"""The verb `warm`: have prompts stored before anybody asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from .command_line import AsJson, Shown, connected, connects, end
from .endpoint import Endpoint

if TYPE_CHECKING:
    from .prompt_cache import PionPromptCache

COLUMNS = ("prompt", "tokens", "restored", "prefilled", "stored", "problem")

Tokens = Callable[[Any], list[int]]
"""The token ids of a prompt."""


@connects
def warm(
    endpoint: Endpoint,
    prompts: Annotated[
        Path, typer.Argument(help="JSON file: a list of texts, lists of token ids, or lists of messages.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Folder or name of a model for mlx-lm; else the model of `pionkv demo`."),
    ] = None,
    kv_bits: Annotated[int | None, typer.Option(help="Keep rows packed in 4 or 8 bits.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prefill what is not stored of some prompts, and store it. Exit status 1 when one is not stored then."""
    asked = _read(prompts)
    with connected(endpoint) as client:
        client.ping()
    options: dict[str, Any] = {
        **vars(endpoint), "kv_bits": kv_bits, "publish_after": 1, "background": False
    }  # fmt: skip
    cache, tokens = _load(model, options)
    rows = []
    with cache, Progress(console=Console(stderr=True), transient=True) as progress:
        for index, prompt in enumerate(progress.track(asked, description="warming")):
            rows.append({"prompt": index, **_warmed(cache, tokens(prompt))})
    Shown(as_json, Console()).table(rows, COLUMNS)
    if not all(row["stored"] for row in rows):
        raise typer.Exit(1)


def _warmed(cache: PionPromptCache, ids: list[int]) -> dict[str, Any]:
    before = cache.stats()
    cache.get_or_prefill(ids)
    after = cache.stats()

    def grown(name: str) -> int:
        return int(after[name] or 0) - int(before[name] or 0)

    restored = grown("tokens_restored")
    stored = restored == len(ids) or grown("stores") == 1
    problem = "" if stored else after["unsupported"] or after["last_unpublished"] or after["last_miss"]
    return {
        "tokens": len(ids),
        "restored": restored,
        "prefilled": grown("tokens_prefilled"),
        "stored": stored,
        "problem": problem,
    }


def _load(model: str | None, options: dict[str, Any]) -> tuple[PionPromptCache, Tokens]:
    """A cache for the model, and what makes token ids of prompts for it."""
    from pionkv.kernels.blas import preload_blas

    # Before mlx is imported: it has to find the BLAS that was loaded first.
    preload_blas()
    try:
        return _demo_model(options) if model is None else _mlx_model(model, options)
    except ModuleNotFoundError as error:
        reason = f"{error}; install pionkv[mlx]"
    except Exception as error:
        # What a file that is no model makes its readers raise, they do not say.
        reason = f"the model cannot be loaded: {error}"
    end(reason)


def _mlx_model(model: str, options: dict[str, Any]) -> tuple[PionPromptCache, Tokens]:
    from mlx_lm import load

    from .prompt_store import PromptStore

    loaded, tokenizer, *_ = load(model)
    store = PromptStore(loaded, tokenizer, **options)
    return store.cache, store.tokens


def _demo_model(options: dict[str, Any]) -> tuple[PionPromptCache, Tokens]:
    from .demo import smollm
    from .prompt_cache import PionPromptCache

    loaded = smollm.load()

    def tokens(prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return loaded.tokenizer.encode(prompt)
        if isinstance(prompt[0], Mapping):
            return loaded.tokenizer.chat(prompt)
        return list(prompt)

    return PionPromptCache(loaded.model, tokenizer=loaded.tokenizer, **options), tokens


def _read(path: Path) -> list[Any]:
    """The prompts of a file.

    Raises:
        typer.BadParameter: It holds something else.
    """
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    if not isinstance(prompts, list):
        raise typer.BadParameter(f"{path}: a list of prompts is expected, not a {type(prompts).__name__}")
    for index, prompt in enumerate(prompts):
        if not _is_prompt(prompt):
            raise typer.BadParameter(
                f"{path}: prompt {index} is no text, list of messages, or list of token ids (0 to 2**32 - 1)"
            )
    return prompts


def _is_prompt(prompt: Any) -> bool:
    if not isinstance(prompt, str | list) or not prompt:
        return False
    if isinstance(prompt, str):
        return True
    return all(isinstance(each, Mapping) and {"role", "content"} <= each.keys() for each in prompt) or all(
        type(each) is int and 0 <= each < 1 << 32 for each in prompt
    )
