"""The verbs of the command line that look into a store: ls, info, match, explain, verify."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import redis
import typer
from rich.console import Console
from rich.progress import Progress

from .command_line import AsJson, Shown, connected, connects, opened
from .deadline import Deadline
from .endpoint import Endpoint
from .identity import token_ids as checked
from .requests import tokens_of
from .reuse import find, others

Tokens = Annotated[str | None, typer.Option(help="Token ids, separated by commas.")]
TokenFile = Annotated[Path | None, typer.Option("--file", help="JSON file with a list of token ids.")]
Model = Annotated[str, typer.Option(help="Digest of the model; see PionPromptCache.model_digest.")]

SCAN_COUNT = 256
SECONDS = 60.0
MEANINGS = {
    "absent": "nothing was stored under this name, or it is long gone",
    "incomplete": "its sides do not hold the same rows in the same layers",
}
"""What reasons of the server's say, for those that are one word."""
SECTIONS = ("server", "memory", "stats", "pion")


@connects
def ls(
    endpoint: Endpoint,
    pattern: Annotated[str, typer.Argument(help="Names to show; * and ? as usual.")] = "*",
    as_json: AsJson = False,
) -> None:
    """List prefixes: whether each can be restored, its tokens, bytes and hits."""
    columns = ("namespace", "answer", "tokens", "layers", "bytes", "hits", "pins", "reason")
    with connected(endpoint) as client:
        rows = [{"namespace": _name(name), **found} for name, found in _all(client, pattern)]
    empty = "nothing is stored" if pattern == "*" else f"no prefix is called {pattern}"
    Shown(as_json).table(rows, columns, empty=empty)


@connects
def info(
    endpoint: Endpoint,
    as_json: AsJson = False,
) -> None:
    """Figures about the store: what it holds, what it saved, what it takes."""
    with connected(endpoint) as client:
        found = {section: _lines(client, section) for section in SECTIONS}
    shown = Shown(as_json)
    if as_json:
        shown.fields({name: value for lines in found.values() for name, value in lines.items()})
        return
    for section, lines in found.items():
        shown.fields(lines, section)


@connects
def match(
    endpoint: Endpoint,
    tokens: Tokens = None,
    file: TokenFile = None,
    model: Model = "",
    as_json: AsJson = False,
) -> None:
    """Find the longest stored prefix of some tokens. Exit status 1 when there is none."""
    ids = token_ids(tokens, file)
    with connected(endpoint) as client:
        found: Any = client.execute_command("KV.PREFIX.MATCH", ids, "MODEL", model)
    asked = len(ids) // 4
    if found is None:
        Shown(as_json).fields({"namespace": None, "tokens": 0, "asked": asked})
        raise typer.Exit(1)
    name, count, generation = found
    Shown(as_json).fields(
        {"namespace": _name(name), "tokens": count, "asked": asked, "generation": generation}
    )


@connects
def explain(
    endpoint: Endpoint,
    namespace: Annotated[
        str | None, typer.Argument(help="The prefix; without one, what is stored of the tokens.")
    ] = None,
    tokens: Tokens = None,
    file: TokenFile = None,
    model: Model = "",
    as_json: AsJson = False,
) -> None:
    """Say why a prefix, or some tokens, would hit or miss, and where or in what they differ."""
    shown = Shown(as_json)
    if namespace is None:
        shown.fields(_explained(endpoint, token_ids(tokens, file), model))
        return
    option = ("TOKENS", token_ids(tokens, file)) if tokens or file else ()
    of_model = ("MODEL", model) if model else ()
    with connected(endpoint) as client:
        found = _map(client.execute_command("KV.PREFIX.EXPLAIN", namespace, *option, *of_model))
    if not as_json:
        found |= {"meaning": MEANINGS.get(found.get("reason", ""), ""), "used": _when(found.get("used"))}
        found = {name: value for name, value in found.items() if value not in ("", None)}
    shown.fields(found)


def _explained(endpoint: Endpoint, ids: bytes, model: str) -> dict[str, Any]:
    """What is stored of some tokens, under a model and under others."""
    asked = np.frombuffer(ids, "<u4").tolist()
    deadline = Deadline(SECONDS, SECONDS)
    with opened(endpoint, deadline) as lane:
        found = find(lane, deadline, model, asked, whole=False)
        elsewhere = others(lane, deadline, model, asked)
    return {
        "asked": len(asked),
        "stored": tokens_of(found),
        "namespace": None if found is None else _name(found.namespace),
        "others": [
            {"model": each.model, "stored": each.tokens, "differs": ", ".join(each.fields)}
            for each in elsewhere
        ],
    }


def _when(stamp: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp)) if isinstance(stamp, int) else ""


@connects
def verify(
    endpoint: Endpoint,
    namespaces: Annotated[list[str] | None, typer.Argument(help="Prefixes; all when none is given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read prefixes and check every digest again. Exit status 1 when one fails."""
    with connected(endpoint) as client:
        names: list[bytes | str] = [*(namespaces or _names(client, "*"))]
        rows = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for name in progress.track(names, description="verifying"):
                rows.append({"namespace": _name(name), **_verified(client, name)})
    shown = rows if as_json else [{**row, "problem": row["problem"] or "none"} for row in rows]
    Shown(as_json).table(shown, ("namespace", "bytes", "problem"), empty="nothing is stored")
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


def token_ids(tokens: str | None, file: Path | None) -> bytes:
    """The ids of `--tokens` or `--file` as they go over the wire.

    Raises:
        typer.BadParameter: They are no token ids, or not given.
    """
    if file is None and not (tokens or "").strip(" ,"):
        raise typer.BadParameter("give --tokens 1,2,3 or --file ids.json")
    try:
        if file is not None:
            ids = json.loads(file.read_text(encoding="utf-8"))
        else:
            ids = [int(token) for token in (tokens or "").split(",") if token.strip()]
        return np.asarray(checked(ids), "<u4").tobytes()
    except (OSError, ValueError, TypeError) as error:
        raise typer.BadParameter(f"token ids are integers from 0 to 2**32 - 1: {error}") from error


def _names(client: redis.Redis, pattern: str) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        found: Any = client.execute_command("KV.PREFIX.SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        cursor, names = found
        yield from names
        if cursor == b"0":
            return


def _all(client: redis.Redis, pattern: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Names, and what EXPLAIN says of each."""
    names = list(_names(client, pattern))
    for start in range(0, len(names), SCAN_COUNT):
        batch = names[start : start + SCAN_COUNT]
        pipeline = client.pipeline(transaction=False)
        for name in batch:
            pipeline.execute_command("KV.PREFIX.EXPLAIN", name)
        yield from zip(batch, map(_map, pipeline.execute()), strict=True)


def _verified(client: redis.Redis, name: bytes | str) -> dict[str, Any]:
    try:
        return {"bytes": client.execute_command("KV.PREFIX.VERIFY", name), "problem": ""}
    except redis.ResponseError as error:
        return {"bytes": 0, "problem": str(error)}


def _lines(client: redis.Redis, section: str) -> dict[str, Any]:
    found: Any = client.info(section)
    return dict(found)


def _map(reply: Any) -> dict[str, Any]:
    """A map of RESP2 or RESP3, with texts as keys."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_name(key): _plain(value) for key, value in pairs}


def _plain(value: Any) -> Any:
    return _name(value) if isinstance(value, bytes) else value


def _name(name: bytes | str) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
