"""The command table, and what is made from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.protocol.inline import split_inline
from pionkv.protocol.pages import command_page, command_section
from pionkv.protocol.spec import (
    CommandSpec,
    Parameter,
    after,
    block,
    integer,
    key,
    many,
    oneof,
    optional,
    string,
    word,
)
from pionkv.protocol.table import (
    COMMANDS,
    command_docs,
    command_entry,
    help_lines,
    keys_of,
    names,
    subcommands,
    top_level,
)
from pionkv.protocol.values import Simple

REDIS_FLAGS = """
    write readonly denyoom admin pubsub noscript blocking loading stale fast no_auth movablekeys may_replicate
    allow_busy skip_monitor skip_slowlog no_multi
"""
KINDS = {"key", "string", "integer", "double", "pattern", "unix-time", "pure-token", "oneof", "block"}

FIRST_COMMANDS = """
    HELLO PING ECHO AUTH QUIT SELECT RESET INFO SHUTDOWN TIME DBSIZE CONFIG|GET
    COMMAND COMMAND|COUNT COMMAND|DOCS COMMAND|INFO COMMAND|LIST COMMAND|GETKEYS
    CLIENT|SETNAME CLIENT|GETNAME CLIENT|SETINFO CLIENT|ID CLIENT|LIST CLIENT|INFO CLIENT|KILL CLIENT|NO-EVICT
    CLIENT|NO-TOUCH CLIENT|REPLY
    V.CREATE V.STOREBATCH V.FETCH V.FETCHALL V.INFO V.DROP
    KV.PREFIX.REGISTER KV.PREFIX.LOOKUP KV.PREFIX.DROP KV.PREFIX.INFO
"""

each_command = pytest.mark.parametrize("spec", COMMANDS.values(), ids=lambda spec: spec.name)


def parameters(of: tuple[Parameter, ...]) -> Iterator[Parameter]:
    for parameter in of:
        yield parameter
        yield from parameters(parameter.parts)


def spec_of(*of: Parameter, name: str = "X", **more: Any) -> CommandSpec:
    return CommandSpec(name=name, summary="s", group="g", reply="r", parameters=of, **more)


def test_commands_that_must_exist() -> None:
    assert set(FIRST_COMMANDS.split()) <= set(COMMANDS)
    assert list(COMMANDS) == sorted(COMMANDS)


@each_command
def test_every_entry_is_complete(spec: CommandSpec) -> None:
    assert spec.name == spec.name.upper() and spec.summary and spec.group and spec.reply
    assert spec.summary.endswith(".") and spec.reply.endswith((".", "…"))
    assert set(spec.flags) <= set(REDIS_FLAGS.split())
    assert "write" not in spec.flags or "readonly" not in spec.flags
    assert ("fast" in spec.categories) != ("slow" in spec.categories)
    assert not ("fast" in spec.flags and "slow" in spec.categories)
    for parameter in parameters(spec.parameters):
        assert parameter.kind in KINDS
        assert bool(parameter.parts) == (parameter.kind in ("oneof", "block"))
    if "|" in spec.name:
        assert COMMANDS[spec.name.partition("|")[0]].container


@each_command
def test_keys_are_where_the_key_parameters_are(spec: CommandSpec) -> None:
    expected = (0, 0, 0)
    for place, parameter in enumerate(spec.parameters, len(spec.words)):
        members = parameter.parts if parameter.kind == "block" else (parameter,)
        if members[0].kind == "key" and not parameter.token:
            following = spec.parameters[place - len(spec.words) + 1 :]
            last = -1 - sum(not later.optional for later in following) if parameter.multiple else place
            expected = (expected[0] or place, last, len(members))
    assert spec.keys == expected


@each_command
def test_examples_can_be_typed(spec: CommandSpec) -> None:
    for example in spec.examples:
        words = split_inline(example.command.encode())
        assert words[: len(spec.words)] == [name.encode() for name in spec.words]
        assert spec.accepts(len(words)), example.command
        assert example.shows


@pytest.mark.parametrize(
    ("name", "arity"),
    [
        ("PING", -1), ("ECHO", 2), ("AUTH", -2), ("HELLO", -1), ("SELECT", 2), ("TIME", 1), ("INFO", -1),
        ("DBSIZE", 1), ("RESET", 1), ("SHUTDOWN", -1), ("CLIENT", -2), ("CLIENT|ID", 2),
        ("CLIENT|SETNAME", 3),
        ("CLIENT|SETINFO", 4), ("CLIENT|KILL", -3), ("CLIENT|LIST", -2), ("CLIENT|REPLY", 3), ("COMMAND", -1),
        ("COMMAND|DOCS", -2), ("COMMAND|GETKEYS", -3), ("COMMAND|COUNT", 2), ("CONFIG|GET", -3),
        ("V.CREATE", -3), ("V.STOREBATCH", -6), ("V.FETCH", -4), ("V.FETCHALL", -5), ("V.INFO", -1),
        ("V.DROP", -2),
        ("KV.PREFIX.REGISTER", -4), ("KV.PREFIX.LOOKUP", -2), ("KV.PREFIX.DROP", -2), ("KV.PREFIX.INFO", 1),
    ],
)  # fmt: skip
def test_arity(name: str, arity: int) -> None:
    """Those of Redis commands are what Redis 7 has."""
    assert COMMANDS[name].arity == arity


@pytest.mark.parametrize(
    ("parameter", "syntax", "fewest", "fixed"),
    [
        (integer("n"), "n", 1, True),
        (optional(integer("n")), "[n]", 0, False),
        (many(key("k")), "k [k ...]", 1, False),
        (optional(many(key("k"))), "[k [k ...]]", 0, False),
        (word("NOW"), "NOW", 1, True),
        (after("FMT", string("f")), "FMT f", 2, True),
        (oneof("o", word("A"), word("B")), "<A | B>", 1, True),
        (oneof("o", word("A"), block("b", word("B"), integer("n"))), "<A | B n>", 1, False),
        (optional(oneof("o", word("A"), word("B"))), "[A | B]", 0, False),
        (optional(after("FMT", oneof("o", word("A"), word("B")))), "[FMT <A | B>]", 0, False),
        (after("L", block("b", integer("a"), optional(integer("b")))), "L a [b]", 2, False),
    ],
)
def test_parameters(parameter: Parameter, syntax: str, fewest: int, fixed: bool) -> None:
    assert (parameter.syntax, parameter.fewest, parameter.fixed) == (syntax, fewest, fixed)


def test_arity_follows_from_the_parameters() -> None:
    assert spec_of().arity == 1
    assert spec_of(key("k"), integer("n")).arity == 3
    assert spec_of(key("k"), optional(integer("n"))).arity == -2
    assert spec_of(key("k"), name="X|Y").arity == 3
    assert spec_of(container=True).arity == -2
    assert [spec_of(key("k")).accepts(n) for n in (1, 2, 3)] == [False, True, False]
    assert [spec_of(many(key("k"))).accepts(n) for n in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ECHO", "wrong number of arguments for 'echo' command"),
        ("CLIENT|SETNAME", "wrong number of arguments for 'client|setname' command"),
        (
            "V.CREATE",
            "V.CREATE requires: session_id value_dim [VQUANT fmt] "
            "OR sid [default_dim] SCHEMA N spec_0 ... spec_{N-1}",
        ),
        ("V.STOREBATCH", "V.STOREBATCH requires: session_id layer_id start_id count values_blob"),
        ("V.FETCH", "V.FETCH requires: session_id layer_id token_id [...]"),
        ("KV.PREFIX.REGISTER", "KV.PREFIX.REGISTER requires: ns_key kv_dim vquant"),
        ("KV.PREFIX.DROP", "KV.PREFIX.DROP requires: ns_key [ns_key ...]"),
    ],
)
def test_arity_errors(name: str, text: str) -> None:
    error = COMMANDS[name].arity_error()
    assert (error.code, error.message) == ("ERR", text)


# COMMAND


def test_an_entry_has_the_shape_of_redis() -> None:
    assert command_entry(COMMANDS["V.FETCHALL"]) == [
        b"v.fetchall",
        -5,
        frozenset({Simple("readonly")}),
        1,
        2,
        1,
        frozenset({Simple("@kv"), Simple("@read"), Simple("@slow")}),
        [],
        [
            {
                b"flags": frozenset({Simple("RO"), Simple("access")}),
                b"begin_search": {b"type": b"index", b"spec": {b"index": 1}},
                b"find_keys": {b"type": b"range", b"spec": {b"lastkey": 1, b"keystep": 1, b"limit": 0}},
            }
        ],
        [],
    ]
    container = command_entry(COMMANDS["CLIENT"])
    assert [entry[0] for entry in container[9]] == [  # type: ignore[attr-defined]
        sub.name.lower().encode() for sub in subcommands(COMMANDS["CLIENT"])
    ]


@each_command
def test_entries_and_docs_can_be_sent(spec: CommandSpec) -> None:
    for protocol in (2, 3):
        assert reply.encode([command_entry(spec), command_docs(spec)], protocol)


def test_docs_have_the_shape_of_redis() -> None:
    docs = command_docs(COMMANDS["V.FETCHALL"])
    assert list(docs) == [b"summary", b"since", b"group", b"complexity", b"arguments"]
    arguments: Any = docs[b"arguments"]
    assert arguments[0] == {b"name": b"k-session", b"type": b"key", b"key_spec_index": 0}
    assert arguments[2] == {b"name": b"start", b"type": b"integer"}
    assert arguments[4] == {
        b"name": b"element",
        b"type": b"oneof",
        b"token": b"FMT",
        b"flags": [Simple("optional")],
        b"arguments": [
            {b"name": name.lower(), b"type": b"pure-token", b"token": name}
            for name in (b"F32", b"F16", b"NATIVE", b"RAW")
        ],
    }
    subs: Any = command_docs(COMMANDS["CLIENT"])[b"subcommands"]
    assert subs[b"client|id"][b"summary"] == COMMANDS["CLIENT|ID"].summary.encode()


def test_names() -> None:
    assert names() == [spec.name.lower() for spec in top_level()]
    assert not any("|" in name for name in names())
    assert names(glob="V.FETCH*") == ["v.fetch", "v.fetchall"]
    assert names(glob="client|set*") == ["client|setinfo", "client|setname"]
    assert set(names(category="admin")) == {
        spec.name.lower() for spec in COMMANDS.values() if "admin" in spec.categories
    }
    assert names(category="nosuch") == []


def test_keys() -> None:
    assert keys_of(COMMANDS["V.FETCHALL"], [b"V.FETCHALL", b"a", b"b", b"0", b"1"]) == [b"a", b"b"]
    assert keys_of(COMMANDS["V.DROP"], [b"V.DROP", b"a", b"b", b"c"]) == [b"a", b"b", b"c"]
    with pytest.raises(CommandError, match="no key arguments"):
        keys_of(COMMANDS["PING"], [b"PING", b"x"])
    with pytest.raises(CommandError, match="Invalid number of arguments"):
        keys_of(COMMANDS["V.DROP"], [b"V.DROP"])


def test_help() -> None:
    lines = help_lines(COMMANDS["CLIENT"])
    assert lines[0] == "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    at = lines.index("SETNAME connection-name")
    assert lines[at + 1] == "    Names this connection."
    assert all(isinstance(line, Simple) for line in lines)
    assert help_lines(COMMANDS["COMMAND"])[1] == "(no subcommand)"


# The command page


def test_the_page_has_every_command_once() -> None:
    page = command_page(COMMANDS.values())
    shown = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")]
    expected = [" ".join(s.words) for s in COMMANDS.values() if not s.container or s.works_alone]
    assert sorted(shown) == sorted(expected)
    assert page.startswith("# Commands\n")
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings[0] == "## Sessions of rows" and len(headings) == len(set(headings))


def test_a_section() -> None:
    assert command_section(COMMANDS["PING"]) == (
        "### PING\n"
        "\n"
        "```\n"
        "PING [message]\n"
        "```\n"
        "\n"
        "Asks whether the server is there.\n"
        "\n"
        "**Reply:** PONG, or the message.\n"
        "\n"
        "Cost O(1) · since 0.1.0 · @fast @connection\n"
        "\n"
        "```\n"
        "> PING\n"
        "PONG\n"
        "> PING hello\n"
        '"hello"\n'
        "```\n"
    )


def test_a_group_without_a_heading_follows_the_others() -> None:
    page = command_page([*COMMANDS.values(), spec_of(name="ZZZ")])
    assert page.index("## G\n") > page.index("## Server\n")
