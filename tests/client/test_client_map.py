"""Rows out of the server's files: the same bits, and the connection wherever a file cannot be used."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import redis
from pionkv.client import PionPromptCache, blank
from pionkv.client.deadline import Deadline
from pionkv.client.endpoint import Endpoint
from pionkv.client.errors import BadReply, NotStored, OtherTokens
from pionkv.client.lane import Lane
from pionkv.client.link import Link, Work
from pionkv.client.mapping import File, NotMapped, RowMap, Side, fill, fill_prefix
from pionkv.client.prefix import restore
from pionkv.client.reuse import find
from pionkv.client.route import LaneName, Route
from pionkv.client.rows import room
from pionkv.kernels import LayerSpec
from pionkv.kernels.formats import FORMATS
from small_models import MODELS, build

Tiny = Callable[..., Any]
IDS = [int(token) for token in np.random.default_rng(3).integers(0, 300, 300)]
CHUNK = 64
FORMATS_BY_NAME = [name for name, known in FORMATS.items() if known.family != "rope" and known.group <= 64]


def cache_for(model: Any, port: int, **options: Any) -> PionPromptCache:
    return PionPromptCache(model, port=port, prefill_chunk_size=CHUNK, **{"background": False, **options})


def bits(caches: list[Any]) -> list[bytes]:
    return [
        np.array(mx.contiguous(side[:, :, : cache.offset]).view(mx.uint8)).tobytes()
        for cache in caches
        for side in (cache.keys, cache.values)
    ]


def moved(cache: PionPromptCache) -> tuple[int, int]:
    stats = cache.stats()
    return int(stats["bytes_mapped"] or 0), int(stats["bytes_received"] or 0)


@pytest.mark.parametrize("vquant", ["auto", *FORMATS_BY_NAME])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mapped_rows_have_the_bits_of_received_ones(
    tiny: Tiny, store_port: int, namespace: str, vquant: str, dtype: str
) -> None:
    model = tiny(dtype)
    cache_for(model, store_port, vquant=vquant).get_or_prefill(IDS, namespace)
    mapped = cache_for(model, store_port, vquant=vquant)
    received = cache_for(model, store_port, vquant=vquant, lane="tcp")
    assert bits(mapped.get_or_prefill(IDS, namespace)) == bits(received.get_or_prefill(IDS, namespace))
    size = 0 if received.shape is None else received.shape.plan.bytes(len(IDS))
    assert moved(mapped)[0] == size and moved(mapped)[1] < 10_000
    assert moved(received)[0] == 0 and moved(received)[1] > size


def test_packed_caches_are_mapped_too(store_port: int, namespace: str) -> None:
    model = build(MODELS["llama"], "float16")
    cold = cache_for(model, store_port, kv_bits=4).get_or_prefill(IDS, namespace)
    mapped = cache_for(model, store_port, kv_bits=4)
    for ours, theirs in zip(mapped.get_or_prefill(IDS, namespace), cold, strict=True):
        for one, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
            assert mx.array_equal(one, other[..., :300, :])
    assert moved(mapped)[0] > 0


@pytest.mark.parametrize("cuts", [(300,), (100, 300), (1, 64, 150, 300)])
def test_a_prefix_in_several_pages(
    tiny: Tiny, store_port: int, namespace: str, cuts: tuple[int, ...]
) -> None:
    model, ids = tiny(), [len(cuts), *IDS]
    for end in cuts:
        cache_for(model, store_port, publish_after=1).get_or_prefill(ids[:end])
    mapped, received = cache_for(model, store_port), cache_for(model, store_port, lane="tcp")
    for length in (1, 64, 100, 299, 300):
        assert bits(mapped.get_or_prefill(ids[:length])) == bits(received.get_or_prefill(ids[:length]))
    assert mapped.stats()["misses"] == 0 and moved(mapped)[0] > 0


def test_what_was_mapped_is_the_clients_own(tiny: Tiny, store_port: int, namespace: str) -> None:
    model = tiny()
    cache_for(model, store_port).get_or_prefill(IDS, namespace)
    cache = cache_for(model, store_port)
    first = cache.get_or_prefill(IDS, namespace)
    expected = bits(first)
    for each in first:
        each.trim(200)
    mx.eval(model(mx.array(IDS[:150])[None], cache=first))
    assert bits(cache.get_or_prefill(IDS, namespace)) == expected


def test_a_file_that_is_gone_before_it_is_opened(
    tiny: Tiny, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    model, server = tiny(), start_server()
    expected = bits(cache_for(model, server.port).get_or_prefill(IDS, "n"))
    mapped = cache_for(model, server.port)
    mapped.get_or_prefill(IDS, "n")
    pages = server.data_dir / "pages"
    hidden = tmp_path / "hidden"
    pages.rename(hidden)
    pages.mkdir()
    try:
        assert bits(mapped.get_or_prefill(IDS, "n")) == expected
    finally:
        pages.rmdir()
        hidden.rename(pages)
    assert bits(mapped.get_or_prefill(IDS, "n")) == expected
    assert mapped.stats()["hits"] == 3, mapped.stats()


def test_another_file_under_the_same_path_is_not_taken(tiny: Tiny, start_server: Callable[..., Any]) -> None:
    """As in a container: the path is there, and the page number fits, but it is not the server's file."""
    model, server = tiny(), start_server()
    expected = bits(cache_for(model, server.port).get_or_prefill(IDS, "n"))
    (page,) = (server.data_dir / "pages").iterdir()
    mapped = cache_for(model, server.port)
    real = os.stat(page)
    copy = page.with_name("copy")
    shutil.copy2(page, copy)
    with copy.open("r+b") as file:
        file.seek(os.path.getsize(copy) // 2)
        file.write(b"other")
    with pytest.raises(NotMapped, match="another file here"):
        map_one(copy, (real.st_dev, real.st_ino, real.st_mtime_ns))
    with pytest.raises(NotMapped, match="no page file"):
        status = os.stat(copy)
        map_one(copy, (status.st_dev, status.st_ino, status.st_mtime_ns))
    with pytest.raises(NotMapped, match="No such file"):
        map_one(page.with_name("gone"), (0, 0, 0))
    assert bits(mapped.get_or_prefill(IDS, "n")) == expected


class Sink:
    """A landing that notes what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int, bytes]] = []

    def fill(self, start: int, end: int, rows: memoryview) -> None:
        self.got.append((start, end, bytes(rows)))


def map_one(path: Path, identity: tuple[int, int, int], offset: int = 0) -> None:
    spec = LayerSpec("fp16", 4)
    sides = tuple(Side(0, side, spec, ((0, offset, 2),)) for side in (0, 1))
    found = RowMap(1, 2, (File(os.fsencode(path), identity),), sides)
    fill_prefix(found, (spec, spec), (Sink(), Sink()), 2)


def test_only_the_rows_asked_for_are_taken(tmp_path: Path) -> None:
    page = tmp_path / f"{7:016x}"
    data = bytes(range(200)) * 10
    page.write_bytes(b"PIONPAGE" + bytes([1, 0, 0, 0]) + bytes(4) + (7).to_bytes(8, "little") + data)
    status = page.stat()
    spec = LayerSpec("fp16", 4)
    places = ((0, 24, 3), (0, 100, 5), (0, 400, 2))
    sides = tuple(Side(0, side, spec, places) for side in (0, 1))
    found = RowMap(
        1, 10, (File(os.fsencode(page), (status.st_dev, status.st_ino, status.st_mtime_ns)),), sides
    )
    sinks = (Sink(), Sink())
    fill(found, sinks, 2, 9)
    whole = page.read_bytes()
    assert sinks[0].got == [
        (2, 3, whole[40:48]), (3, 8, whole[100:140]), (8, 9, whole[400:408]),
    ]  # fmt: skip
    with pytest.raises(NotStored, match="only 10 of 11"):
        fill_prefix(found, (spec, spec), sinks, 11)
    with pytest.raises(NotStored, match="other formats"):
        fill_prefix(found, (spec,), sinks, 10)
    with pytest.raises(BadReply, match="bytes 3000 to 3016 of a page"):
        map_one(page, (status.st_dev, status.st_ino, status.st_mtime_ns), 3000)


@pytest.mark.parametrize(
    "reply",
    [b"", [], [1, 2, 3], [1, 2, [], b"\0"], [1, 2, [[b"p", 1]], b""], [1, 2, [], [[0]]], "OK", 5,
     [1, 2, [], struct.pack("<HBBIIII", 0, 0, 0, 4, 0, 0, 1)],
     [1, 2, [], struct.pack("<HBBIIII", 0, 0, 255, 4, 0, 0, 0)]],
)  # fmt: skip
def test_nonsense_is_a_bad_reply(reply: object) -> None:
    with pytest.raises(BadReply):
        RowMap.parse(reply)


def test_lanes_are_chosen_by_name(tiny: Tiny) -> None:
    for lane in ("auto", "map", "tcp"):
        cache_for(tiny(), 1, lane=lane)
    with pytest.raises(ValueError, match="lane is 'shm', it must be one of auto, map, unix, tcp"):
        cache_for(tiny(), 1, lane="shm")
    with pytest.raises(ValueError, match="needs unix_socket_path"):
        cache_for(tiny(), 1, lane="unix")


def test_a_server_that_refuses_to_map_is_asked_once(tiny: Tiny, start_server: Callable[..., Any]) -> None:
    server, model = start_server(), tiny()
    expected = bits(cache_for(model, server.port).get_or_prefill(IDS, "n"))
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-kv.prefix.map")
    cache = cache_for(model, server.port, username="u", password="p")
    for _ in range(2):
        assert bits(cache.get_or_prefill(IDS, "n")) == expected
    stats = cache.stats()
    assert (stats["hits"], stats["refused"], stats["bytes_mapped"]) == (2, 0, 0)
    assert str(stats["last_not_mapped"]).startswith("NOPERM")
    assert not cache._route.maps


def test_a_local_servers_unix_socket_is_found(
    tiny: Tiny, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "s"
    server = start_server("--unix-socket", str(path))
    model = tiny(layers=8)
    cache = cache_for(model, server.port)
    ids = IDS * 4
    expected = bits(cache.get_or_prefill(ids, "n"))
    assert cache._link.endpoint.unix_socket_path == str(path)
    assert bits(cache.get_or_prefill(ids, "n")) == expected
    only_tcp = cache_for(model, server.port, lane="tcp")
    assert bits(only_tcp.get_or_prefill(ids, "n")) == expected
    assert only_tcp._link.endpoint.unix_socket_path is None
    other = start_server("--unix-socket", str(tmp_path / "t"))
    over_unix = PionPromptCache(
        model, unix_socket_path=str(path), lane="unix", port=other.port, background=False
    )
    assert bits(over_unix.get_or_prefill(ids, "n")) == expected
    assert moved(over_unix)[0] == 0


@pytest.mark.parametrize("worth", [0, 1 << 40])
def test_room_for_the_next_tokens_is_empty_whatever_memory_held(
    tiny: Tiny, store_port: int, namespace: str, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays that are not written before rows come, and those that are: nothing of what was freed shows."""
    monkeypatch.setattr(blank, "WORTH_BYTES", worth)
    model, tokens = tiny(layers=8, head_dim=128), IDS[:256]
    expected = bits(cache_for(model, store_port).get_or_prefill(tokens, namespace))
    for lane in ("map", "tcp"):
        used = [mx.full((1, 2, room(256), 128), 7.0) for _ in range(16)]
        mx.eval(used)
        del used
        restored = cache_for(model, store_port, lane=lane).get_or_prefill(tokens, namespace)
        assert bits(restored) == expected
        for cache in restored:
            for side in (cache.keys, cache.values):
                assert side.shape[2] == 512 and not mx.any(side[:, :, 256:]).item()


@pytest.mark.parametrize("lane", ["map", "tcp"])
def test_everything_about_a_prefix_that_was_found_is_asked_at_once(
    tiny: Tiny, store_port: int, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    cache_for(model, store_port).get_or_prefill(IDS)
    steps: list[str] = []
    send, receive, rows = Lane.send, Lane.receive, Lane.receive_rows

    def sent(self: Lane, command: Any, deadline: Deadline) -> None:
        steps.append(str(command[0]))
        send(self, command, deadline)

    def received(self: Lane, deadline: Deadline) -> object:
        steps.append("")
        return receive(self, deadline)

    def received_rows(self: Lane, *arguments: Any) -> int:
        steps.append("")
        return rows(self, *arguments)

    monkeypatch.setattr(Lane, "send", sent)
    monkeypatch.setattr(Lane, "receive", received)
    monkeypatch.setattr(Lane, "receive_rows", received_rows)
    cache = cache_for(model, store_port, lane=lane)
    cache.get_or_prefill(IDS)
    assert cache.stats()["hits"] == 1
    flights = [group.split() for group in " ".join(step or "|" for step in steps).split("|")]
    asked = ["KV.PREFIX.LOOKUP", "KV.PREFIX.BLOCKS", "V.INFO", "V.INFO"]
    last = "KV.PREFIX.MAP" if lane == "map" else "V.FETCHALL"
    assert [each for each in flights if each] == [["PING", "KV.PREFIX.MATCH"], [*asked, last]]


@pytest.mark.parametrize("lane", ["map", "tcp"])
def test_what_turns_out_to_be_something_else_is_not_taken(
    tiny: Tiny, store_port: int, lane: LaneName
) -> None:
    """Rows that are on their way when the tokens turn out to differ, and places of another generation."""
    model = tiny()
    cache = cache_for(model, store_port, lane=lane)
    expected = bits(cache.get_or_prefill(IDS))
    shape = cache.shape
    assert shape is not None
    endpoint, digest = Endpoint(port=store_port), cache.model_digest
    link = Link(endpoint, total=60, silence=60, connect=60)

    def taken(ids: list[int], newer: int) -> Work[list[Any]]:
        def work(connection: Lane, deadline: Deadline) -> list[Any]:
            found = find(connection, deadline, digest, IDS, whole=False)
            assert found is not None
            where = (connection, deadline, found.namespace, shape, ids, Route.of(lane, endpoint, 1), None)
            return restore(*where, found.generation + newer)

        return work

    other = [*IDS[:-1], (IDS[-1] + 1) % 300]
    for _ in range(2):
        with pytest.raises(OtherTokens):
            link.exchange(taken(other, 0))
        with pytest.raises(NotStored, match="replaced"):
            link.exchange(taken(IDS, 1))
        assert bits(link.exchange(taken(IDS, 0))) == expected
    link.close()
