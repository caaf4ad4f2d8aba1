"""Memory of fetched rows: nobody else's while anything refers to it, then used again, within a limit."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
import uvloop
from client_peers import SECONDS, Peer, greet, read_until
from pionkv.client import AsyncStoreClient, BadReply, StoreClient
from pionkv.client.buffers import WORTH_BYTES, Buffers
from pionkv.kernels import LayerSpec

LENGTH = 1 << 20
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def kept(buffers: Buffers, *lengths: int) -> None:
    """Have memory of arrays of these lengths kept, in this order."""
    arrays = [buffers.take(length) for length in lengths]
    while arrays:
        arrays.pop(0)


def test_memory_is_used_again_once_its_array_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(LENGTH)
    at = address(first)
    assert address(buffers.take(LENGTH)) != at
    assert buffers.kept == LENGTH
    del first
    assert buffers.kept == 2 * LENGTH
    again = buffers.take(LENGTH - 1)
    assert (address(again), again.nbytes, buffers.kept) == (at, LENGTH - 1, LENGTH)


def test_it_is_an_ordinary_array() -> None:
    array = Buffers().take(LENGTH)
    assert type(array) is np.ndarray and array.shape == (LENGTH,) and array.dtype == np.uint8
    assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned
    array[:] = 3
    rows = array.view("<f4").reshape(64, -1)
    rows[5] = 1
    assert array[:4].tolist() == [3] * 4 and rows[5].tolist() == [1.0] * 4096
    assert array.base.__class__.__name__ == "_Lent" and np.asarray(array.base).dtype == object


class Named(np.ndarray[Any, Any]):
    """A subclass, whose instances may be part of a cycle."""


def in_a_cycle(array: Any) -> Any:
    named = array.view(Named)
    named.itself = named
    return named


VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda array: array[5:9],
    "slice of a slice": lambda array: array[5:9][1:],
    "one element": lambda array: array[:1],
    "another type": lambda array: array.view("<f4"),
    "another shape": lambda array: array.reshape(2, -1),
    "transposed": lambda array: array.reshape(2, -1).T,
    "memoryview": lambda array: array.data,
    "part of a memoryview": lambda array: memoryview(array).cast("I")[3:5],
    "array of a memoryview": lambda array: np.frombuffer(array.data, "<u2", 4, 8),
    "asarray": lambda array: np.asarray(array[3:]),
    "strides": lambda array: np.lib.stride_tricks.as_strided(array, (4, 4), (1, 1)),
    "dlpack": lambda array: np.from_dlpack(array),
    "subclass": lambda array: array.view(Named),
    "cycle": in_a_cycle,
    "iterator": lambda array: array.flat,
    "what is behind": lambda array: array[3:].base.base,
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_keeps_it(view: str) -> None:
    buffers = Buffers()
    array = buffers.take(LENGTH)
    at = address(array)
    held = VIEWS[view](array)
    del array
    gc.collect()
    assert buffers.kept == 0
    assert address(buffers.take(LENGTH)) != at
    kept_before = buffers.kept
    del held
    gc.collect()
    assert buffers.kept == kept_before + LENGTH


def test_a_resurrected_array_has_its_memory_for_itself() -> None:
    buffers, saved = Buffers(), []

    class Lazarus:
        def __init__(self) -> None:
            self.itself, self.array = self, buffers.take(LENGTH)

        def __del__(self) -> None:
            saved.append(self)

    Lazarus().array[:] = 7
    gc.collect()
    assert buffers.kept == 0
    buffers.take(LENGTH)[:] = 9
    assert (saved[0].array == 7).all()
    saved[0].itself = None
    saved.clear()
    gc.collect()


@pytest.mark.parametrize("seed", range(5))
def test_no_two_live_arrays_share_memory(seed: int) -> None:
    buffers, random, live = Buffers(8 * LENGTH), Random(seed), list[Any]()
    for turn in range(600):
        if live and random.random() < 0.5:
            del live[random.randrange(len(live))]
        else:
            array = buffers.take(random.choice((WORTH_BYTES - 1, WORTH_BYTES, 200_000, 210_000, LENGTH)))
            array[:] = turn % 256
            part = array[random.randrange(1000) :]
            live.append((turn % 256, part))
        assert buffers.kept <= buffers.limit
    assert all((part == value).all() for value, part in live)
    assert not any(np.shares_memory(one, other) for (_, one), (_, other) in combinations(live, 2))


def test_above_the_limit_goes_what_was_of_no_use_for_longest() -> None:
    buffers = Buffers(8 * LENGTH)
    kept(buffers, 2 * LENGTH, LENGTH, 4 * LENGTH, LENGTH)
    assert buffers.kept == 8 * LENGTH
    kept(buffers, 2 * LENGTH)
    kept(buffers, 3 * LENGTH)
    # Of the sizes kept, 4 MiB were of no use for longest.
    assert buffers.kept == 7 * LENGTH
    held = [buffers.take(size * LENGTH) for size in (1, 1, 2, 3)]
    assert buffers.kept == 0
    del held
    assert buffers.kept == 7 * LENGTH
    buffers.limit = 3 * LENGTH
    buffers.take(1)
    kept(buffers, LENGTH)
    assert buffers.kept <= 3 * LENGTH


@pytest.mark.parametrize("limit", [0, LENGTH - 1])
def test_more_than_the_limit_is_not_kept(limit: int) -> None:
    buffers = Buffers(limit)
    kept(buffers, LENGTH, LENGTH)
    assert buffers.kept == 0


def test_short_arrays_are_not_kept() -> None:
    buffers = Buffers()
    kept(buffers, 0, 1, WORTH_BYTES - 1)
    assert buffers.kept == 0


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes to be kept: at least 0"):
        Buffers(-1)
    with pytest.raises(ValueError, match="at least 0"):
        StoreClient(kept_bytes=-1)


def test_release_lets_all_go_until_something_is_taken() -> None:
    buffers = Buffers()
    late = buffers.take(LENGTH)
    kept(buffers, LENGTH, 2 * LENGTH)
    buffers.release()
    assert buffers.kept == 0
    late[:] = 1
    del late
    assert buffers.kept == 0
    kept(buffers, LENGTH)
    assert buffers.kept == LENGTH


def test_what_comes_back_to_who_is_at_work_waits_for_nobody() -> None:
    """Garbage is collected anywhere, also in a thread that has the lock."""
    buffers = Buffers()
    one, other = buffers.take(LENGTH), buffers.take(LENGTH)
    with buffers._lock:
        del one
        assert address(buffers.take(LENGTH)) not in (0, address(other))
        assert buffers.kept == 0
    kept(buffers, 2 * LENGTH)
    assert buffers.kept == 4 * LENGTH


def test_threads_never_get_the_same_memory() -> None:
    buffers, wrong = Buffers(4 * LENGTH), list[str]()
    start = threading.Barrier(8)

    def work(mark: int) -> None:
        random, live = Random(mark), list[Any]()
        start.wait(SECONDS)
        for _ in range(200):
            array = buffers.take(random.choice((WORTH_BYTES, 2 * WORTH_BYTES)))
            array[:] = mark
            live.append(array[1:])
            if len(live) > random.randrange(4):
                each = live.pop(0)
                if not (each == mark).all():
                    wrong.append(f"{mark} found {set(each.tolist())}")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SECONDS)
    assert not wrong and not any(each.is_alive() for each in threads)
    assert 0 < buffers.kept <= buffers.limit


def test_a_forked_child_has_memory_of_its_own() -> None:
    buffers = Buffers()
    array = buffers.take(LENGTH)
    array[:] = 1
    kept(buffers, LENGTH)
    with buffers._lock:  # as another thread may have it
        child = os.fork()
        if not child:
            signal.alarm(int(SECONDS))
            try:
                at_first = buffers.kept
                array[:] = 2
                del array
                again = buffers.take(LENGTH)
                os._exit(7 if (at_first, buffers.kept, int(again[0])) == (0, 0, 2) else 1)
            finally:
                os._exit(2)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 7
    assert (array == 1).all() and buffers.kept == LENGTH


# The clients

ROWS = 128
SPEC = LayerSpec("fp16", 1024)


def rows_of(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((ROWS, 1024)).astype(np.float16)


def test_fetched_rows_keep_their_memory_and_give_it_back(store_port: int, namespace: str) -> None:
    with StoreClient(port=store_port) as client:
        client.register(namespace, SPEC)
        sent = [rows_of(1), rows_of(2)]
        for side, rows in zip(("_pk", "_pv"), sent, strict=True):
            client.store(namespace + side, 0, 0, rows)
        one = client.fetch_range(namespace + "_pk", 0, 0, ROWS, "F16")
        ((keys, values),) = client.fetch_all(namespace, 0, ROWS, "F16")
        assert not any(np.shares_memory(*pair) for pair in combinations((one, keys, values), 2))
        keys[:] = 0
        np.testing.assert_array_equal(one, sent[0])
        np.testing.assert_array_equal(values, sent[1])
        at, part = address(one), one[3:5]
        del one, keys
        assert client.buffers.kept == values.nbytes
        del part
        assert client.buffers.kept == 2 * values.nbytes
        assert address(client.fetch_range(namespace + "_pv", 0, 0, ROWS, "F16")) == at
        client.close()
        assert client.buffers.kept == 0
        np.testing.assert_array_equal(values, sent[1])
        del values
        assert client.buffers.kept == 0
        client.fetch_range(namespace + "_pv", 0, 0, ROWS, "F16")
        assert client.buffers.kept == sent[0].nbytes


@pytest.mark.parametrize("loop", LOOPS)
def test_so_do_those_of_the_client_for_asyncio(store_port: int, namespace: str, loop: str) -> None:
    async def work() -> None:
        async with AsyncStoreClient(port=store_port) as client:
            await client.create(namespace, SPEC)
            await client.store(namespace, 0, 0, rows_of(1))
            await client.store(namespace, 1, 0, rows_of(2))
            one = await client.fetch_range(namespace, 0, 0, ROWS, "F16")
            other, another = await client.fetch_batch(namespace, 0, ROWS, form="F16")
            assert not any(np.shares_memory(*pair) for pair in combinations((one, other, another), 2))
            other[:] = 0
            np.testing.assert_array_equal(one, rows_of(1))
            np.testing.assert_array_equal(another, rows_of(2))
            del one, other, another
            assert client.buffers.kept == 3 * rows_of(1).nbytes
        assert client.buffers.kept == 0

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(work(), SECONDS))


def test_rows_that_did_not_come_whole_give_their_memory_back(play: Callable[..., Peer]) -> None:
    def breaks_off(connection: socket.socket) -> None:
        greet(connection)
        read_until(connection, b"RAW\r\n")
        connection.sendall(b"*3\r\n$%d\r\n" % LENGTH + bytes(LENGTH) + b"\r\n$7\r\nabcdefg\r\n")

    client = StoreClient(port=play(breaks_off).port)
    with pytest.raises(BadReply, match="7 bytes for 4 rows"):
        client.fetch_batch("s", 0, 4, form="RAW")
    gc.collect()
    assert client.buffers.kept == LENGTH


def test_a_client_that_keeps_nothing(store_port: int, namespace: str) -> None:
    with StoreClient(port=store_port, kept_bytes=0) as client:
        client.create(namespace, SPEC)
        client.store(namespace, 0, 0, rows_of(3))
        np.testing.assert_array_equal(client.fetch_range(namespace, 0, 0, ROWS, "F16"), rows_of(3))
        assert client.buffers.kept == 0
