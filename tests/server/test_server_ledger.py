"""V.LEDGER: every byte in exactly one term. Each test names the requirements it shows."""

from __future__ import annotations

import numpy as np
import pytest
from prefix_rows import DIM, LAYERS, ROW_BYTES, SIDES, publish

BLOCK = 4096
MIB = 1 << 20
HEADER = BLOCK


def ledger(wire, *name):
    lines = wire.command("V.LEDGER", *name)
    assert isinstance(lines, bytes), lines
    return {key: int(value) for key, _, value in (line.partition(":") for line in lines.decode().split())}


def up(length):
    return -(-length // BLOCK) * BLOCK


def kinds(found, kind):
    return {name: found[f"{kind}_{name}"] for name in ("codes", "scales", "full_precision", "states")}


def check(found):
    """R68: the terms are the total, and the total is what was accounted."""
    terms = kinds(found, "physical").values()
    rest = [found[f"physical_{name}"] for name in ("headers", "other_rows", "slack")]
    assert sum(terms) + sum(rest) == found["physical_total"] == found["accounted_bytes"]
    assert sum(kinds(found, "logical").values()) == found["logical_total"]
    assert min(found.values()) >= 0


def store(wire, name, layers, count, *layout):
    """Rows of zeros, stored in their own format."""
    assert wire.command("KV.PREFIX.REGISTER", name, *layout) == "OK"
    for side in SIDES:
        sid = f"{name}_p{side}"
        for layer, row_bytes in enumerate(layers):
            blob = bytes(count * row_bytes)
            assert wire.command("V.STOREBATCH", sid, layer, 0, count, blob, "FMT", "RAW") == "OK"


@pytest.mark.parametrize(
    "format, codes, scales, full",
    [
        ("fp16", 0, 0, 2048),
        ("fp32", 0, 0, 4096),
        ("int8", 1024, 8, 0),
        ("fp8", 1024, 68, 0),
        ("turbo4", 512, 68, 0),
        ("turbo2", 256, 68, 0),
        ("mlx4g32", 512, 128, 0),
        ("mlx8g64", 1024, 64, 0),
    ],
)
def test_a_row_of_each_kind(format, codes, scales, full, wire) -> None:
    """R68, R71: at dim 1024 a row of mlx4g32 is 640 bytes, 512 of codes and 128 of scales and biases."""
    store(wire, "n", [codes + scales + full], 10, 1024, format)
    found = ledger(wire, "n")
    check(found)
    terms = {"codes": 20 * codes, "scales": 20 * scales, "full_precision": 20 * full, "states": 0}
    assert kinds(found, "physical") == kinds(found, "logical") == terms
    assert found["rows_as_fp16_bytes"] == 20 * 2048
    assert found["physical_headers"] == HEADER
    row = codes + scales + full
    assert found["physical_slack"] == 2 * (up(10 * row) - 10 * row)


@pytest.mark.parametrize("format, mebibytes, row", [("fp16", 6.5625, 2048), ("rvq1", 0.87158203125, 272)])
def test_the_rvq_example(format, mebibytes, row, wire) -> None:
    """R71: 28 layers, 8 heads of 128, 120 tokens; what fp16 keys take, and the same keys in rvq1."""
    spec = f"fmt={format},dim=1024" + (",head=128" if format == "rvq1" else "")
    wire.command("V.CREATE", "keys", "SCHEMA", 28, *[spec] * 28)
    for layer in range(28):
        assert wire.command("V.STOREBATCH", "keys", layer, 0, 120, bytes(120 * row), "FMT", "RAW") == "OK"
    found = ledger(wire, "keys")
    check(found)
    assert found["logical_total"] == mebibytes * MIB == kinds_total(found)
    assert found["rows_as_fp16_bytes"] == 6.5625 * MIB


def kinds_total(found):
    return sum(kinds(found, "physical").values())


def test_rotated_elements_are_full_precision(wire) -> None:
    """R68: of bf16_rope_fp8_body the first elements are bfloat16, the rest codes."""
    spec = "fmt=bf16_rope_fp8_body,dim=96,rope=32"
    wire.command("V.CREATE", "s", "SCHEMA", 1, spec)
    row = 64 + 64 + 4
    assert wire.command("V.STOREBATCH", "s", 0, 0, 5, bytes(5 * row), "FMT", "RAW") == "OK"
    terms = {"codes": 5 * 64, "scales": 5 * 4, "full_precision": 5 * 64, "states": 0}
    assert kinds(ledger(wire, "s"), "physical") == terms


def test_mixed_layers_are_the_sum_of_what_they_are(wire) -> None:
    """R72, R77: full precision at both ends, codes in between; the ratio counts all of it."""
    specs = ["fmt=fp16,dim=1024", "fmt=mlx4g32,dim=1024", "fmt=mlx4g32,dim=1024", "fmt=fp16,dim=1024"]
    layout = ("SCHEMA", "K", 4, *specs, "V", 4, *specs)
    store(wire, "n", [2048, 640, 640, 2048], 100, *layout)
    found = ledger(wire, "n")
    check(found)
    terms = {"codes": 400 * 512, "scales": 400 * 128, "full_precision": 400 * 2048, "states": 0}
    assert kinds(found, "logical") == terms
    assert found["rows_as_fp16_bytes"] / found["logical_total"] == pytest.approx(8192 / 5376)


def test_shared_pages_count_once_in_physical(wire) -> None:
    """R69: a fork adds to what can be read, not to what is taken."""
    publish(wire, "n", 1, 0, 300)
    alone = ledger(wire)
    wire.command("KV.PREFIX.FORK", "n", "child", 200)
    both = ledger(wire)
    for found in (alone, both, ledger(wire, "n"), ledger(wire, "child")):
        check(found)
    rows = 2 * LAYERS * ROW_BYTES
    assert both["physical_total"] == alone["physical_total"]
    assert (alone["logical_total"], both["logical_total"]) == (300 * rows, 500 * rows)
    child = ledger(wire, "child")
    assert (child["logical_total"], child["shared_pages"], child["physical_other_rows"]) == (
        200 * rows,
        1,
        100 * rows,
    )
    assert both["shared_pages"] == 0 and both["pages"] == 1
    wire.command("KV.PREFIX.DROP", "n")
    left = ledger(wire)
    check(left)
    assert (left["logical_total"], left["physical_other_rows"]) == (200 * rows, 100 * rows)


def test_rows_that_were_cut_are_a_term_of_their_own(wire) -> None:
    """R68: their bytes are there until their page goes."""
    publish(wire, "n", 1, 0, 300)
    before = ledger(wire, "n")
    wire.command("KV.PREFIX.TRUNCATE", "n", 100)
    found = ledger(wire, "n")
    check(found)
    assert found["physical_total"] == before["physical_total"]
    assert found["physical_other_rows"] == 200 * 2 * LAYERS * ROW_BYTES


def test_states_are_a_term(wire) -> None:
    """R68, R77."""
    publish(wire, "n", 1, 0, 3)
    blob = bytes(10_000)
    wire.command("SSM.PREFIX.STORE", "n", 0, blob)
    wire.command("SSM.PREFIX.STORE", "n", 7, blob)
    found = ledger(wire, "n")
    check(found)
    assert found["logical_states"] == found["physical_states"] == 20_000
    assert (found["pages"], found["physical_headers"]) == (3, 3 * HEADER)


@pytest.mark.parametrize("name", [("n",), ("n_pk",), ()], ids=["namespace", "session", "store"])
def test_accounting_stands_beside_what_is_resident(name, wire) -> None:
    """R73: two numbers, from the catalog and from the file system, which agree."""
    publish(wire, "n", 1, 0, 20_000)
    found = ledger(wire, *name)
    check(found)
    assert abs(found["resident_bytes"] - found["accounted_bytes"]) <= 2 * BLOCK


def test_a_long_prefix_takes_what_the_ledger_says(wire) -> None:
    """R73: 86,580 tokens of 1,024 values in mlx4g32; within a hundredth of what the files take."""
    tokens, row, piece = 86_580, 640, 21_645
    ids = np.arange(tokens, dtype="<u4").tobytes()
    txn = wire.command("KV.PREFIX.BEGIN", "n", "KV", 1024, "mlx4g32", "LAYERS", 2, "TOKENS", ids)
    blob = bytes(piece * row)
    for start in range(0, tokens, piece):
        for layer in range(2):
            for side in SIDES:
                place = (f"n_p{side}", layer, start, piece)
                assert wire.command("V.STOREBATCH", *place, blob, "FMT", "RAW", "TXN", txn) == "OK"
    assert wire.command("KV.PREFIX.PUBLISH", txn)[2] == tokens
    found = ledger(wire, "n")
    check(found)
    assert found["logical_total"] == 4 * tokens * row == 221_644_800
    assert found["physical_total"] == pytest.approx(found["resident_bytes"], rel=0.01)
    assert found["physical_total"] == pytest.approx(found["logical_total"], rel=0.01)
    assert found["rows_as_fp16_bytes"] / found["logical_total"] == 3.2


def test_everything_goes_back_to_zero(wire) -> None:
    """R21: codes, scales and states alike."""
    store(wire, "q", [640], 500, 1024, "mlx4g32")
    wire.command("SSM.PREFIX.STORE", "q", 0, bytes(5000))
    txn = wire.command("KV.PREFIX.BEGIN", "t", "KV", DIM, "fp16", "LAYERS", 1)
    blob = bytes(500 * ROW_BYTES)
    wire.command("V.STOREBATCH", "t_pk", 0, 0, 500, blob, "FMT", "RAW", "TXN", txn)
    assert ledger(wire)["workspace_bytes"] == HEADER + up(500 * ROW_BYTES)
    wire.command("KV.PREFIX.ABORT", txn)
    assert ledger(wire)["workspace_bytes"] == 0
    wire.command("KV.PREFIX.DROP", "q")
    found = ledger(wire)
    names = [name for name in found if not name.startswith(("process", "catalog", "read"))]
    assert {name: found[name] for name in names if found[name]} == {}


def test_the_store_adds_up_to_its_budget(wire) -> None:
    """R68, R70, R75: pages and plain keys are what the budget counts; what was read is another number."""
    publish(wire, "n", 1, 0, 300)
    wire.command("SET", "plain", "x" * 1000)
    wire.command("V.CREATE", "single", DIM, "VQUANT", "int8")
    wire.command("V.STOREBATCH", "single", 0, 0, 9, np.ones((9, DIM), np.float32).tobytes())
    found = ledger(wire)
    check(found)
    assert found["plain_keys_bytes"] > 1000
    assert found["accounted_bytes"] + found["plain_keys_bytes"] == found["budget_used_bytes"]
    before = found["read_bytes_since_start"]
    wire.command("V.FETCH", "n_pk", 0, "RANGE", 0, 300, "FMT", "RAW")
    after = ledger(wire)
    assert after["read_bytes_since_start"] - before == 300 * ROW_BYTES
    assert after["budget_used_bytes"] == found["budget_used_bytes"]


def test_a_name_nobody_has(wire) -> None:
    assert wire.command("V.LEDGER", "nobody").message == "namespace not found"
