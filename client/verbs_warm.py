"""The verb `warm`: have prompts stored before anybody asks for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from .command_line import AsJson, Shown, connected, connects
from .endpoint import Endpoint
from .models import load_model

if TYPE_CHECKING:
    from .prompt_cache import PionPromptCache

COLUMNS = ("prompt", "tokens", "restored", "prefilled", "stored", "problem")


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
    loaded = load_model(model)
    from .prompt_cache import PionPromptCache

    cache = PionPromptCache(loaded.model, tokenizer=loaded.tokenizer, **options)
    rows = []
    with cache, Progress(console=Console(stderr=True), transient=True) as progress:
        for index, prompt in enumerate(progress.track(asked, description="warming")):
            rows.append({"prompt": index, **_warmed(cache, loaded.encode(prompt))})
    Shown(as_json).table(rows, COLUMNS)
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
