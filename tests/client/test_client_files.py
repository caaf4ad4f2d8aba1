"""Store clients take large ranges out of the files of a server on this machine: the same rows and errors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import redis
from pionkv.client import BadReply, ServerRefused, StoreClient, files, mapping
from pionkv.client.asking import Fetch, fetch_range
from pionkv.client.buffers import Buffers
from pionkv.client.files import MOST_FAILURES, WORTH_BYTES
from pionkv.kernels import LayerSpec
from server_process import ServerProcess

Connect = Callable[..., Any]
DIM = 1024
COUNT = 2100
"""Rows that are worth it, of fp16: more than 4 MiB."""


def numbers(seed: int, rows: int = COUNT, dim: int = DIM) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype("float16")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with two layers of a session `s` and both sides of a prefix `p`, each written in two parts."""
    process = ServerProcess(tmp_path_factory.mktemp("files") / "data")
    process.start()
    with StoreClient(port=process.port) as client:
        client.create("s", LayerSpec("fp16", DIM))
        client.register("p", [LayerSpec("fp16", DIM)] * 2)
        for sid, layer, seed in SEEDS:
            client.store(sid, layer, 0, numbers(seed)[:700])
            client.store(sid, layer, 700, numbers(seed)[700:])
    yield process.port
    process.close()


SEEDS = [("s", 0, 1), ("s", 1, 2), ("p_pk", 0, 3), ("p_pv", 0, 4), ("p_pk", 1, 5), ("p_pv", 1, 6)]


@pytest.fixture(autouse=True)
def worth_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that parts of a few rows are worth it, too."""
    monkeypatch.setattr(files, "WORTH_BYTES", 1)


def equal(found: Any, expected: Any) -> bool:
    return np.array_equal(found, expected) and found.dtype == expected.dtype and found.flags.writeable


@pytest.mark.parametrize("share", [1, 700 * DIM * 2, 8 << 20])
@pytest.mark.parametrize("start, end", [(0, COUNT), (0, 1), (699, 701), (700, 2000), (COUNT - 1, COUNT)])
def test_every_way_to_ask_for_a_range_gives_the_same_rows(
    port: int, connect: Connect, start: int, end: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the share of a thread is: rows, parts of what was written, or all."""
    monkeypatch.setattr(mapping, "BYTES_A_THREAD", share)
    client, wire = connect(port=port), connect(port=port, prefer_files=False)
    part = (end - start) * DIM * 2
    for layer in (0, 1):
        assert equal(client.fetch_range("s", layer, start, end, "F16"), numbers(1 + layer)[start:end])
        raw = client.fetch_range("s", layer, start, end, "RAW")
        assert equal(raw, wire.fetch_range("s", layer, start, end, "RAW"))
    assert client.files.mapped_bytes == 4 * part
    for count in (None, 1, 2):
        both = client.fetch_batch("s", start, end, count, "F16")
        assert [equal(each, numbers(1 + layer)[start:end]) for layer, each in enumerate(both)] == [True] * (
            count or 2
        )
    for layer, (keys, values) in enumerate(client.fetch_all("p", start, end, "F16")):
        assert equal(keys, numbers(3 + 2 * layer)[start:end])
        assert equal(values, numbers(4 + 2 * layer)[start:end])
    assert client.files.mapped_bytes == (4 + 5 + 4) * part
    assert wire.files.mapped_bytes == 0


def test_what_was_fetched_is_the_callers_and_the_next_fetch_sees_what_was_written(
    port: int, connect: Connect, namespace: str
) -> None:
    client = connect(port=port)
    client.create(namespace, LayerSpec("fp16", DIM))
    client.store(namespace, 0, 0, numbers(7))
    first = client.fetch_range(namespace, 0, 0, COUNT, "F16")
    first[:] = 0
    assert equal(client.fetch_range(namespace, 0, 0, COUNT, "F16"), numbers(7))
    client.store(namespace, 0, 5, numbers(8)[:90])
    changed = client.fetch_range(namespace, 0, 0, COUNT, "F16")
    assert equal(changed, np.concatenate([numbers(7)[:5], numbers(8)[:90], numbers(7)[95:]]))
    client.store(namespace, 0, COUNT, numbers(9))
    assert equal(client.fetch_range(namespace, 0, COUNT, 2 * COUNT, "F16"), numbers(9))
    assert client.files.not_mapped is None


def test_rows_that_have_to_be_converted_come_over_the_connection(
    port: int, connect: Connect, namespace: str
) -> None:
    client = connect(port=port)
    client.create(namespace, LayerSpec("kivi4_keys", 64))
    client.store(namespace, 0, 0, numbers(7, dim=64))
    with redis.Redis(port=port) as other:
        before = maps_asked(other)
        for _ in range(3):
            assert equal(client.fetch_range("s", 0, 0, COUNT), numbers(1).astype("float32"))
            assert client.fetch_range(namespace, 0, 0, COUNT, "F16").shape == (COUNT, 64)
        assert maps_asked(other) == before + 2, "it is tried once for each"
    assert client.files.mapped_bytes == 0 and "groups" in str(client.files.not_mapped)
    assert equal(client.fetch_range("s", 0, 0, COUNT, "F16"), numbers(1)), "in another form they do not"
    assert client.files.mapped_bytes == COUNT * DIM * 2


def maps_asked(client: redis.Redis) -> int:
    found = client.info("commandstats").get("cmdstat_v.map", {"calls": 0})
    return int(found["calls"])


def test_how_long_rows_are_is_learned(
    port: int, connect: Connect, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WORTH_BYTES", WORTH_BYTES)
    client = connect(port=port)
    client.create(namespace, LayerSpec("fp16", 8192))
    client.create(namespace + "small", LayerSpec("fp16", 32))
    rows = numbers(7, rows=300, dim=8192)
    client.store(namespace, 0, 0, rows)
    assert equal(client.fetch_range(namespace, 0, 0, 300, "F16"), rows)
    assert client.files.mapped_bytes == 0, "rows of 2 KiB are supposed"
    assert equal(client.fetch_range(namespace, 0, 0, 299, "F16"), rows[:299])
    assert client.files.mapped_bytes == 299 * 8192 * 2
    small = numbers(8, rows=2048, dim=32)
    client.store(namespace + "small", 0, 0, small)
    for _ in range(2):
        assert equal(client.fetch_range(namespace + "small", 0, 0, 2048, "F16"), small)
    assert client.files.mapped_bytes == 299 * 8192 * 2 + small.nbytes, (
        "the second time they are known to be few"
    )


def test_errors_are_those_of_the_fetch(port: int, connect: Connect, namespace: str) -> None:
    client = connect(port=port)
    with pytest.raises(ServerRefused, match="session not found"):
        client.fetch_range(namespace, 0, 0, COUNT, "F16")
    with pytest.raises(ServerRefused, match="rows 0..2101 of layer 0 are not stored"):
        client.fetch_range("s", 0, 0, COUNT + 1, "F16")
    with pytest.raises(ServerRefused, match="end must exceed start"):
        client.fetch_range("s", 0, 2, 2, "F16")
    client.create(namespace, LayerSpec("fp16", DIM))
    client.store(namespace, 1, 0, numbers(7))
    for what in (
        lambda: client.fetch_range(namespace, 0, 0, COUNT, "F16"),
        lambda: client.fetch_batch(namespace, 0, COUNT, None, "F16"),
        lambda: client.fetch_batch(namespace, 0, COUNT, 1, "F16"),
    ):
        with pytest.raises(BadReply):
            what()
    assert equal(client.fetch_range(namespace, 1, 0, COUNT, "F16"), numbers(7))
    assert client.files.mapped_bytes == COUNT * DIM * 2


def test_rows_that_go_while_their_place_is_told_are_not_taken(
    port: int, connect: Connect, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is dropped and made anew between the answer and the look into its file."""
    client = connect(port=port)
    fresh = LayerSpec("fp16", DIM)
    client.create(namespace, fresh)
    client.store(namespace, 0, 0, numbers(7))
    real = Fetch.take

    def late(self: Fetch, told: mapping.RowMap) -> None:
        with StoreClient(port=port) as other:
            other.drop(namespace)
            other.create(namespace, fresh)
            other.store(namespace, 0, 0, numbers(8))
        real(self, told)

    monkeypatch.setattr(Fetch, "take", late)
    found = client.fetch_range(namespace, 0, 0, COUNT, "F16")
    assert equal(found, numbers(7)) or equal(found, numbers(8))


@pytest.mark.parametrize("wrong", ["path", "identity"])
def test_files_that_cannot_be_used_are_left_alone_after_a_while(
    port: int, connect: Connect, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a container: the path is not there, or another file is."""
    client, looks = connect(port=port), []
    real = mapping._map

    def elsewhere(file: mapping.File) -> Any:
        looks.append(file)
        device, inode, changed = file.identity
        identity = (device, inode + 1, changed) if wrong == "identity" else file.identity
        return real(mapping.File(b"/nowhere" if wrong == "path" else file.path, identity))

    monkeypatch.setattr(mapping, "_map", elsewhere)
    for _ in range(2 * MOST_FAILURES):
        assert equal(client.fetch_range("s", 0, 0, COUNT, "F16"), numbers(1))
    assert len(looks) == MOST_FAILURES and not client.files.tried and client.files.mapped_bytes == 0
    assert ("No such file" if wrong == "path" else "another file here") in str(client.files.not_mapped)


def test_a_user_who_may_not_ask_for_places_gets_the_rows(port: int, connect: Connect) -> None:
    with redis.Redis(port=port) as client:
        client.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-v.map")
    client = connect(port=port, username="u", password="p")
    assert equal(client.fetch_range("s", 0, 0, COUNT, "F16"), numbers(1))
    assert str(client.files.not_mapped).startswith("NOPERM")


@pytest.mark.parametrize(
    "reply",
    ["OK", [1, 2], [1, COUNT, [], b"\0"], [1, COUNT, [], struct.pack("<HBBIIII", 0, 0, 2, DIM, 0, 0, 0)]],
)
def test_an_answer_that_makes_no_sense_ends_the_fetch(reply: object) -> None:
    known = files.Files(True)
    fetch = fetch_range("s", 0, 0, COUNT, "F16")
    fetch.begin(Buffers(0))
    with pytest.raises(BadReply):
        known.take(fetch, reply)


def test_a_server_elsewhere_is_not_asked() -> None:
    assert not StoreClient("192.0.2.1").files.tried
    assert StoreClient(port=1).files.tried
    assert not StoreClient(port=1, prefer_files=False).files.tried
