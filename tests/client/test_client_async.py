"""The clients for asyncio: the answers of the blocking ones, and connections that a cancellation ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
import uvloop
from client_peers import SECONDS, Fault, Peer, Proxy, greet, read_until
from pionkv.client import (
    AsyncPionPromptCache,
    AsyncStoreClient,
    BadReply,
    ConnectionLost,
    PionPromptCache,
    ServerRefused,
    StoreClient,
    TimedOut,
    Tls,
    Unavailable,
)
from pionkv.client.reuse import name_of
from pionkv.kernels import LayerSpec
from server_process import ServerProcess

Tiny = Callable[..., Any]
IDS = [int(token) for token in np.random.default_rng(5).integers(0, 300, 200)]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(work: Coroutine[Any, Any, Any], loop: str = "asyncio") -> Any:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(asyncio.wait_for(work, SECONDS))


def numbers(rows: int, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, dim)).astype("float32")


@pytest.mark.parametrize("loop", LOOPS)
def test_every_method_answers_as_the_blocking_client(store_port: int, namespace: str, loop: str) -> None:
    rows, halves = numbers(5), numbers(5).astype("float16")

    async def work() -> None:
        async with AsyncStoreClient(port=store_port) as client:
            await client.ping()
            await client.create(namespace, LayerSpec("fp32", 8))
            await client.store(namespace, 0, 0, rows[:3])
            await client.store(namespace, 0, 3, rows[3:])
            await client.store(namespace, 1, 0, rows + 1)
            await client.register(namespace + "p", LayerSpec("fp16", 8), prefill_ms=3)
            for side in ("p_pk", "p_pv"):
                await client.store(namespace + side, 0, 0, halves)
            with StoreClient(port=store_port) as blocking:
                for ours, theirs in (
                    (await client.fetch(namespace, 0, [4, 0]), blocking.fetch(namespace, 0, [4, 0])),
                    (
                        await client.fetch_range(namespace, 0, 1, 4),
                        blocking.fetch_range(namespace, 0, 1, 4),
                    ),
                    (await client.fetch_batch(namespace, 0, 5), blocking.fetch_batch(namespace, 0, 5)),
                    (
                        await client.fetch_all(namespace + "p", 0, 5, "RAW"),
                        blocking.fetch_all(namespace + "p", 0, 5, "RAW"),
                    ),
                ):
                    np.testing.assert_array_equal(ours, theirs)
                assert await client.info(namespace) == blocking.info(namespace)
                assert (await client.prefix_info()).keys() == blocking.prefix_info().keys()
            np.testing.assert_array_equal(await client.fetch_range(namespace, 1, 0, 5), rows + 1)
            assert await client.lookup(namespace + "p") and not await client.lookup(namespace)
            assert await client.match([1, 2, 3], "no such model") is None
            with pytest.raises(ServerRefused, match="session not found"):
                await client.info(namespace + "x")
            assert await client.execute("ECHO", b"\x00\r\n") == b"\x00\r\n"
            assert await client.drop_prefix(namespace + "p") == 1
            assert await client.drop(namespace, "no such") == 1

    run(work(), loop)


def test_a_published_prefix_is_matched(tiny: Tiny, store_port: int) -> None:
    ids = [7, 7, *IDS]
    with PionPromptCache(tiny(), port=store_port, background=False) as cache:
        cache.get_or_prefill(ids)

    async def work() -> None:
        async with AsyncStoreClient(port=store_port) as client:
            found = await client.match([*ids, 1], cache.model_digest)
            with StoreClient(port=store_port) as blocking:
                assert found == blocking.match([*ids, 1], cache.model_digest)
            assert found is not None and found.tokens == len(ids)

    run(work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("secured", [False, True])
def test_many_bytes_there_and_back(certificates: Any, tmp_path: Any, loop: str, secured: bool) -> None:
    rows = numbers(2048, 2048)
    process = ServerProcess(tmp_path / "data", *certificates.flags("no"))
    process.start()
    tls = Tls(ca_file=str(certificates.root)) if secured else None
    port = process.tls_port if secured else process.port

    async def work() -> None:
        async with AsyncStoreClient(port=port, tls=tls) as client:
            await client.create("rows", LayerSpec("fp32", 2048))
            await client.store("rows", 0, 0, rows)
            again = await asyncio.gather(*(client.fetch_range("rows", 0, n, 2048) for n in range(4)))
            for first, found in enumerate(again):
                np.testing.assert_array_equal(found, rows[first:])

    try:
        run(work(), loop)
    finally:
        process.close()


def test_a_unix_socket_and_a_server_started_again(tmp_path: Any) -> None:
    path = str(tmp_path / "s")
    process = ServerProcess(tmp_path / "data", "--unix-socket", path)
    process.start()

    async def work() -> None:
        async with AsyncStoreClient(unix_socket_path=path) as client:
            await client.create("s", LayerSpec("fp16", 8))
            process.stop()
            with pytest.raises(Unavailable):
                await client.ping()
            process.start()
            assert await client.drop("s") == 1
            process.restart()
            await client.ping()

    try:
        run(work())
    finally:
        process.close()


def echoes_second(connection: socket.socket) -> None:
    """The script of a connection that is sent `ECHO second` only."""
    greet(connection)
    read_until(connection, b"second\r\n")
    connection.sendall(b"$6\r\nsecond\r\n")


@pytest.mark.parametrize("half", [b"", b"$5\r\nhe", b"*2\r\n$1\r\na\r\n"])
def test_a_cancelled_call_ends_its_connection(play: Callable[..., Peer], half: bytes) -> None:
    ended, asked = threading.Event(), threading.Event()

    def silent(connection: socket.socket) -> None:
        greet(connection)
        read_until(connection, b"first\r\n")
        connection.sendall(half)
        asked.set()
        assert connection.recv(1) == b""
        ended.set()

    peer = play(silent, echoes_second)

    async def work() -> None:
        async with AsyncStoreClient(port=peer.port) as client:
            first = asyncio.create_task(client.execute("ECHO", "first"))
            second = asyncio.create_task(client.execute("ECHO", "second"))
            await asyncio.to_thread(asked.wait, SECONDS)
            first.cancel()
            assert await second == b"second"
            with pytest.raises(asyncio.CancelledError):
                await first

    run(work())
    assert ended.wait(SECONDS) and peer.connections == 2


def test_a_cancelled_store_ends_its_connection(play: Callable[..., Peer]) -> None:
    ended, asked = threading.Event(), threading.Event()

    def stuck(connection: socket.socket) -> None:
        greet(connection)
        connection.recv(1)
        asked.set()
        while connection.recv(1 << 20):
            pass
        ended.set()

    peer = play(stuck, echoes_second)

    async def work() -> None:
        async with AsyncStoreClient(port=peer.port) as client:
            first = asyncio.create_task(client.store("s", 0, 0, numbers(4096, 4096)))
            await asyncio.to_thread(asked.wait, SECONDS)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert await client.execute("ECHO", "second") == b"second"

    run(work())
    assert ended.wait(SECONDS) and peer.connections == 2


def test_a_silent_server_and_a_lost_connection(play: Callable[..., Peer]) -> None:
    def silent(connection: socket.socket) -> None:
        greet(connection)
        connection.recv(65536)
        assert connection.recv(1) == b""

    def ends(connection: socket.socket) -> None:
        greet(connection)
        read_until(connection, b"x\r\n")
        connection.sendall(b"$4\r\nab")

    def nonsense(connection: socket.socket) -> None:
        greet(connection)
        read_until(connection, b"x\r\n")
        connection.sendall(b"?what\r\n")
        assert connection.recv(1) == b""

    peer = play(silent, ends, nonsense)

    async def work() -> None:
        async with AsyncStoreClient(port=peer.port, silence=0.2) as client:
            for kind in (TimedOut, ConnectionLost, BadReply):
                with pytest.raises(kind):
                    await client.execute("ECHO", "x")

    run(work())
    assert peer.connections == 3


def bits(caches: list[Any]) -> list[bytes]:
    return [np.array(side[:, :, :200]).tobytes() for each in caches for side in (each.keys, each.values)]


def test_a_prompt_cache_beside_an_event_loop(tiny: Tiny, store_port: int) -> None:
    model, done = tiny(), []

    async def work() -> None:
        async with AsyncPionPromptCache(model, port=store_port, prefill_chunk_size=64) as cache:
            cold = await cache.get_or_prefill(IDS, prompt_progress_callback=lambda *each: done.append(each))
            assert await cache.flush(SECONDS)
            warm = await cache.get_or_prefill(IDS)
            assert bits(warm) == bits(cold)
            assert (await cache.explain(IDS))["stored"] == 200
            assert not await cache.lookup("no such name")
            assert await cache.keep(IDS, warm)
        assert cache.stats()["hits"] == 1

    run(work())
    assert done == [(64, 200), (128, 200), (192, 200), (200, 200)]


def test_a_cancelled_restore(tiny: Tiny, store_port: int, proxy: Proxy, namespace: str) -> None:
    model, named = tiny(), [9, *IDS]
    options: dict[str, Any] = {"lane": "tcp", "background": False, "prefill_chunk_size": 64}
    with PionPromptCache(model, port=store_port, **options) as cache:
        expected = cache.get_or_prefill(named, namespace)

    async def work() -> None:
        options["silence"] = SECONDS
        async with AsyncPionPromptCache(model, port=proxy.port, **options) as cache:
            assert await cache.lookup(namespace)
            proxy.fault = Fault(proxy.passed, "stall")
            task = asyncio.create_task(cache.get_or_prefill(named, namespace))
            while not cache.cache._link._lock.locked():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.fault = None
            assert bits(await cache.get_or_prefill(named, namespace)) == bits(expected)
        stats = cache.stats()
        assert (stats["hits"], stats["not_asked"], stats["tokens_restored"]) == (1, 0, len(named))

    run(work())


def test_a_cancelled_prefill_stops_after_its_chunk(tiny: Tiny, store_port: int, namespace: str) -> None:
    async def work() -> None:
        async with AsyncPionPromptCache(
            tiny(), port=store_port, prefill_chunk_size=1, background=False
        ) as cache:
            seen: list[int] = []

            def progress(done: int, total: int) -> None:
                seen.append(done)
                task.cancel()

            task = asyncio.create_task(
                cache.get_or_prefill([3, *IDS], namespace, prompt_progress_callback=progress)
            )
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await cache.lookup(namespace)
            assert seen and cache.stats()["tokens_prefilled"] == 0
            # Others need not wait for its lease.
            with StoreClient(port=store_port) as other:
                assert other.redis.execute_command("KV.PREFIX.CLAIM", namespace, 1000) == b"CLAIMED"

    run(work())


def test_a_cancelled_wait_for_others(tiny: Tiny, store_port: int, namespace: str) -> None:
    async def work(claim: Callable[..., object]) -> None:
        options: dict[str, Any] = {"prefill_chunk_size": 64, "background": False}
        async with AsyncPionPromptCache(tiny(), port=store_port, **options) as cache:
            ids = [8, *IDS]
            name = name_of(cache.cache.model_digest, ids)
            assert claim(name, 60_000) == b"CLAIMED"
            task = asyncio.create_task(cache.get_or_prefill(ids))
            while not cache.cache._claims_link._lock.locked():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The next call has its turn, and nothing of the cancelled one is left.
            assert not await cache.lookup(namespace)
            claim(name, 0)
            await cache.get_or_prefill(ids)
            assert (cache.stats()["tokens_prefilled"], cache.stats()["stores"]) == (len(ids), 1)

    with StoreClient(port=store_port) as other:
        run(work(lambda *words: other.redis.execute_command("KV.PREFIX.CLAIM", *words)))
