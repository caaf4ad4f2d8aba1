"""The verbs of the command line that look into a store: ls, info, match, explain, verify."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import redis
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .endpoint import DEFAULT_PORT, Endpoint

Host = Annotated[str, typer.Option(help="The server's name or address.")]
Port = Annotated[int, typer.Option(help="The server's TCP port.")]
Unix = Annotated[str | None, typer.Option("--unix", help="Path of its Unix socket, instead of both.")]
User = Annotated[str | None, typer.Option(help="User that the password belongs to.")]
Password = Annotated[str | None, typer.Option(envvar="PIONKV_PASSWORD", help="The server's password.")]
Url = Annotated[
    str | None,
    typer.Option(envvar="PIONKV_URL", help="All of these as one address; rediss://host:port is TLS."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Tokens = Annotated[str | None, typer.Option(help="Token ids, separated by commas.")]
TokenFile = Annotated[Path | None, typer.Option("--file", help="JSON file with a list of token ids.")]
Model = Annotated[str, typer.Option(help="Digest of the model; see PionPromptCache.model_digest.")]

SCAN_COUNT = 256


@dataclass(frozen=True)
class Shown:
    """Where a verb's answer goes: JSON, or tables."""

    as_json: bool
    console: Console

    def table(self, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
        """Rows of the same fields."""
        if self.as_json:
            typer.echo(json.dumps(rows))
            return
        table = Table(*columns)
        for row in rows:
            table.add_row(*(_text(row.get(column)) for column in columns))
        self.console.print(table)

    def fields(self, values: Mapping[str, Any]) -> None:
        """One thing's fields."""
        if self.as_json:
            typer.echo(json.dumps(values))
            return
        table = Table("field", "value")
        for name, value in values.items():
            table.add_row(name, _text(value))
        self.console.print(table)


def endpoint_of(
    host: str, port: int, unix: str | None, user: str | None, password: str | None, url: str | None
) -> Endpoint:
    """Where the server is, by the options or by the address.

    Raises:
        typer.BadParameter: It is no address, or a file that it names cannot be used.
    """
    try:
        return Endpoint(host, port, unix, user, password) if url is None else Endpoint.from_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[redis.Redis]:
    """A connection; what goes wrong with it ends the program with a line that says what."""
    client = redis.Redis(**endpoint.redis_options, socket_timeout=60)
    try:
        yield client
    except redis.RedisError as error:
        typer.echo(f"pionkv: {endpoint}: {error}", err=True)
        raise typer.Exit(1) from error
    finally:
        client.close()


def ls(
    pattern: Annotated[str, typer.Argument(help="Names to show; * and ? as usual.")] = "*",
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    unix: Unix = None,
    user: User = None,
    password: Password = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List prefixes: whether each can be restored, its tokens, bytes and hits."""
    columns = ("namespace", "answer", "tokens", "layers", "bytes", "hits", "pins", "reason")
    with connected(endpoint_of(host, port, unix, user, password, url)) as client:
        rows = [{"namespace": _name(name), **found} for name, found in _all(client, pattern)]
    Shown(as_json, Console()).table(rows, columns)


def info(
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    unix: Unix = None,
    user: User = None,
    password: Password = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Figures about the store: what it holds, what it saved, what it takes."""
    with connected(endpoint_of(host, port, unix, user, password, url)) as client:
        sections = ("server", "memory", "stats", "pion")
        found = {name: value for section in sections for name, value in _lines(client, section).items()}
    Shown(as_json, Console()).fields(found)


def match(
    tokens: Tokens = None,
    file: TokenFile = None,
    model: Model = "",
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    unix: Unix = None,
    user: User = None,
    password: Password = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Find the longest stored prefix of some tokens. Exit status 1 when there is none."""
    ids = token_ids(tokens, file)
    with connected(endpoint_of(host, port, unix, user, password, url)) as client:
        found: Any = client.execute_command("KV.PREFIX.MATCH", ids, "MODEL", model)
    asked = len(ids) // 4
    if found is None:
        Shown(as_json, Console()).fields({"namespace": None, "tokens": 0, "asked": asked})
        raise typer.Exit(1)
    name, count, generation = found
    Shown(as_json, Console()).fields(
        {"namespace": _name(name), "tokens": count, "asked": asked, "generation": generation}
    )


def explain(
    namespace: Annotated[str, typer.Argument(help="The prefix.")],
    tokens: Tokens = None,
    file: TokenFile = None,
    model: Model = "",
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    unix: Unix = None,
    user: User = None,
    password: Password = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Say why a prefix would hit or miss, and with tokens, where it differs from these."""
    option = ("TOKENS", token_ids(tokens, file)) if tokens or file else ()
    of_model = ("MODEL", model) if model else ()
    with connected(endpoint_of(host, port, unix, user, password, url)) as client:
        found = client.execute_command("KV.PREFIX.EXPLAIN", namespace, *option, *of_model)
    Shown(as_json, Console()).fields(_map(found))


def verify(
    namespaces: Annotated[list[str] | None, typer.Argument(help="Prefixes; all when none is given.")] = None,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    unix: Unix = None,
    user: User = None,
    password: Password = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Read prefixes and check every digest again. Exit status 1 when one fails."""
    with connected(endpoint_of(host, port, unix, user, password, url)) as client:
        names: list[bytes | str] = [*(namespaces or _names(client, "*"))]
        rows = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for name in progress.track(names, description="verifying"):
                rows.append({"namespace": _name(name), **_verified(client, name)})
    Shown(as_json, Console()).table(rows, ("namespace", "bytes", "problem"))
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


def token_ids(tokens: str | None, file: Path | None) -> bytes:
    """The ids of `--tokens` or `--file` as they go over the wire.

    Raises:
        typer.BadParameter: They are no token ids.
    """
    try:
        if file is not None:
            ids = json.loads(file.read_text(encoding="utf-8"))
        else:
            ids = [int(token) for token in (tokens or "").split(",") if token.strip()]
        return np.asarray(ids, "<u4").tobytes()
    except (OSError, ValueError, TypeError, OverflowError) as error:
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


def _text(value: Any) -> str:
    return "" if value is None else str(value)
