"""V.FETCH and V.FETCHALL: forms, nulls, ranges past the end."""

from __future__ import annotations

import numpy as np
import pytest
from pionkv.server.arguments import OPTIONS_BYTES
from pionkv.server.commands import vfetch
from pionkv.server.sending import Form

DIM = 4


def row(layer, index, side=0):
    return np.full(DIM, side * 1000 + layer * 100 + index, np.float32)


def rows(layer, count, side=0):
    return np.stack([row(layer, index, side) for index in range(count)]).tobytes()


@pytest.fixture
def stored(either):
    """Layers 0 and 2 of `s` hold 3 and 5 rows; layer 1 none."""
    either.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    either.command("V.STOREBATCH", "s", 0, 0, 3, rows(0, 3))
    either.command("V.STOREBATCH", "s", 2, 0, 5, rows(2, 5))
    return either


def test_range_ends_are_exclusive(stored) -> None:
    """R32."""
    assert stored.command("V.FETCH", "s", 0, "RANGE", 1, 3) == row(0, 1).tobytes() + row(0, 2).tobytes()
    assert stored.command("v.fetch", "s", 0, "range", 2, 3, "fmt", "f32") == row(0, 2).tobytes()


def test_null_for_a_layer_without_rows(stored) -> None:
    for layer in (1, 3, 999, -1):
        assert stored.command("V.FETCH", "s", layer, "RANGE", 0, 1) is None
        assert stored.command("V.FETCH", "s", layer, 0) is None


@pytest.mark.parametrize(
    "asked, text",
    [
        (["s", 0, "RANGE", 0, 4], "V.FETCH: rows 0..4 of layer 0 are not stored (layer holds 3)"),
        (["s", 0, "RANGE", 3, 4], "V.FETCH: rows 3..4 of layer 0 are not stored (layer holds 3)"),
        (["s", "BATCH", 0, 4, 3], "V.FETCH: rows 0..4 of layer 0 are not stored (layer holds 3)"),
        (["s", 0, 0, 7], "V.FETCH: rows 7..8 of layer 0 are not stored (layer holds 3)"),
        (["s", 0, -1], "V.FETCH: rows -1..0 of layer 0 are not stored (layer holds 3)"),
        (["s", 0, "RANGE", 2, 2], "invalid RANGE: end must exceed start (>=0)"),
        (["s", 0, "RANGE", -1, 2], "invalid RANGE: end must exceed start (>=0)"),
        (["s", "BATCH", 2, 2], "V.FETCH BATCH invalid range: end must exceed start (>=0)"),
        (["s", "BATCH", 0], "V.FETCH BATCH requires: session_id BATCH start end [num_layers]"),
        (["s", "BATCH", 0, 1, 0], "V.FETCH BATCH: num_layers must be 1-1024"),
        (["s", "BATCH", 0, 1, "x"], "value is not an integer or out of range"),
        (["s", 0, "RANGE", 0], "V.FETCH RANGE requires: session_id layer_id RANGE start end"),
        (["s", 0, "RANGE", 0, 1, "MORE"], "V.FETCH: unknown option 'MORE'"),
        (["s", 0, "RANGE", 0, 1, "FMT", "F8"], "V.FETCH: unknown FMT (want F32|F16|NATIVE|RAW)"),
        (["s", 0, 0, "FMT", "NATIVE"], "FMT NATIVE requires the RANGE or BATCH form"),
        (["s", 0, "FMT", "F32"], "no token IDs provided"),
        (["s", 0], "V.FETCH requires: session_id layer_id token_id [...]"),
        (["nosuch", 0, 0], "session not found"),
        (["nosuch", "BATCH", 0, 1], "session not found"),
    ],
)
def test_refused(asked, text, stored) -> None:
    error = stored.command("V.FETCH", *asked)
    assert (error.code, error.message) == ("ERR", text)


def test_batch_has_one_element_a_layer(stored) -> None:
    """R32."""
    first = row(0, 0).tobytes()
    assert stored.command("V.FETCH", "s", "BATCH", 0, 1) == [first, None, row(2, 0).tobytes()]
    assert stored.command("V.FETCH", "s", "BATCH", 0, 1, 1) == [first]
    assert stored.command("V.FETCH", "s", "BATCH", 0, 1, 5, "FMT", "RAW") == [
        first, None, row(2, 0).tobytes(), None, None,
    ]  # fmt: skip


def test_batch_of_a_session_without_layers(either) -> None:
    either.command("V.CREATE", "empty", DIM, "VQUANT", "fp32")
    error = either.command("V.FETCH", "empty", "BATCH", 0, 1)
    assert error.message == "V.FETCH BATCH: session has no stored layers"
    either.command("V.CREATE", "listed", "SCHEMA", 2, "fmt=fp32,dim=4", "fmt=fp16,dim=8")
    assert either.command("V.FETCH", "listed", "BATCH", 0, 1) == [None, None]


def test_layers_of_one_session_may_differ(either) -> None:
    either.command("V.CREATE", "mixed", 4, "SCHEMA", 2, "fmt=fp32", "fmt=fp16,dim=8")
    either.command("V.STOREBATCH", "mixed", 0, 0, 1, rows(0, 1))
    either.command("V.STOREBATCH", "mixed", 1, 0, 1, np.arange(8, dtype=np.float16).tobytes(), "FMT", "F16")
    native = np.arange(8, dtype=np.float16)
    assert either.command("V.FETCH", "mixed", "BATCH", 0, 1, "FMT", "NATIVE") == [
        rows(0, 1),
        native.tobytes(),
    ]
    assert either.command("V.FETCH", "mixed", "BATCH", 0, 1) == [
        rows(0, 1),
        native.astype(np.float32).tobytes(),
    ]


@pytest.fixture
def pair(either):
    either.command("KV.PREFIX.REGISTER", "n", DIM, "fp32")
    for layer in range(3):
        either.command("V.STOREBATCH", "n_pk", layer, 0, 6, rows(layer, 6, 1))
        either.command("V.STOREBATCH", "n_pv", layer, 0, 6, rows(layer, 6, 2))
    return either


def test_fetchall_is_in_layer_order(pair) -> None:
    found = pair.command("V.FETCHALL", "n_pk", "n_pv", 2, 3)
    assert found == [row(layer, 2, side).tobytes() for layer in range(3) for side in (1, 2)]


def test_fetchall_of_some_layers(pair) -> None:
    found = pair.command("V.FETCHALL", "n_pk", "n_pv", 0, 6, "LAYERS", 1, 2, "FMT", "RAW")
    assert found == [rows(1, 6, 1), rows(1, 6, 2)]
    found = pair.command("V.FETCHALL", "n_pk", "n_pv", 0, 1, "LAYERS", 2, 4)
    assert found == [row(2, 0, 1).tobytes(), row(2, 0, 2).tobytes(), None, None]


@pytest.mark.parametrize(
    "asked, text",
    [
        (["n_pk", "n_pv", 0, 7], "V.FETCHALL: rows 0..7 of layer 0 are not stored (layer holds 6)"),
        (["n_pk", "n_pv", 3, 3], "V.FETCHALL invalid range: end must exceed start (>=0)"),
        (["n_pk", "nosuch", 0, 1], "session not found"),
        (
            ["n_pk", "n_pv", 0, 1, "LAYERS", 2, 2],
            "V.FETCHALL: LAYERS must be within 0-1024, last above first",
        ),
        (["n_pk", "n_pv", 0, 1, "LAYERS", 2], "V.FETCHALL: unknown option 'LAYERS'"),
        (["n_pk", "n_pv", 0], "V.FETCHALL requires: k_session v_session start end"),
    ],
)
def test_fetchall_refused(asked, text, pair) -> None:
    error = pair.command("V.FETCHALL", *asked)
    assert (error.code, error.message) == ("ERR", text)


def test_null_is_the_null_of_the_protocol(server) -> None:
    server.connect().command("V.CREATE", "s", "SCHEMA", 1, "fmt=fp32,dim=4")
    server.connect().send(b"V.FETCH s 0 0\r\nV.FETCH s BATCH 0 1\r\n").expect(b"$-1\r\n*1\r\n$-1\r\n")
    server.connect(3).send(b"V.FETCH s 0 0\r\nV.FETCH s BATCH 0 1\r\n").expect(b"_\r\n*1\r\n_\r\n")


def test_endings_of_commands_are_remembered_only_if_they_are_short() -> None:
    """Who sends a long id, of a transaction that is none, has no memory of the server's for it."""
    vfetch._read_options.cache_clear()
    long = bytes(OPTIONS_BYTES)
    assert vfetch._options("V.FETCH", [b"TXN", long], txn=True).txn == long
    assert vfetch._read_options.cache_info().currsize == 0
    for _ in range(2):
        assert vfetch._options("V.FETCH", [b"fmt", b"raw"]).form is Form.RAW
    assert vfetch._read_options.cache_info()[:2] == (1, 1)
