"""KV.PREFIX.MAP and V.MAP: where rows lie in files, for clients on this machine."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from pionkv.kernels.formats import format_by_tag
from pionkv.protocol.errors import CommandError

DIM = 32
ROW = 2 * DIM


def mapped_rows(reply, rows):
    """The bytes of each layer and side, read from the files."""
    _, _, files, told = reply
    found, position = {}, 0
    while position < len(told):
        layer, side, tag, dim, _, _, runs = struct.unpack_from("<HBBIIII", told, position)
        position += 20
        assert (format_by_tag(tag).name, dim) == ("fp16", DIM)
        data = b""
        for _ in range(runs):
            number, count, offset = struct.unpack_from("<IIQ", told, position)
            position += 16
            path, *identity = files[number]
            found_there = os.stat(bytes(path))
            assert identity[:2] == [found_there.st_dev, found_there.st_ino]
            with open(bytes(path), "rb") as file:
                file.seek(offset)
                data += file.read(count * ROW)
        assert len(data) == rows * ROW
        found[layer, side] = data
    return found


def store(wire, tokens, *options):
    wire.command("KV.PREFIX.REGISTER", "a", DIM, "fp16", *options)
    for side in ("a_pk", "a_pv"):
        assert wire.command("V.STOREBATCH", side, 0, 0, tokens, bytes(4 * DIM * tokens)) == "OK"


def served(wire):
    """Hits, and bytes of prefixes that were served."""
    stats = wire.command("PION.STATS")
    shown = {bytes(name): value for name, value in zip(stats[::2], stats[1::2], strict=True)}
    return shown[b"kvprefix_hits"], shown[b"kvprefix_bytes_served"]


def test_a_map_says_where_the_rows_are(either) -> None:
    wire = either
    assert wire.command("KV.PREFIX.MAP", "a") is None
    rows = np.random.default_rng(4).standard_normal((2, 2, 9, DIM)).astype(np.float16)
    wire.command("KV.PREFIX.REGISTER", "a", DIM, "fp16")
    for start, end in ((0, 4), (4, 5), (5, 9)):
        for layer in range(2):
            for side, name in enumerate(("a_pk", "a_pv")):
                data = rows[layer, side, start:end].tobytes()
                assert (
                    wire.command("V.STOREBATCH", name, layer, start, end - start, data, "FMT", "F16") == "OK"
                )
        reply = wire.command("KV.PREFIX.MAP", "a")
        assert reply[1] == end
        for (layer, side), data in mapped_rows(reply, end).items():
            assert data == rows[layer, side, :end].tobytes()
    wire.command("V.STOREBATCH", "a_pk", 0, 2, 1, bytes(DIM * 4))
    changed = wire.command("KV.PREFIX.MAP", "a")
    assert changed[0] > reply[0]
    assert mapped_rows(changed, 9)[0, 0][2 * DIM * 2 : 3 * DIM * 2] == bytes(DIM * 2)
    assert mapped_rows(reply, 9)[0, 0] == rows[0, 0].tobytes(), "what was mapped stays as it was"
    wire.command("V.STOREBATCH", "a_pk", 0, 9, 1, bytes(DIM * 4))
    assert wire.command("KV.PREFIX.MAP", "a") is None, "the sides disagree"


def test_a_map_counts_as_a_restore(wire) -> None:
    store(wire, 100, "PREFILL_MS", 1000)
    assert wire.command("KV.PREFIX.MAP", "a")[1] == 100
    assert served(wire) == (1, 2 * 100 * DIM * 2)


@pytest.fixture
def layers(wire):
    """Three layers of a session; the first holds nothing, the last was written in three parts."""
    rows = np.random.default_rng(5).standard_normal((2, 9, DIM)).astype(np.float16)
    assert not isinstance(wire.command("V.CREATE", "s", DIM, "VQUANT", "fp16"), CommandError)
    for layer, start, end in ((1, 0, 9), (2, 0, 4), (2, 4, 5), (2, 5, 9)):
        data = rows[layer - 1, start:end].tobytes()
        assert wire.command("V.STOREBATCH", "s", layer, start, end - start, data, "FMT", "F16") == "OK"
    return rows


def test_a_range_of_a_session_is_where_its_map_says(either, layers) -> None:
    for start, end in ((0, 9), (0, 1), (3, 6), (8, 9)):
        reply = either.command("V.MAP", "s", start, end)
        assert reply[1] == end - start
        assert mapped_rows(reply, end - start) == {
            (layer, 0): layers[layer - 1, start:end].tobytes() for layer in (1, 2)
        }
        (only,) = mapped_rows(either.command("V.MAP", "s", start, end, "layers", 2, 3), end - start)
        assert only == (2, 0)
    assert either.command("V.MAP", "s", 0, 1, "LAYERS", 0, 1) is None
    assert either.command("V.MAP", "s", 0, 1, "LAYERS", 3, 9) is None
    before = either.command("V.MAP", "s", 0, 9)
    either.command("V.STOREBATCH", "s", 1, 0, 1, bytes(4 * DIM))
    after = either.command("V.MAP", "s", 0, 9)
    assert after[0] > before[0]
    assert mapped_rows(after, 9)[1, 0][:ROW] == bytes(ROW)
    assert mapped_rows(before, 9)[1, 0] == layers[0].tobytes(), "what was mapped stays as it was"


def test_the_beginning_of_a_session_counts_as_a_restore_and_its_rows_as_served(wire) -> None:
    store(wire, 100, "PREFILL_MS", 1000)
    assert wire.command("V.MAP", "a_pk", 1, 100)[1] == 99
    assert served(wire) == (0, 99 * ROW)
    assert wire.command("V.MAP", "a_pv", 0, 100)[1] == 100
    assert served(wire) == (0, 199 * ROW)
    assert wire.command("V.MAP", "a_pk", 0, 50)[1] == 50
    assert served(wire) == (1, 249 * ROW)


@pytest.mark.parametrize("words", [("V.MAP", "a_pk", 0, 1), ("KV.PREFIX.MAP", "a")])
def test_a_client_on_another_machine_gets_no_map(words, wire, server) -> None:
    store(wire, 1)
    server.call(
        lambda app: next(iter(app.service.connections.values())).client.__setattr__("same_machine", False)
    )
    error = wire.command(*words)
    assert f"{words[0]} serves clients on this machine only; use V.FETCH" in error.message


def test_rows_that_are_coded_in_groups_have_no_map(wire) -> None:
    wire.command("KV.PREFIX.REGISTER", "n", DIM, "kivi4")
    wire.command("V.STOREBATCH", "n_pk", 0, 0, 8, bytes(8 * ROW), "FMT", "F16")
    assert "codes rows in groups" in wire.command("V.MAP", "n_pk", 0, 8).message
