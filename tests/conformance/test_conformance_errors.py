"""Every error text of the store's own commands, once, from `errors.toml`."""

from __future__ import annotations

import re
import shlex
import struct
import tomllib
from pathlib import Path

import pytest
from pionkv.protocol.limits import Limits
from pionkv.protocol.table import COMMANDS
from pionkv.server.schemas import UNIFORM_FORMATS

TABLE = tomllib.loads(Path(__file__).with_name("errors.toml").read_text(encoding="utf-8"))
GIVEN = TABLE.pop("given")
CASES = [(command, arguments, reply) for command, rows in TABLE.items() for arguments, reply in rows["cases"]]
LAYERS = Limits().layers
HERE = {"layers": str(LAYERS), "last_layer": str(LAYERS - 1)}
HERE["formats"] = "|".join(UNIFORM_FORMATS)
OURS = re.compile(r"(V|KV\.PREFIX|SSM\.PREFIX|PION|ATTEND)\.")


def words(line: str) -> list[str | bytes]:
    return [blob(word) for word in shlex.split(line)]


def blob(word: str) -> str | bytes:
    if match := re.fullmatch(r"zeros\((\d+)\)", word):
        return bytes(int(match[1]))
    if match := re.fullmatch(r"floats\((\d+), (\d+), (\w+)\)", word):
        count, place, value = int(match[1]), int(match[2]), float(match[3])
        return struct.pack(f"<{count}f", *(value if i == place else 0.0 for i in range(count)))
    return word


def here(text: str) -> str:
    for name, value in HERE.items():
        text = text.replace(f"{{{name}}}", value)
    return text


@pytest.fixture(scope="module")
def prepared(shared_server, wire_class):
    wire = wire_class(shared_server.port)
    for line in GIVEN:
        wire.ok(*words(line))
    yield wire
    wire.close()


@pytest.mark.parametrize("command, arguments, reply", CASES, ids=[f"{c} {a}".strip() for c, a, _ in CASES])
def test_error(command, arguments, reply, prepared) -> None:
    """The text is the table's, and the connection goes on."""
    assert str(prepared.command(command, *words(here(arguments)))) == here(reply)
    assert prepared.command("PING") == b"PONG"


def test_each_text_of_a_command_is_asserted_once() -> None:
    pairs = [(command, reply) for command, _, reply in CASES]
    assert sorted(set(pairs)) == sorted(pairs)


def test_every_command_that_can_refuse_is_in_the_table() -> None:
    """A command that takes arguments has at least the error for leaving them out."""
    refusing = {name for name, spec in COMMANDS.items() if OURS.match(name) and abs(spec.arity) > 1}
    assert refusing - set(TABLE) == set()
