"""V.CREATE, V.INFO, V.DROP, V.SNAPSHOT, V.RESTORE, V.COMMIT."""

from __future__ import annotations

import pytest
from pionkv.server.schemas import UNIFORM_FORMATS

REFUSED = {
    "too few": (
        "V.CREATE s",
        "V.CREATE requires: session_id value_dim [VQUANT fmt] OR sid [default_dim] SCHEMA N "
        "spec_0 ... spec_{N-1}",
    ),
    "dim 0": ("V.CREATE s 0", "invalid value_dim (must be 1-8192)"),
    "dim 8193": ("V.CREATE s 8193", "invalid value_dim (must be 1-8192)"),
    "dim text": ("V.CREATE s x", "value is not an integer or out of range"),
    "format": (
        "V.CREATE s 64 VQUANT Foo",
        "V.CREATE: unknown VQUANT format 'foo' (want {formats})",
    ),
    "rope format": (
        "V.CREATE s 64 VQUANT bf16_rope_fp8_body",
        "V.CREATE: bf16_rope_fp8_body requires SCHEMA form with per-layer rope=N",
    ),
    "head format": ("V.CREATE s 64 VQUANT rvq1", "V.CREATE: rvq1 requires SCHEMA form with per-layer head=N"),
    "dim of a block format": (
        "V.CREATE s 100 VQUANT mlx4g32",
        "V.CREATE: mlx4g32: dim 100 is not a multiple of 32",
    ),
    "trailing": ("V.CREATE s 64 VQUANT fp16 MORE", "V.CREATE: unknown option 'MORE'"),
    "no value": ("V.CREATE s 64 VQUANT", "V.CREATE: unknown option 'VQUANT'"),
    "no N": ("V.CREATE s SCHEMA", "V.CREATE SCHEMA requires N (layer count)"),
    "N 0": ("V.CREATE s SCHEMA 0 fmt=fp16,dim=4", "V.CREATE SCHEMA: N must be positive"),
    "N 1025": ("V.CREATE s SCHEMA 1025 fmt=fp16,dim=4", "V.CREATE SCHEMA: N exceeds 1024"),
    "few specs": ("V.CREATE s SCHEMA 2 fmt=fp16,dim=4", "V.CREATE SCHEMA: not enough layer specs (need 2)"),
    "many specs": (
        "V.CREATE s SCHEMA 1 fmt=fp16,dim=4 fmt=fp16,dim=4",
        "V.CREATE: unknown option 'fmt=fp16,dim=4'",
    ),
    "default dim": ("V.CREATE s 8193 SCHEMA 1 fmt=fp16", "V.CREATE SCHEMA: default_dim must be 0-8192"),
    "no dim": (
        "V.CREATE s 0 SCHEMA 1 fmt=fp16",
        "V.CREATE SCHEMA: layer 0 missing dim and no default supplied",
    ),
    "spec format": ("V.CREATE s SCHEMA 1 fmt=foo,dim=4", "V.CREATE SCHEMA: layer 0 unknown fmt"),
    "spec dim": ("V.CREATE s SCHEMA 1 dim=0", "V.CREATE SCHEMA: layer 0 dim must be 1-8192"),
    "spec rope": ("V.CREATE s SCHEMA 1 dim=4,rope=x", "V.CREATE SCHEMA: layer 0 rope must be 1-8192"),
    "spec key": ("V.CREATE s SCHEMA 1 dim=4,foo=1", "V.CREATE SCHEMA: layer 0 unknown key"),
    "spec empty value": ("V.CREATE s SCHEMA 1 dim=", "V.CREATE SCHEMA: layer 0 unknown key"),
    "spec head": (
        "V.CREATE s SCHEMA 1 fmt=qserve4,dim=64",
        "V.CREATE SCHEMA: layer 0 qserve4 needs head=N (elements of a head)",
    ),
    "spec rope format": (
        "V.CREATE s SCHEMA 1 fmt=bf16_rope_fp8_body,dim=64,rope=64",
        "V.CREATE SCHEMA: layer 0 bf16_rope_fp8_body needs rope=N (0 < N < dim)",
    ),
    "spec S": (
        "V.CREATE s SCHEMA 1 s=1",
        "V.CREATE SCHEMA: S-tensor reserved (route SSM/SWA-tail state through STATE.*)",
    ),
    "spec block dim": (
        "V.CREATE s SCHEMA 2 dim=32 fmt=fp8,dim=33",
        "V.CREATE SCHEMA: layer 1 fp8: dim 33 is not a multiple of 32",
    ),
    "drop nothing": ("V.DROP", "V.DROP requires: session_id [session_id ...]"),
    "info of nothing": ("V.INFO s", "session not found"),
    "info of two": ("V.INFO s t", "V.INFO: unknown option 't'"),
    "snapshot of nothing": ("V.SNAPSHOT s", "session not found"),
    "snapshot without": ("V.SNAPSHOT", "V.SNAPSHOT requires: session_id"),
    "restore of nothing": ("V.RESTORE s 1", "session not found"),
    "restore 0": ("V.RESTORE s 0", "V.RESTORE: snap_id must be positive"),
    "restore without": ("V.RESTORE s", "V.RESTORE requires: session_id snap_id"),
    "commit 0": ("V.COMMIT s -1", "V.COMMIT: snap_id must be positive"),
    "commit without": ("V.COMMIT s", "V.COMMIT requires: session_id snap_id"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, wire) -> None:
    """R27."""
    line, text = REFUSED[name]
    wire.send(line.encode() + b"\r\n")
    error = wire.reply()
    assert (error.code, error.message) == ("ERR", text.replace("{formats}", "|".join(UNIFORM_FORMATS)))
    assert wire.command("V.INFO").splitlines()[1] == b"sessions:0"


def test_create_is_idempotent_and_never_changes_a_session(wire) -> None:
    """R26, R28."""
    slot = wire.command("V.CREATE", "s", 64, "VQUANT", "FP16")
    assert wire.command("v.create", "s", 64, "vquant", "fp16") == slot
    before = wire.command("V.INFO", "s")
    for args, text in [
        ((64,), "format: stored fp16, asked int8"),
        ((32, "VQUANT", "fp16"), "dim: stored 64, asked 32"),
        (("SCHEMA", 1, "fmt=fp16,dim=64"), "layers: stored any number, asked 1"),
    ]:
        error = wire.command("V.CREATE", "s", *args)
        assert (error.code, error.message) == ("SCHEMAMISMATCH", text)
    assert wire.command("V.INFO", "s") == before


def test_int8_is_the_default(wire) -> None:
    wire.command("V.CREATE", "s", 64)
    assert b"v_format:int8\r\n" in wire.command("V.INFO", "s")


def test_info_of_a_uniform_session(wire) -> None:
    slot = wire.command("V.CREATE", "s", 2, "VQUANT", "fp16")
    wire.command("V.STOREBATCH", "s", 2, 0, 3, bytes(12), "FMT", "F16")
    assert wire.command("V.INFO", "s") == (
        b"session_idx:%d\r\nvalue_dim:2\r\nv_format:fp16\r\nnum_layers:3\r\nschema:uniform\r\n"
        b"layer_2_tokens:3\r\ntotal_tokens:3\r\n" % slot
    )
    assert wire.command("V.INFO") == b"enabled:1\r\nsessions:1\r\ntotal_tokens:3\r\ntotal_fetches:0\r\n"


def test_info_of_a_heterogeneous_session(wire) -> None:
    slot = wire.command("V.CREATE", "s", 4, "SCHEMA", 2, "FMT=fp16", "dim=64,fmt=mlx4g32")
    wire.command("V.STOREBATCH", "s", 0, 0, 1, bytes(16))
    assert wire.command("V.INFO", "s") == (
        b"session_idx:%d\r\nvalue_dim:4\r\nv_format:fp16\r\nnum_layers:2\r\nschema:heterogeneous\r\n"
        b"layer_0_tokens:1\r\nlayer_0_dim:4\r\nlayer_0_fmt:fp16\r\n"
        b"layer_1_dim:64\r\nlayer_1_fmt:mlx4g32\r\ntotal_tokens:1\r\n" % slot
    )


def test_fetches_are_counted_in_rows(wire) -> None:
    wire.command("V.CREATE", "s", 2, "VQUANT", "fp32")
    wire.command("V.STOREBATCH", "s", 0, 0, 4, bytes(32))
    wire.command("V.FETCH", "s", 0, 0, 1)
    wire.command("V.FETCH", "s", "BATCH", 0, 4)
    assert b"total_fetches:6\r\n" in wire.command("V.INFO")


def test_drop(wire) -> None:
    for sid in ("a", "b", "c"):
        wire.command("V.CREATE", sid, 2, "VQUANT", "fp32")
    assert wire.command("V.DROP", "a", "nosuch", "b") == 2
    assert wire.command("V.DROP", "a") == 0
    assert b"sessions:1\r\n" in wire.command("V.INFO")


def test_snapshot_restore_commit(wire) -> None:
    wire.command("V.CREATE", "s", 1, "VQUANT", "fp32")
    wire.command("V.STOREBATCH", "s", 0, 0, 2, b"aaaabbbb")
    snapshot = wire.command("V.SNAPSHOT", "s")
    assert snapshot == 1
    for again in range(2):
        wire.command("V.STOREBATCH", "s", 0, 2, 2, b"ccccdddd")
        wire.command("V.STOREBATCH", "s", 1, 0, 1, b"eeee")
        assert wire.command("V.RESTORE", "s", snapshot) == "OK", again
        assert wire.command("V.FETCH", "s", "BATCH", 0, 2) == [b"aaaabbbb", None]
    error = wire.command("V.FETCH", "s", 0, "RANGE", 0, 3)
    assert error.message == "V.FETCH: rows 0..3 of layer 0 are not stored (layer holds 2)"
    assert wire.command("V.RESTORE", "s", 99).message == "V.RESTORE: unknown snap_id for this session"
    assert [wire.command("V.COMMIT", "s", snapshot) for _ in range(2)] == [1, 0]


def test_at_most_16_snapshots(wire) -> None:
    wire.command("V.CREATE", "s", 1)
    assert [wire.command("V.SNAPSHOT", "s") for _ in range(16)] == list(range(1, 17))
    error = wire.command("V.SNAPSHOT", "s")
    assert error.message == "V.SNAPSHOT: no free snapshot slot (max 16 per session)"


def test_names_are_bytes_up_to_a_limit(wire) -> None:
    name = bytes(range(256)) * 2
    wire.command("V.CREATE", name, 1)
    assert wire.command("V.DROP", name) == 1
    error = wire.command("V.CREATE", b"x" * 600, 1)
    assert error.message.startswith("V.CREATE: name of 600 bytes (want 1..")
    assert wire.command("V.CREATE", b"", 1).message.startswith("V.CREATE: name of 0 bytes (want 1..")
