"""KV.PREFIX.*, SSM.PREFIX.* and the receipt."""

from __future__ import annotations

import shutil
import struct

import numpy as np
import pytest
from pionkv.server.schemas import UNIFORM_FORMATS
from pionkv.storage import Store
from pionkv.storage.keyspace import strings

DIM = 32
ROWS = np.random.default_rng(2).standard_normal((5, DIM), np.float32).tobytes()


def fill(wire, namespace, layers=2, sides="kv"):
    for side in sides:
        for layer in range(layers):
            assert wire.command("V.STOREBATCH", f"{namespace}_p{side}", layer, 0, 5, ROWS) == "OK"


REFUSED = {
    "few": ("KV.PREFIX.REGISTER n 32", "KV.PREFIX.REGISTER requires: ns_key kv_dim vquant"),
    "dim": ("KV.PREFIX.REGISTER n 8193 fp16", "kv_dim out of range"),
    "format": ("KV.PREFIX.REGISTER n 32 Foo", "KV.PREFIX.REGISTER: unknown vquant 'Foo' (want {formats})"),
    "block dim": ("KV.PREFIX.REGISTER n 33 fp8", "KV.PREFIX.REGISTER: fp8: dim 33 is not a multiple of 32"),
    "option": ("KV.PREFIX.REGISTER n 32 fp16 TTL 5", "KV.PREFIX.REGISTER: unknown option 'TTL'"),
    "empty name": ('KV.PREFIX.REGISTER "" 32 fp16', "ns_key length must be 1..512"),
    "long name": ("KV.PREFIX.REGISTER " + "x" * 513 + " 32 fp16", "ns_key length must be 1..512"),
    "blocks": (
        "KV.PREFIX.REGISTER n 32 fp16 BLOCKS 16 1",
        "BLOCKS requires: block_size hash_count hash_blob",
    ),
    "block size": (
        "KV.PREFIX.REGISTER n 32 fp16 BLOCKS 0 1 12345678",
        "BLOCKS block_size out of range (1..8192)",
    ),
    "hash count": (
        "KV.PREFIX.REGISTER n 32 fp16 BLOCKS 16 -1 12345678",
        "BLOCKS hash_count out of range (0..1048576)",
    ),
    "hashes": ("KV.PREFIX.REGISTER n 32 fp16 BLOCKS 16 2 12345678", "BLOCKS hash_blob length mismatch"),
    "prefill": ("KV.PREFIX.REGISTER n 32 fp16 PREFILL_MS 86400001", "PREFILL_MS out of range (0..86400000)"),
    "schema sides": (
        "KV.PREFIX.REGISTER n SCHEMA V 1 fmt=fp16,dim=4",
        "KV.PREFIX.REGISTER SCHEMA requires: K n spec ... V n spec ...",
    ),
    "schema specs": (
        "KV.PREFIX.REGISTER n SCHEMA K 2 fmt=fp16,dim=4",
        "KV.PREFIX.REGISTER SCHEMA: not enough layer specs (need 2)",
    ),
    "lookup nothing": ("KV.PREFIX.LOOKUP", "KV.PREFIX.LOOKUP requires: ns_key"),
    "lookup option": ("KV.PREFIX.LOOKUP n FOO", "KV.PREFIX.LOOKUP unknown option (TOKENS, PREFILL_MS)"),
    "lookup value": ("KV.PREFIX.LOOKUP n TOKENS", "KV.PREFIX.LOOKUP option needs a value"),
    "lookup tokens": ("KV.PREFIX.LOOKUP n TOKENS 100000001", "TOKENS out of range (0..100000000)"),
    "lookup prefill": ("KV.PREFIX.LOOKUP n PREFILL_MS -1", "PREFILL_MS out of range (0..86400000)"),
    "drop nothing": ("KV.PREFIX.DROP", "KV.PREFIX.DROP requires: ns_key [ns_key ...]"),
    "membership count": ("KV.PREFIX.MEMBERSHIP n 1048577 x", "hash_count out of range (0..1048576)"),
    "membership blob": ("KV.PREFIX.MEMBERSHIP n 1 x", "hash_blob length mismatch"),
    "ssm layer": ("SSM.PREFIX.STORE n -1 x", "invalid layer_id (want 0..4294967295)"),
    "ssm empty": ('SSM.PREFIX.STORE n 0 ""', "SSM.PREFIX.STORE: the state is empty"),
    "ssm option": ("SSM.PREFIX.DROP n 0 x", "SSM.PREFIX.DROP: unknown option 'x'"),
    "stats": ("PION.STATS FOO", "syntax error"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, wire) -> None:
    """R27."""
    line, text = REFUSED[name]
    wire.send(line.encode() + b"\r\n")
    error = wire.reply()
    assert (error.code, error.message) == ("ERR", text.replace("{formats}", "|".join(UNIFORM_FORMATS)))
    assert wire.command("DBSIZE") == 0


def test_a_hit_needs_all_rows_of_both_sides(wire) -> None:
    def lookup():
        return wire.command("KV.PREFIX.LOOKUP", "n")

    assert lookup() == "MISS"
    assert wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16") == "OK"
    assert lookup() == "MISS"
    fill(wire, "n", 2, "k")
    assert lookup() == "MISS"
    fill(wire, "n", 1, "v")
    assert lookup() == "MISS"
    fill(wire, "n", 2, "v")
    assert lookup() == "HIT"
    wire.command("V.STOREBATCH", "n_pk", 0, 5, 5, ROWS)
    assert lookup() == "MISS"
    assert wire.command("KV.PREFIX.DROP", "n", "nosuch") == 1
    assert lookup() == "MISS"
    assert wire.command("V.INFO", "n_pk").message == "session not found"


def test_register_is_idempotent_and_never_changes_a_prefix(wire) -> None:
    """R25, R28."""
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    fill(wire, "n")
    assert wire.command("KV.PREFIX.REGISTER", "n", DIM, "FP16", "PREFILL_MS", 5) == "OK"
    assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"
    error = wire.command("KV.PREFIX.REGISTER", "n", DIM, "mlx4g32")
    assert (error.code, error.message) == ("SCHEMAMISMATCH", "K format: stored fp16, asked mlx4g32")
    assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"


def test_sides_of_their_own_schema(wire) -> None:
    """R26, R30."""
    assert (
        wire.command(
            *("KV.PREFIX.REGISTER", "n", "SCHEMA"),
            *("K", 2, "fmt=fp16,dim=32", "fmt=fp16,dim=32"),
            *("V", 2, "fmt=fp16,dim=32", "fmt=mlx4g32,dim=32", "PREFILL_MS", 10),
        )
        == "OK"
    )
    fill(wire, "n")
    assert wire.command("KV.PREFIX.LOOKUP", "n") == "HIT"
    assert b"layer_1_fmt:mlx4g32\r\n" in wire.command("V.INFO", "n_pv")
    owner = wire.command("KV.PREFIX.OWNER", "n").split()
    assert owner[0] == "0" and 0 < int(owner[1]) < 2**32


@pytest.mark.parametrize("command", ["KV.PREFIX.COMMIT", "KV.PREFIX.SAVE"])
def test_what_was_acknowledged_outlives_the_machine(command, server, wire, tmp_path) -> None:
    """The directory as it is, opened as after a crash of the machine: the last checkpoint is what counts."""
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    fill(wire, "n")
    for turn in range(5):
        wire.command("SET", "turn", turn)
        assert wire.command(command) == "OK"
        disk = tmp_path / f"disk{turn}"
        shutil.copytree(server.settings.data_dir, disk, ignore=shutil.ignore_patterns("lock.mdb"))
        with Store.open(disk, boot="another") as store:
            assert store.lookup(b"n") is not None
            assert store.keyspace.read(lambda keys: bytes(strings.get(keys, b"turn"))) == b"%d" % turn


def test_owner(wire) -> None:
    assert wire.command("KV.PREFIX.OWNER", "n") == "-1"
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    assert wire.command("KV.PREFIX.OWNER", "n") == "0"


@pytest.mark.parametrize("count", [3, 20_000])
def test_blocks_and_membership(count, wire) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, count, np.uint64)
    for command in (("KV.PREFIX.BLOCKS", "n"), ("KV.PREFIX.MEMBERSHIP", "n", 0, "")):
        assert wire.command(*command) == "UNKNOWN"
    wire.command(
        "KV.PREFIX.REGISTER", "n", DIM, "fp16", "BLOCKS", 16, count, hashes.tobytes(), "PREFILL_MS", 1
    )
    assert wire.command("KV.PREFIX.BLOCKS", "n") == struct.pack("<II", 16, count) + hashes.tobytes()
    probes = np.concatenate([hashes[:2], [np.uint64(1)], hashes[-1:], np.zeros(6, np.uint64), hashes[:1]])
    bits = wire.command("KV.PREFIX.MEMBERSHIP", "n", len(probes), probes.tobytes())
    assert bits == bytes([0b00001011, 0b00000100])
    assert wire.command("KV.PREFIX.MEMBERSHIP", "n", 0, "") == b""
    wire.command("KV.PREFIX.REGISTER", "other", DIM, "fp16")
    assert wire.command("KV.PREFIX.BLOCKS", "other") == "UNKNOWN"


def test_info_lists_the_lines_of_the_original_in_order(wire) -> None:
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    fill(wire, "n")
    lines = [line.split(b":") for line in wire.command("KV.PREFIX.INFO").splitlines()]
    names = [name.decode() for name, _ in lines]
    assert names[:3] == ["registered_prefixes", "total_prefix_tokens", "vstore_sessions"]
    values = {name.decode(): int(value) for name, value in lines}
    assert values["registered_prefixes"] == 1 and values["vstore_sessions"] == 2
    assert values["total_prefix_tokens"] == 10


@pytest.mark.parametrize("size", [1, 70_000, 3_000_000])
def test_states(size, either) -> None:
    blob = np.random.default_rng(size).bytes(size)
    assert either.command("SSM.PREFIX.FETCH", "n", 0) is None
    assert either.command("SSM.PREFIX.STORE", "n", 0, blob) == "OK"
    assert either.command("SSM.PREFIX.STORE", "n", 7, b"other") == "OK"
    assert either.command("SSM.PREFIX.FETCH", "n", 0) == blob
    assert either.command("KV.PREFIX.LOOKUP", "n") == "HIT"
    assert either.command("SSM.PREFIX.STORE", "n", 0, blob[::-1]) == "OK"
    assert either.command("SSM.PREFIX.FETCH", "n", 0) == blob[::-1]
    assert either.command("SSM.PREFIX.DROP", "n", 0) == "OK"
    assert either.command("SSM.PREFIX.FETCH", "n", 0) is None
    assert either.command("SSM.PREFIX.FETCH", "n", 7) == b"other"
    assert either.command("SSM.PREFIX.DROP", "n") == "OK"
    assert either.command("KV.PREFIX.LOOKUP", "n") == "MISS"
    assert either.command("SSM.PREFIX.DROP", "n") == "OK"


def test_states_go_with_their_namespace(wire) -> None:
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16")
    wire.command("SSM.PREFIX.STORE", "n", 1, b"state")
    assert wire.command("KV.PREFIX.DROP", "n") == 1
    assert wire.command("SSM.PREFIX.FETCH", "n", 1) is None


FIELDS = [
    "worker_id", "uptime_in_seconds", "kvprefix_hits", "kvprefix_misses", "kvprefix_hits_measured",
    "kvprefix_tokens_served", "kvprefix_bytes_served", "kvprefix_prefill_us_saved",
    "kvprefix_prefill_us_measured", "prefill_seconds_avoided", "prefill_seconds_avoided_measured",
    "semantic_hits", "semantic_misses", "moe_hits", "moe_misses", "vector_queries",
]  # fmt: skip


def test_the_receipt_is_a_map_or_a_flat_array(server) -> None:
    flat = server.connect().command("PION.STATS")
    assert [name.decode() for name in flat[::2]] == FIELDS and len(flat) == 32
    mapped = server.connect(3).command("PION.STATS")
    assert [name.decode() for name in mapped] == FIELDS


def test_a_restore_is_credited_once_and_polling_is_not(wire) -> None:
    def receipt():
        flat = wire.command("PION.STATS")
        return dict(zip([name.decode() for name in flat[::2]], flat[1::2], strict=True))

    wire.command("KV.PREFIX.LOOKUP", "n")
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "fp16", "PREFILL_MS", 1500)
    fill(wire, "n")
    for _ in range(5):
        wire.command("KV.PREFIX.LOOKUP", "n")
    assert receipt()["kvprefix_hits"] == 0 and receipt()["kvprefix_misses"] == 1
    for side in "kv":
        wire.command("V.FETCH", f"n_p{side}", "BATCH", 0, 5, "FMT", "NATIVE")
    found = receipt()
    assert (found["kvprefix_hits"], found["kvprefix_hits_measured"]) == (1, 1)
    assert found["kvprefix_tokens_served"] == 5
    assert found["kvprefix_bytes_served"] == 4 * 5 * DIM * 2
    assert found["prefill_seconds_avoided"] == found["prefill_seconds_avoided_measured"] == b"1.500"
    wire.command("KV.PREFIX.LOOKUP", "n", "TOKENS", 1000)
    for layer in range(2):
        for side in "kv":
            wire.command("V.FETCH", f"n_p{side}", layer, "RANGE", 0, 5)
    found = receipt()
    assert (found["kvprefix_hits"], found["kvprefix_hits_measured"]) == (2, 1)
    assert found["kvprefix_tokens_served"] == 1005
    assert found["kvprefix_prefill_us_saved"] == 1_500_000 + 1000 * 555
    assert wire.command("PION.STATS", "RESET") == "OK"
    assert receipt()["kvprefix_hits"] == 0
