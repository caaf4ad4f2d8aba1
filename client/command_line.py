"""What the verbs of the command line share: where the server is, and how an answer is shown."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NoReturn

import redis
import typer
from rich.console import Console, JustifyMethod
from rich.table import Table

from .deadline import Deadline
from .endpoint import DEFAULT_PORT, Endpoint
from .errors import ConnectionLost, ServerRefused, StoreError
from .lane import Lane

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

RUNNING = "Is `pionkv serve` running there?"
PASSWORD = "(--user, --password or PIONKV_PASSWORD)"
WIDE = 10_000
"""Columns of what is not a terminal: who reads it, such as grep, wants a row on one line."""

ENDPOINT = "endpoint"
"""The parameter of a verb that `connects` fills."""


def endpoint_of(
    host: Annotated[
        str | None, typer.Option(help="The server's name or address.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The server's TCP port.", show_default=str(DEFAULT_PORT), min=1, max=65535),
    ] = None,
    unix: Annotated[str | None, typer.Option("--unix", help="Path of its Unix socket, instead.")] = None,
    user: Annotated[str | None, typer.Option(help="User that the password belongs to.")] = None,
    password: Annotated[
        str | None, typer.Option(envvar="PIONKV_PASSWORD", help="The server's password.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="PIONKV_URL",
            help="All of these as one address; rediss://host:port is TLS. What is given beside it wins.",
        ),
    ] = None,
) -> Endpoint:
    """Where the server is; its parameters are the options of every verb that connects.

    Raises:
        typer.BadParameter: The address is none, or a file that it names cannot be used.
    """
    try:
        found = Endpoint() if url is None else Endpoint.from_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    given: dict[str, Any] = {"host": host, "port": port, "unix_socket_path": unix, "username": user}
    if unix is None and (host or port) is not None:
        found = replace(found, unix_socket_path=None)
    if found.password is None:
        given["password"] = password
    return replace(found, **{name: value for name, value in given.items() if value is not None})


def connects(verb: Callable[..., None]) -> Callable[..., None]:
    """Make a verb with the parameter `endpoint` one that takes the options of `endpoint_of` in its place."""
    own = [
        parameter
        for parameter in inspect.signature(verb, eval_str=True).parameters.values()
        if parameter.name != ENDPOINT
    ]
    shared = list(inspect.signature(endpoint_of, eval_str=True).parameters.values())
    names = {parameter.name for parameter in shared}

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        where = {name: given.pop(name) for name in names & given.keys()}
        verb(**given, endpoint=endpoint_of(**where))

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in (*own, *shared)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[redis.Redis]:
    """A connection; what goes wrong with it ends the program with a line that says what."""
    client = redis.Redis(**endpoint.redis_options, socket_timeout=60)
    try:
        yield client
    except redis.AuthenticationError as error:
        end(f"{endpoint}: {error} {PASSWORD}")
    except redis.ConnectionError as error:
        end(f"{endpoint}: {error} {RUNNING}")
    except redis.RedisError as error:
        end(f"{endpoint}: {error}")
    finally:
        client.close()


@contextmanager
def opened(endpoint: Endpoint, deadline: Deadline) -> Iterator[Lane]:
    """The same on a lane, which moves rows."""
    try:
        lane = Lane.open(endpoint, deadline)
    except ConnectionLost as error:
        end(f"{endpoint}: {error}. {RUNNING}")
    except ServerRefused as error:
        hint = f" {PASSWORD}" if error.code in ("NOAUTH", "WRONGPASS") else ""
        end(f"{endpoint}: {error.message}{hint}")
    except StoreError as error:
        end(f"{endpoint}: {error}")
    try:
        yield lane
    except StoreError as error:
        end(f"{endpoint}: {error}")
    finally:
        lane.close()


def end(reason: str, status: int = 1) -> NoReturn:
    """End the program with a line that says why.

    Raises:
        typer.Exit: Always.
    """
    typer.echo(f"pionkv: {reason}", err=True)
    raise typer.Exit(status)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


@dataclass(frozen=True)
class Shown:
    """Where a verb's answer goes: JSON, or tables."""

    as_json: bool
    console: Console = field(default_factory=_console)

    def table(
        self,
        rows: list[dict[str, Any]],
        columns: tuple[str, ...],
        *,
        title: str | None = None,
        empty: str = "",
    ) -> None:
        """Rows of the same fields; `empty` is said where there are none and no JSON is asked."""
        if self.as_json:
            typer.echo(json.dumps(rows))
            return
        if not rows and empty:
            self.console.print(empty, markup=False)
            return
        table = Table(title=title, title_justify="left")
        for column in columns:
            side: JustifyMethod = "right" if any(_is_number(row.get(column)) for row in rows) else "left"
            table.add_column(column.replace("_", " "), justify=side, overflow="fold")
        for row in rows:
            table.add_row(*(_counted(row.get(column)) for column in columns))
        self.console.print(table)

    def fields(self, values: Mapping[str, Any], title: str | None = None) -> None:
        """One thing's fields."""
        if self.as_json:
            typer.echo(json.dumps(values))
            return
        table = Table("field", "value", title=title, title_justify="left")
        for name, value in values.items():
            table.add_row(name, text_of(value))
        self.console.print(table)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _counted(value: object) -> str:
    return f"{value:,}" if _is_number(value) else text_of(value)


def text_of(value: object) -> str:
    """A value in a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(map(text_of, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {text_of(each)}" for name, each in value.items())
    return "" if value is None else str(value)
