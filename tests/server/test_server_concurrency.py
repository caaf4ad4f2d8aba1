"""Several clients at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

DIM, COUNT = 256, 4_000
VERSIONS = [np.full((COUNT, DIM), value, np.float32).tobytes() for value in (1.0, 2.0)]


@pytest.mark.parametrize("format", ["fp32", "fp16", "int8"])
def test_a_reader_sees_the_whole_of_one_write_or_of_another(format, server) -> None:
    writer = server.connect()
    writer.command("V.CREATE", "s", DIM, "VQUANT", format)
    seen = []
    for version in VERSIONS:
        assert writer.command("V.STOREBATCH", "s", 0, 0, COUNT, version) == "OK"
        seen.append(bytes(writer.command("V.FETCH", "s", 0, "RANGE", 0, COUNT, "FMT", "RAW")))
    assert seen[0] != seen[1]
    done = threading.Event()

    def read(form):
        wire, found = server.connect(), set()
        while not done.is_set():
            found.add(bytes(wire.command("V.FETCH", "s", 0, "RANGE", 0, COUNT, "FMT", form)))
        return found

    with ThreadPoolExecutor() as pool:
        raw, elements = pool.submit(read, "RAW"), pool.submit(read, "F32")
        for index in range(40):
            assert writer.command("V.STOREBATCH", "s", 0, 0, COUNT, VERSIONS[index % 2]) == "OK"
        done.set()
    assert raw.result() <= set(seen)
    for rows in elements.result():
        assert rows in VERSIONS


def test_many_clients_each_with_its_own_session(server) -> None:
    """Every client checks its own rows against an array, while the others do the same."""

    def work(number):
        wire = server.connect(2 + number % 2)
        random = np.random.default_rng(number)
        sid = f"s{number}"
        wire.command("V.CREATE", sid, DIM, "VQUANT", "fp32")
        model = np.zeros((0, DIM), np.float32)
        for _ in range(15):
            rows = random.standard_normal((int(random.integers(1, 1500)), DIM), np.float32)
            start = int(random.integers(0, len(model) + 1))
            assert wire.command("V.STOREBATCH", sid, 0, start, len(rows), rows.tobytes()) == "OK"
            model = np.concatenate([model[:start], rows, model[start + len(rows) :]])
            low = int(random.integers(0, len(model)))
            assert wire.command("V.FETCH", sid, 0, "RANGE", low, len(model)) == model[low:].tobytes()
        return True

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(24)))


def test_dropping_under_a_reader(server) -> None:
    """Who has begun to read gets all rows, though the session is dropped and made anew meanwhile."""
    wire, reader = server.connect(), server.connect()
    blob = np.random.default_rng(1).bytes(COUNT * DIM * 4)
    wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
    wire.command("V.STOREBATCH", "s", 0, 0, COUNT, blob)
    reader.send(b"V.FETCH s 0 RANGE 0 %d FMT RAW\r\n" % COUNT)
    header = b"$%d\r\n" % len(blob)
    reader.expect(header)
    assert wire.command("V.DROP", "s") == 1
    for _ in range(3):
        wire.command("V.CREATE", "s", DIM, "VQUANT", "fp32")
        wire.command("V.STOREBATCH", "s", 0, 0, COUNT, bytes(len(blob)))
        wire.command("V.DROP", "s")
    reader.expect(blob + b"\r\n")


def test_dropping_under_a_writer(server) -> None:
    """A write whose session went away is refused, and the connection goes on."""
    wire, writer = server.connect(), server.connect()
    blob = bytes(COUNT * DIM * 4)
    for format in ("fp32", "int8"):
        wire.command("V.CREATE", "s", DIM, "VQUANT", format)
        writer.send(
            b"*6\r\n$12\r\nV.STOREBATCH\r\n$1\r\ns\r\n$1\r\n0\r\n$1\r\n0\r\n$4\r\n4000\r\n$%d\r\n" % len(blob)
        )
        writer.send(blob[: len(blob) // 2])
        assert wire.command("V.DROP", "s") == 1
        writer.send(blob[len(blob) // 2 :] + b"\r\n")
        error = writer.reply()
        assert (error.code, error.message) in {
            ("ERR", "session not found"),
            ("STALE", "V.STOREBATCH: the session changed meanwhile"),
        }
        assert writer.command("PING") == "PONG"
