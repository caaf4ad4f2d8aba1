"""The real redis-cli reads our COMMAND DOCS, in both protocols."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
from pionkv.protocol import reply, table
from pionkv.protocol.events import NEED_DATA, Command
from pionkv.protocol.parser import RequestParser

REDIS_CLI = shutil.which("redis-cli")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def answer(words: list[bytes], protocol: int) -> bytes:
    if words[:2] == [b"COMMAND", b"DOCS"]:
        docs = {spec.name.lower().encode(): table.command_docs(spec) for spec in table.top_level()}
        return reply.encode(docs, protocol)
    if words == [b"COMMAND"]:
        return reply.encode([table.command_entry(spec) for spec in table.top_level()], protocol)
    if words[0] == b"HELLO":
        return reply.encode({b"server": b"redis", b"proto": protocol}, protocol)
    return reply.encode(words, protocol)


def serve(connection: socket.socket) -> None:
    """As small as a server can be."""
    parser, protocol = RequestParser(), 2
    with connection:
        while count := connection.recv_into(parser.get_buffer()):
            parser.received(count)
            while (event := parser.next_event()) is not NEED_DATA:
                assert isinstance(event, Command)
                words = [bytes(arg) for arg in event.args if isinstance(arg, bytes)]
                protocol = int(words[1]) if words[0] == b"HELLO" else protocol
                connection.sendall(answer(words, protocol))


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture(params=[2, 3])
def cli(request: pytest.FixtureRequest, port: int) -> Iterator[object]:
    assert REDIS_CLI, "redis-cli is needed (package redis-tools; `make system` installs it)"
    command = [REDIS_CLI, "-p", str(port), f"-{request.param}"]

    def run(*words: str) -> str:
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=30, check=True)
        return ESCAPES.sub("", done.stdout)

    yield run


def test_help_of_a_command(cli) -> None:
    shown = cli("help", "v.fetch")
    assert (
        "V.FETCH session layer row [row ...] [FMT F32|F16|NATIVE|RAW] [AT generation]"
        "|layer RANGE start end [FMT F32|F16|NATIVE|RAW]"
    ) in shown
    assert f"summary: {table.COMMANDS['V.FETCH'].summary}" in shown
    assert "since: 0.1.0" in shown and "group: vstore" in shown


def test_help_of_a_subcommand(cli) -> None:
    assert "CLIENT SETNAME connection-name" in cli("help", "client", "setname")


def test_help_of_a_group(cli) -> None:
    shown = cli("help", "@prefix")
    for spec in table.COMMANDS.values():
        assert (f"\n  {spec.name} " in shown) == (spec.group == "prefix"), spec.name


def test_every_command_has_help(cli) -> None:
    for name in ("KV.PREFIX.REGISTER", "V.CREATE", "HELLO", "COMMAND LIST", "SHUTDOWN"):
        assert f"{name} " in cli("help", *name.lower().split())


def test_quoted_arguments_arrive(cli) -> None:
    assert cli("X", "a b", "é") == "X\na b\né\n"
