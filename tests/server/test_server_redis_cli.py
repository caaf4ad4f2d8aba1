"""Every V-store command by hand, with the redis-cli that is installed."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

REDIS_CLI = shutil.which("redis-cli")
ROWS = np.array([[1, 2], [3, 4]], np.float16)


@pytest.fixture
def cli(server_process):
    assert REDIS_CLI, "redis-cli has to be installed (package redis-tools)"

    def run(*args, stdin=None, options=()):
        command = [REDIS_CLI, "-p", str(server_process.port), *options, *map(str, args)]
        found = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
        assert found.returncode == 0, found
        return found.stdout.decode("latin-1").rstrip("\n")

    return run


@pytest.mark.parametrize("options", [(), ("-3",)], ids=["RESP2", "RESP3"])
def test_by_hand(cli, options) -> None:
    def run(*args, stdin=None):
        return cli(*args, stdin=stdin, options=options)

    assert run("PING") == "PONG"
    assert run("V.CREATE", "demo", 2, "VQUANT", "fp16").isdigit()
    raw = ROWS.tobytes()
    assert run("-X", "blob", "V.STOREBATCH", "demo", 0, 0, 2, "blob", "FMT", "F16", stdin=raw) == "OK"
    assert cli("V.FETCH", "demo", 0, "RANGE", 0, 2, "FMT", "RAW", options=options) == raw.decode("latin-1")
    assert run("V.FETCH", "demo", 1, "RANGE", 0, 2) == ""
    assert (
        run("V.FETCH", "demo", 0, "RANGE", 0, 3)
        == ("ERR V.FETCH: rows 0..3 of layer 0 are not stored (layer holds 2)\n").rstrip()
    )
    assert "layer_0_tokens:2" in run("V.INFO", "demo")
    assert run("V.SNAPSHOT", "demo") == "1"
    assert run("V.STOREBATCH", "demo", 0, 2, 1, "abcd", "FMT", "RAW") == "OK"
    assert run("V.FETCH", "demo", 0, 2, "FMT", "RAW") == "abcd"
    assert run("V.RESTORE", "demo", 1) == "OK"
    assert run("V.COMMIT", "demo", 1) == "1"
    assert run("KV.PREFIX.REGISTER", "p", 2, "fp16") == "OK"
    assert run("KV.PREFIX.LOOKUP", "p") == "MISS"
    for side in "kv":
        assert run("-x", "SSM.PREFIX.STORE", f"state-{side}", 0, stdin=b"state") == "OK"
        assert run("V.STOREBATCH", f"p_p{side}", 0, 0, 1, "efgh", "FMT", "RAW") == "OK"
    assert run("KV.PREFIX.LOOKUP", "p") == "HIT"
    assert run("V.FETCHALL", "p_pk", "p_pv", 0, 1, "FMT", "RAW") == "efgh\nefgh"
    assert run("V.FETCH", "p_pk", "BATCH", 0, 1, "FMT", "RAW") == "efgh"
    assert run("SSM.PREFIX.FETCH", "state-k", 0) == "state"
    assert run("KV.PREFIX.OWNER", "p") == "0"
    assert "registered_prefixes:" in run("KV.PREFIX.INFO")
    assert run("KV.PREFIX.DROP", "p") == "1"
    assert run("V.DROP", "demo") == "1"
    assert "kvprefix_hits" in run("PION.STATS")
    assert "redis_version:" in run("INFO")
    assert "maxmemory" in run("CONFIG", "GET", "maxmemory")


def test_a_blob_from_standard_input_is_the_last_argument(cli) -> None:
    cli("V.CREATE", "demo", 2, "VQUANT", "fp32")
    blob = ROWS.astype(np.float32).tobytes()
    assert cli("-x", "V.STOREBATCH", "demo", 0, 0, 2, stdin=blob) == "OK"
    assert cli("V.FETCH", "demo", 0, 0, 1) == blob.decode("latin-1")


def test_pipe_mode(cli) -> None:
    commands = b"".join(b"*2\r\n$4\r\nECHO\r\n$5\r\n%05d\r\n" % i for i in range(5000))
    assert "errors: 0, replies: 5000" in cli("--pipe", stdin=commands)


def test_hints_come_from_the_table(cli) -> None:
    docs = cli("COMMAND", "DOCS", "V.FETCH")
    assert "Rows of one layer" in docs
