"""Another process on a data directory: opens it, then does what each line of standard input says.

A line is the repr of (name, args, kwargs), answered by the repr of ("ok", result) or ("error", class, text).
Names are those of `Peer` below, or of any method of a store.
"""

import ast
import itertools
import resource
import sys

import numpy as np
from pionkv.kernels import LayerSpec
from pionkv.storage import Durability, PrefixPlan, Schema, StorageError, Store, StoreOptions
from pionkv.storage.keyspace import strings

SCHEMA = Schema.uniform(LayerSpec("fp16", 32))
ROW = 64


def pattern(name: bytes, layer: int, start: int, count: int) -> bytes:
    """Rows that say which they are: 8 times (name, layer, row)."""
    return b"".join(b"%-4s%02d%02d" % (name[:4], layer, row % 100) * 8 for row in range(start, start + count))


class Peer:
    def __init__(self, path: str, options: dict) -> None:
        if "durability" in options:
            options["durability"] = Durability(options["durability"])
        boot = options.pop("boot", None)
        if "address_space" in options:
            limit = options.pop("address_space")
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        self.store = Store.open(path, StoreOptions(**options), boot=boot)
        self.write = None
        self.views = []

    def put(self, sid: bytes, layer: int, start: int, data: bytes) -> int:
        self.begin(sid, layer, start, data)
        return self.write.commit()

    def begin(self, sid: bytes, layer: int, start: int, data: bytes) -> None:
        self.store.create_session(sid, SCHEMA)
        self.write = self.store.begin_write(sid, layer, start, len(data) // ROW)
        source = memoryview(data)
        while (segment := self.write.next_segment()) is not None:
            segment[:] = source[: len(segment)]
            source = source[len(segment) :]

    def commit(self) -> int:
        return self.write.commit()

    def get(self, sid: bytes, layer: int, start: int, end: int) -> bytes | None:
        rows = self.store.rows(sid, layer, start, end)
        return None if rows is None else b"".join(rows.parts)

    def hold(self, sid: bytes, layer: int, start: int, end: int) -> None:
        self.views += self.store.rows(sid, layer, start, end).parts

    def held(self) -> bytes:
        return b"".join(self.views)

    def set_key(self, name: bytes, value: bytes) -> None:
        self.store.keyspace.change(lambda keys: strings.put(keys, name, value))

    def get_key(self, name: bytes) -> bytes | None:
        found = self.store.keyspace.read(lambda keys: strings.get(keys, name))
        return None if found is None else bytes(found)

    def begin_key(self, name: bytes, length: int) -> None:
        self.value = self.store.keyspace.begin_large(name, length)
        self.value.next_segment()

    def count(self, name: bytes, times: int) -> None:
        for _ in range(times):
            self.store.keyspace.change(lambda keys: strings.increment(keys, name, 1))

    def transaction(self, namespace: bytes, start: int, count: int) -> None:
        """Begin one and give it rows of a layer; it stays open."""
        plan = PrefixPlan(namespace, (SCHEMA, SCHEMA), 2)
        self.open = self.store.begin_transaction(b"there", plan)
        with self.open.begin_write(namespace + b"_pk", 0, start, count) as write:
            while write.next_segment() is not None:
                pass
            write.commit()

    def rows(self, sid: bytes) -> tuple[int, ...]:
        return self.store.session(sid).rows

    def hit(self, namespace: bytes) -> int | None:
        view = self.store.lookup(namespace)
        return None if view is None else view.tokens

    def match(self, ids: list[int]) -> tuple[bytes, int] | None:
        found = self.store.match(np.asarray(ids, np.uint32))
        return None if found is None else (found.record.namespace, found.tokens)

    def mapped(self) -> int:
        return len(self.store._engine.maps.numbers())

    def write_for_ever(self, seed: int) -> None:
        """Stores prefixes, saying before and after each what it does; ends only by a signal."""
        for round_ in itertools.count():
            name = b"%d-%d" % (seed, round_ % 7)
            layers, rows = 2 + round_ % 3, 6000 if round_ % 4 else 50 + round_ % 400
            print(repr(("begin", name, layers, rows)), flush=True)
            self.store.drop_namespaces([name])
            self.store.register(name, SCHEMA, SCHEMA)
            for layer, side in itertools.product(range(layers), (b"_pk", b"_pv")):
                self.put(name + side, layer, 0, pattern(name, layer, 0, rows))
            if round_ % 5 == 4:
                self.store.tick()
            print(repr(("done", name, layers, rows)), flush=True)


def main() -> None:
    peer = Peer(sys.argv[1], ast.literal_eval(sys.argv[2]))
    print(repr(("ok", None)), flush=True)
    for line in sys.stdin:
        name, args, kwargs = ast.literal_eval(line)
        method = getattr(peer, name, None) or getattr(peer.store, name)
        try:
            answer = ("ok", method(*args, **kwargs))
        except StorageError as error:
            answer = ("error", type(error).__name__, str(error))
        print(repr(answer), flush=True)
    peer.store.close()


if __name__ == "__main__":
    main()
