"""What storage costs besides the bytes: appends, reads, lookups, start-up, transitions.

The peers are the floor under any store: a copy in memory, a plain file's `pwrite`, and what the same call
costs in a small store. Writes one data directory under the system's folder for temporary files.
"""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from harness import Row, Spread, interleaved, rate_row, write_results
from pionkv.kernels import LayerSpec
from pionkv.storage import Durability, Schema, Store, StoreOptions
from pionkv.storage.open_pages import OpenPage
from wires import Wire

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from server_process import ServerProcess  # noqa: E402

SPEC = LayerSpec("fp16", 1024)
SCHEMA = Schema.uniform(SPEC)
ROW = SPEC.row_bytes
MIB = 1 << 20
MANY = 100_000
LOOKUPS = 4000
# The page cache is part of what is measured, the disk is not: nothing is synced while a clock runs.
OPTIONS = StoreOptions(durability=Durability.NONE)


def put(store: Store, sid: bytes, layer: int, start: int, data: memoryview) -> None:
    write = store.begin_write(sid, layer, start, len(data) // ROW)
    while (segment := write.next_segment()) is not None:
        segment[:] = data[: len(segment)]
        data = data[len(segment) :]
    write.commit()


@contextmanager
def holes_for_rows() -> Iterator[None]:
    """Pages keep their headers and lengths, but rows stay holes: start-up does not read rows."""
    real = OpenPage.write

    def write(self: OpenPage, data: memoryview, offset: int) -> None:
        if not offset:
            real(self, data, offset)

    OpenPage.write = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        OpenPage.write = real  # type: ignore[method-assign]


def fill(store: Store, first: int, last: int, rows: memoryview) -> None:
    """Namespaces of one layer with so many rows a side."""
    for number in range(first, last):
        name = b"prefix-%06d" % number
        store.register(name, SCHEMA, SCHEMA)
        writes = [store.begin_write(name + side, 0, 0, len(rows) // ROW) for side in (b"_pk", b"_pv")]
        for write in writes:
            left = rows
            while (segment := write.next_segment()) is not None:
                segment[:] = left[: len(segment)]
                left = left[len(segment) :]
        store.commit(writes)


def appends(folder: Path) -> list[Row]:
    """One append, against a copy in memory and a plain file."""
    rows = []
    for mib, rounds in ((1, 60), (16, 20)):
        size = mib * MIB
        data = memoryview(np.random.default_rng(1).bytes(size))
        target, source = np.zeros(size, np.uint8), np.frombuffer(data, np.uint8)
        store = Store.open(folder / f"append{mib}", OPTIONS)
        store.create_session(b"s", SCHEMA)
        layer = iter(range(1000))
        plain = iter(range(1000))

        def append(store: Store = store, data: memoryview = data, layer: Iterator[int] = layer) -> None:
            put(store, b"s", next(layer), 0, data)

        def plain_file(data: memoryview = data, plain: Iterator[int] = plain) -> None:
            fd = os.open(folder / f"plain{next(plain)}", os.O_RDWR | os.O_CREAT)
            for start in range(0, len(data), MIB):
                os.pwrite(fd, data[start : start + MIB], start)
            os.close(fd)

        def map_store(
            data: memoryview = data, plain: Iterator[int] = plain, source: np.ndarray = source
        ) -> None:
            fd = os.open(folder / f"plain{next(plain)}", os.O_RDWR | os.O_CREAT)
            os.ftruncate(fd, len(data))
            np.frombuffer(mmap.mmap(fd, len(data)), np.uint8)[:] = source
            os.close(fd)

        arms = {
            "ours": append,
            "pwrite": plain_file,
            "memcpy": lambda target=target, source=source: np.copyto(target, source),
            "map": map_store,
        }
        seconds = interleaved(arms, rounds)
        besides = statistics.median(seconds["ours"]) - statistics.median(seconds["pwrite"])
        copies = statistics.median(seconds["memcpy"])
        work = f"append {mib} MB (begin, fill, commit)"
        extra = {
            "microseconds_besides_the_file": round(besides * 1e6, 1),
            "memcpy_us": round(copies * 1e6, 1),
        }
        gigabytes = size / 1e9
        rows.append(
            rate_row(
                work, "GB/s", gigabytes, seconds["ours"], ("pwrite to a new file", seconds["pwrite"]), **extra
            )
        )
        rows.append(rate_row(work, "GB/s", gigabytes, seconds["ours"], ("memcpy", seconds["memcpy"])))
        rows.append(
            rate_row(work, "GB/s", gigabytes, seconds["ours"], ("store into a new map", seconds["map"]))
        )
        assert bytes(store.rows(b"s", 3, 0, size // ROW).parts[0]) == data
        store.close()
    return rows


def overwrites(folder: Path) -> list[Row]:
    """The same rows stored again and again, as a client that repeats itself does."""
    data = memoryview(np.random.default_rng(2).bytes(MIB))
    store = Store.open(folder / "overwrite", OPTIONS)
    store.create_session(b"s", SCHEMA)
    put(store, b"s", 0, 0, data)

    def plain_file() -> None:
        path = folder / "plain"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, data, 0)
        os.close(fd)
        path.unlink()

    arms = {"ours": lambda: put(store, b"s", 0, 0, data), "file": plain_file}
    seconds = interleaved(arms, 100, warm_up=3)
    assert bytes(store.rows(b"s", 0, 0, MIB // ROW).parts[0]) == data
    store.close()
    peer = ("a new file, removed", seconds["file"])
    return [
        rate_row("overwrite 1 MB, the freed file written again", "GB/s", MIB / 1e9, seconds["ours"], peer)
    ]


def each(call: Callable[[int], object], count: int) -> float:
    """Seconds a call takes, on average."""
    begin = time.perf_counter()
    for number in range(count):
        call(number)
    return (time.perf_counter() - begin) / count


def microseconds(
    work: str, values: list[float], peer: tuple[str, list[float]] | None = None, target: float | None = None
) -> Row:
    """A row of latencies; the ratio is peer over ours, so less than 1 is slower than the peer."""
    return rate_row(
        work, "calls/s", 1.0, values, peer, target, microseconds=round(statistics.median(values) * 1e6, 2)
    )


def small_appends_and_reads(folder: Path) -> list[Row]:
    store = Store.open(folder / "small", OPTIONS)
    store.register(b"p", SCHEMA, SCHEMA)
    block = memoryview(os.urandom(64 * ROW))
    for layer in range(32):
        for side in (b"_pk", b"_pv"):
            put(store, b"p" + side, layer, 0, block)
    row = block[:ROW]
    rows = []
    at = 64

    def append_row(number: int) -> None:
        put(store, b"p_pk", number % 32, at + number // 32, row)

    values = []
    for _ in range(9):
        values.append(each(append_row, 320))
        at += 10
    rows.append(microseconds("append one row of 2 KB, 32 layers a side", values))
    rows.append(
        microseconds(
            "rows() of one extent, page mapped and verified",
            [each(lambda _: store.rows(b"p_pk", 3, 0, 64), 2000) for _ in range(9)],
        )
    )
    first = []
    for number in range(40):
        name = b"first%d" % number
        store.create_session(name, SCHEMA)
        put(store, name, 0, 0, memoryview(bytes(MIB)))
        begin = time.perf_counter()
        store.rows(name, 0, 0, MIB // ROW)
        first.append(time.perf_counter() - begin)
    rows.append(microseconds("rows() of 1 MB the first time: map, header, digest", first))
    store.close()
    return rows


def lookups_and_start(folder: Path) -> list[Row]:
    """The same lookups with few and with many namespaces; how long opening takes then."""
    small = memoryview(bytes(ROW))
    stores: dict[int, Store] = {}
    for count in (10, 1000, MANY):
        stores[count] = Store.open(folder / f"names{count}", OPTIONS)
        with holes_for_rows():
            fill(stores[count], 0, count, small)
    random = np.random.default_rng(5)
    names = {count: [b"prefix-%06d" % n for n in random.integers(0, count, LOOKUPS)] for count in stores}

    def look_up(count: int) -> None:
        for name in names[count]:
            assert stores[count].lookup(name) is not None

    seconds = interleaved({str(count): lambda count=count: look_up(count) for count in stores}, 15)
    each_lookup = {name: [value / LOOKUPS for value in values] for name, values in seconds.items()}
    rows = []
    for count, store in stores.items():
        peer = ("lookup among 10", each_lookup["10"]) if count > 10 else None
        target = round(1 / 1.5, 3) if peer else None
        rows.append(microseconds(f"lookup among {count:,} namespaces", each_lookup[str(count)], peer, target))
        store.close()
    starts = []
    for _ in range(5):
        begin = time.perf_counter()
        store = Store.open(folder / f"names{MANY}", OPTIONS)
        found = store.info().namespaces
        starts.append(time.perf_counter() - begin)
        assert found == MANY
        store.close()
    rows.append(limit_row(f"open with {MANY:,} namespaces and as many pages", starts, 2.0))
    return rows


def start_with_pages(folder: Path) -> list[Row]:
    path = folder / "large"
    rows = memoryview(bytes(32 * MIB))
    with holes_for_rows():
        store = Store.open(path, OPTIONS)
        fill(store, 0, 160, rows)
        assert store.info().bytes >= 10 << 30
        store.close()
    starts = []
    for _ in range(5):
        begin = time.perf_counter()
        store = Store.open(path, OPTIONS)
        assert store.lookup(b"prefix-000000") is not None
        starts.append(time.perf_counter() - begin)
        store.close()
    return [limit_row("open with 10 GiB of pages, first lookup included", starts, 2.0)]


def limit_row(work: str, seconds: list[float], limit: float) -> Row:
    spread = Spread.of(seconds)
    return Row(work, "s", spread, target=limit, holds=spread.median <= limit)


def sides(name: bytes) -> list[bytes]:
    return [name + side for side in (b"_pk", b"_pv")]


def transitions(folder: Path) -> list[Row]:
    store = Store.open(folder / "moves", OPTIONS)
    data = memoryview(os.urandom(2048 * ROW))
    rows, times = [], {"fork": [], "reorder": [], "truncate": [], "drop": [], "drop of the last owner": []}
    for number in range(15):
        parent, child = b"parent%d" % number, b"child%d" % number
        store.register(parent, SCHEMA, SCHEMA)
        writes = [
            store.begin_write(parent + side, layer, 0, 2048)
            for layer in range(8)
            for side in (b"_pk", b"_pv")
        ]
        for write in writes:
            left = data
            while (segment := write.next_segment()) is not None:
                segment[:] = left[: len(segment)]
                left = left[len(segment) :]
        store.commit(writes)
        for name, call in (
            ("fork", lambda p=parent, c=child: store.fork(p, c, 2000)),
            ("reorder", lambda p=parent, c=child: store.reorder([*sides(p), *sides(c)], [2, 3, 0, 1])),
            ("truncate", lambda p=parent: store.truncate(p, 1000)),
            ("drop", lambda p=parent: store.drop_namespaces([p])),
            ("drop of the last owner", lambda c=child: store.drop_namespaces([c])),
        ):
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    for name, values in times.items():
        rows.append(microseconds(f"{name}: 8 layers, 2,048 tokens, 64 MiB", values))
    store.close()
    return rows


def publishing(folder: Path) -> list[Row]:
    """A prefix of 24 MiB over a socket: as a transaction, and layer by layer for everybody to see."""
    layers, dim, tokens = 16, 192, 2048
    rng = np.random.default_rng(7)
    versions = [memoryview(rng.standard_normal(tokens * dim).astype(np.float16)).cast("B") for _ in range(3)]
    server = ServerProcess(folder / "publishing", "--durability", "none")
    server.start()
    try:
        wire = Wire(("127.0.0.1", server.port), room=MIB)
        number = iter(range(1 << 20))

        def stored(name: bytes, *options: bytes) -> None:
            rows = versions[next(number) % 3]
            for layer in range(layers):
                for side in (b"_pk", b"_pv"):
                    place = (name + side, b"%d" % layer, b"0", b"%d" % tokens)
                    assert wire.call(b"V.STOREBATCH", *place, rows, b"FMT", b"F16", *options) == b"+OK"

        def raw() -> None:
            name = b"raw%d" % next(number)
            assert wire.call(b"KV.PREFIX.REGISTER", name, b"%d" % dim, b"fp16") == b"+OK"
            stored(name)
            assert wire.call(b"KV.PREFIX.DROP", name) == b":1"

        def transaction() -> None:
            name = b"txn%d" % next(number)
            ids = np.arange(tokens, dtype="<u4").tobytes()
            schema = (b"KV", b"%d" % dim, b"fp16", b"LAYERS", b"%d" % layers)
            wire.send(b"KV.PREFIX.BEGIN", name, *schema, b"TOKENS", ids)
            txn = bytes(wire.room[: wire.bulk()])
            stored(name, b"TXN", txn)
            assert wire.call(b"KV.PREFIX.PUBLISH", txn) == b"*4"
            assert bytes(wire.room[: wire.bulk()]) == name
            assert wire.line()[:1] == b":" and wire.line() == b":%d" % tokens
            wire.bulk()
            assert wire.call(b"KV.PREFIX.DROP", name) == b":1"

        seconds = interleaved({"ours": transaction, "raw": raw}, 25)
    finally:
        server.stop()
    size = 2 * layers * dim * 2 * tokens
    assert size == 24 * MIB
    work = "BEGIN, 32 V.STOREBATCH TXN, PUBLISH: 24 MiB, 2,048 tokens, over TCP; DROP included"
    return [
        rate_row(work, "GB/s", size / 1e9, seconds["ours"], ("REGISTER, 32 V.STOREBATCH", seconds["raw"]))
    ]


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="pionkv-bench-"))
    try:
        rows = []
        for part in (
            appends,
            overwrites,
            small_appends_and_reads,
            transitions,
            publishing,
            start_with_pages,
            lookups_and_start,
        ):
            rows += part(folder)
    finally:
        shutil.rmtree(folder)
    write_results("storage", rows)


if __name__ == "__main__":
    main()
