"""The verb `validate`: what each format costs and changes on a model, as figures and as answers."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pionkv.kernels.formats import LAYER_FORMATS, keys_format
from rich.console import Console

from .command_line import AsJson, Shown, connected, connects, end
from .demo.conversation import handbook, questions
from .endpoint import Endpoint
from .errors import StoreError
from .measured import machine
from .models import LoadedModel, load_model

COLUMNS = ("format", "stored", "resident", "ratio", "first", "rate", "same", "output")
_OF_KEYS = {keys_format(name) for name in LAYER_FORMATS if keys_format(name) != name}
NAMES = [name for name in LAYER_FORMATS if name not in _OF_KEYS]
"""Formats that can be asked for; some bring another for the keys."""
NOT_MEASURED = (
    "other models, devices and batch sizes",
    "answers longer than those asked",
    "attention over packed rows: rows are unpacked before",
    "memory of the model's process",
)


@connects
def validate(
    endpoint: Endpoint,
    model: Annotated[
        str | None,
        typer.Option(help="Folder or name of a model for mlx-lm; else the model of `pionkv demo`."),
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="Text file of the prefix; else the handbook of the demonstration.")
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option(help="What is asked after it, one a round; may be given repeatedly.")
    ] = None,
    format: Annotated[
        list[str] | None, typer.Option(help="A format to measure; may be given repeatedly. Else all.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="The longer prefix's tokens, at most; the other has half.", min=2)
    ] = 512,
    answer_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 16,
    rounds: Annotated[int, typer.Option(help="Rounds; fewer than 5 say little.", min=1)] = 5,
    results: Annotated[Path, typer.Option(help="File that the figures are written to.")] = Path(
        "results.json"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure what every format takes, how fast it is restored, and what it changes in answers.

    Exit status 1 when an exact format changes an answer, or nothing could be measured.
    """
    unknown = [name for name in format or () if name not in NAMES]
    if unknown:
        raise typer.BadParameter(f"no format is called {', '.join(unknown)}: {', '.join(NAMES)}")
    try:
        text = handbook() if prompt is None else prompt.read_text(encoding="utf-8")
        _check_writable(results)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    with connected(endpoint) as client:
        client.ping()
    before, loaded = machine(), load_model(model)
    from .prefill import default_chunk
    from .validate import Asked, validate

    prefix = loaded.encode(text)[:tokens]
    if len(prefix) < 2:
        end(f"the prefix has {len(prefix)} tokens, at least 2 are needed")
    asked = Asked(
        [prefix[: len(prefix) // 2], prefix],
        [_suffix(loaded, each) for each in question or questions()[:rounds]],
        format or NAMES,
        answer_tokens,
        rounds,
    )
    console = Console(stderr=True)
    try:
        with console.status("measuring") as status:
            records = validate(loaded.model, loaded.decode, endpoint, asked, status.update)
    except StoreError as error:
        end(f"{endpoint}: {error}")
    report = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": before,
        "versions": {name: version(name) for name in ("pionkv", "mlx", "mlx-lm", "numpy")},
        "model": loaded.name,
        "prefill_chunk": default_chunk(),
        "answer_tokens": answer_tokens,
        "rounds": rounds,
        "interleaved": True,
        "not_measured": list(NOT_MEASURED),
        "results": records,
    }
    results.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = Shown(as_json)
    if as_json:
        shown.fields(report)
    else:
        for length in map(len, asked.prefixes):
            of_length = [each for each in records if each["tokens"] == length]
            shown.table([_row(each) for each in of_length], COLUMNS, title=_title(of_length))
        typer.echo("stored, resident: bytes; first: seconds to the first token; rate: tokens a second")
        typer.echo(f"written to {results}")
    measured = [each for each in records if not each["problem"]]
    if not measured or any(each["format"] in _exact(loaded) and not _same(each) for each in measured):
        raise typer.Exit(1)


def _check_writable(path: Path) -> None:
    """Raises `OSError` unless a file can be written there; leaves none that was not there."""
    if path.exists():
        path.open("a").close()
    else:
        path.touch()
        path.unlink()


def _suffix(loaded: LoadedModel, question: str) -> list[int]:
    """A question's tokens; the prefix has those that open a text."""
    bos = getattr(loaded.tokenizer, "bos_token_id", None)
    ids = loaded.encode(f"\n\n{question}\n")
    return ids[1:] if bos is not None and ids[:1] == [bos] else ids


def _exact(loaded: LoadedModel) -> set[str]:
    """Formats that keep the model's elements by their bits."""
    from .layout import read_layout
    from .plan import make_plan

    plan = make_plan(read_layout(loaded.model).rows)
    return {spec.format for spec in (*plan.keys, *plan.values)}


def _same(record: dict[str, Any]) -> bool:
    return bool(record["identical"] == record["answers"])


def _row(record: dict[str, Any]) -> dict[str, Any]:
    if record["problem"]:
        return {**record, "output": record["problem"]}
    rate = record["tokens_per_second"]
    return {
        "format": record["format"],
        "stored": record["stored_bytes"],
        "resident": record["resident_bytes"],
        "ratio": record["ratio"],
        "first": record["first_token_seconds"]["median"],
        "rate": None if rate is None else rate["median"],
        "same": f"{record['identical']} of {record['answers']}",
        "output": "".join(letter if letter.isprintable() else " " for letter in record["output"]),
    }


def _title(records: list[dict[str, Any]]) -> str:
    measured = [each for each in records if not each["problem"]]
    title = f"{records[0]['tokens']} tokens"
    if not measured:
        return title
    first = measured[0]["first_token_seconds_uncached"]["median"]
    return f"{title}: {measured[0]['fp16_bytes']:,} bytes in fp16, first token un-cached after {first} s"
