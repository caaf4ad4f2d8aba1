"""COMMAND, INFO, CONFIG GET, SHUTDOWN."""

from __future__ import annotations

import re

import pytest
from pionkv.protocol.table import COMMANDS, top_level
from pionkv.protocol.values import Verbatim
from pionkv.server.commands import make_dispatcher
from pionkv.server.config import SETTINGS


def test_every_command_of_the_table_has_a_handler_and_no_other() -> None:
    containers = {name for name, spec in COMMANDS.items() if spec.container and not spec.works_alone}
    assert set(make_dispatcher().entries) == set(COMMANDS) - containers


def test_commands_open_to_all_are_those_the_table_says() -> None:
    open_to_all = {name for name, entry in make_dispatcher().entries.items() if not entry.needs_auth}
    assert open_to_all == {name for name, spec in COMMANDS.items() if "no_auth" in spec.flags}
    assert open_to_all == {"AUTH", "HELLO", "QUIT", "RESET"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_too_few_arguments_are_the_error_of_the_table(name, wire) -> None:
    spec = COMMANDS[name]
    words = [*spec.words, *["x"] * (abs(spec.arity) - len(spec.words) - 1)]
    if len(words) < len(spec.words) or len(words) >= abs(spec.arity):
        return
    error = wire.command(*words)
    assert (error.code, error.message) == ("ERR", spec.arity_error().message)


def test_command(either) -> None:
    names = {spec.name.lower().encode() for spec in top_level()}
    assert either.command("COMMAND", "COUNT") == len(names)
    listed = either.command("COMMAND")
    assert {str(entry[0]).encode() if isinstance(entry[0], str) else entry[0] for entry in listed} == names
    assert {name for name in either.command("COMMAND", "LIST")} == names
    assert either.command("COMMAND", "LIST", "FILTERBY", "PATTERN", "v.f*") == [b"v.fetch", b"v.fetchall"]
    info = either.command("COMMAND", "INFO", "v.fetch", "nosuch", "client|kill")
    assert info[0][1] == -4 and info[1] is None and len(info) == 3


def test_command_docs(either) -> None:
    docs = either.command("COMMAND", "DOCS", "V.STOREBATCH", "nosuch")
    if isinstance(docs, list):
        docs = dict(zip(docs[::2], docs[1::2], strict=True))
    assert list(docs) == [b"v.storebatch"]
    assert len(either.command("COMMAND", "DOCS")) >= len(top_level())


def test_command_getkeys(wire) -> None:
    assert wire.command("COMMAND", "GETKEYS", "V.FETCHALL", "a", "b", 0, 1) == [b"a", b"b"]
    assert wire.command("COMMAND", "GETKEYS", "V.DROP", "a", "b", "c") == [b"a", b"b", b"c"]
    assert wire.command("COMMAND", "GETKEYS", "PING", "x").message == "The command has no key arguments"
    assert wire.command("COMMAND", "GETKEYS", "NOSUCH", "x").message == "Invalid command specified"


def test_help(wire) -> None:
    lines = wire.command("CLIENT", "HELP")
    assert any("SETNAME" in line for line in map(str, lines))


def sections(text):
    found, section = {}, ""
    for line in text.decode().splitlines():
        if line.startswith("# "):
            section = line[2:].lower()
            found[section] = {}
        elif line:
            name, _, value = line.partition(":")
            found[section][name] = value
    return found


def test_info(either) -> None:
    either.command("V.CREATE", "s", 64, "VQUANT", "fp16")
    either.command("V.STOREBATCH", "s", 0, 0, 100, bytes(25600))
    either.command("V.FETCH", "s", 0, "RANGE", 0, 100, "FMT", "RAW")
    found = sections(as_bytes(either.command("INFO")))
    assert list(found) == [
        "server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace", "pion",
        "workers",
        "tenants",
    ]  # fmt: skip
    assert found["server"]["redis_mode"] == "standalone" and int(found["server"]["tcp_port"]) > 0
    assert found["clients"]["connected_clients"] == "1"
    assert int(found["memory"]["used_memory"]) > 1 << 20
    assert int(found["stats"]["total_commands_processed"]) >= 4
    assert int(found["stats"]["total_net_input_bytes"]) > 25600
    assert found["keyspace"]["db0"].startswith("keys=1,")
    assert found["pion"]["rows"] == "100" and int(found["pion"]["stored_bytes"]) >= 12800
    assert found["pion"]["bytes_in_fp16"] == "25600" and found["pion"]["bytes_out_fp16"] == "12800"
    assert "cpu" in found["pion"]["kernels_serving"].split(",")
    assert set(found["pion"]["kernels_serving"].split(",")) <= set(found["pion"]["kernels_tried"].split(","))
    assert found["pion"]["kernels_fallbacks"].isdecimal()


EXPORTED = {
    "server": ("uptime_in_seconds", "process_id"),
    "clients": ("connected_clients", "blocked_clients"),
    "memory": ("used_memory", "used_memory_rss", "used_memory_peak", "maxmemory"),
    "persistence": ("loading", "rdb_bgsave_in_progress", "aof_enabled"),
    "stats": (
        "total_connections_received", "total_commands_processed", "rejected_connections",
        "total_net_input_bytes", "total_net_output_bytes", "expired_keys", "evicted_keys",
        "keyspace_hits", "keyspace_misses",
    ),
    "replication": ("connected_slaves",),
    "cpu": ("used_cpu_sys", "used_cpu_user", "used_cpu_sys_children", "used_cpu_user_children"),
}  # fmt: skip
"""Numbers that redis_exporter reads from INFO and that mean something here."""


def test_the_numbers_that_redis_exporter_reads_are_there(wire) -> None:
    wire.command("SET", "key", "value")
    found = sections(wire.command("INFO", "all"))
    missing = {
        f"{section} {name}"
        for section, names in EXPORTED.items()
        for name in names
        if not re.fullmatch(r"\d+(\.\d+)?", found[section].get(name, ""))
    }
    assert missing == set()
    for name in ("redis_version", "redis_mode", "os", "tcp_port", "run_id"):
        assert found["server"][name]
    assert found["memory"]["maxmemory_policy"] and found["replication"]["role"] == "master"
    assert re.fullmatch(r"keys=\d+,expires=\d+,avg_ttl=\d+", found["keyspace"]["db0"])
    calls = r"calls=1,usec=\d+,usec_per_call=[\d.]+,rejected_calls=0,failed_calls=0"
    assert re.fullmatch(calls, found["commandstats"]["cmdstat_set"])
    percentiles = found["latencystats"]["latency_percentiles_usec_set"]
    assert re.fullmatch(r"p50=[\d.]+,p99=[\d.]+,p99\.9=[\d.]+", percentiles)


def as_bytes(text):
    return text.text if isinstance(text, Verbatim) else text


def test_info_of_some_sections(wire) -> None:
    assert list(sections(wire.command("INFO", "clients", "CPU"))) == ["clients", "cpu"]
    assert len(sections(wire.command("INFO", "everything"))) == 13
    assert sections(wire.command("INFO", "nosuch")) == {}


def test_config_get(wire) -> None:
    flat = wire.command("CONFIG", "GET", "*")
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    for name in SETTINGS:
        assert name.replace("_", "-").encode() in found
    assert found[b"maxmemory"] == found[b"max-bytes"] == b"8589934592"
    assert wire.command("CONFIG", "GET", "save", "append*") == [
        b"appendfsync", b"everysec", b"appendonly", b"no", b"save", b"",
    ]  # fmt: skip
    assert wire.command("CONFIG", "GET", "nosuch") == []


def test_shutdown(start_local) -> None:
    server = start_local()
    wire = server.connect()
    assert wire.command("SHUTDOWN", "MAYBE").message == "syntax error"
    wire.send(b"SHUTDOWN NOSAVE\r\n")
    assert wire.read_to_end() == b""
    server.join()
