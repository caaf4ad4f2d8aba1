"""A proxy that cuts connections at random byte offsets, and a client that goes on through it.

After each cut a second client, past the proxy, looks at what there is: every layer is of one version, the one
before the cut command or the one it was to bring; what is published in one step is of one version as a whole.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import redis
from faults_rows import ROW_BYTES, SIDES, WrongRows, connect, name_of, store, version_of

LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
LAYERS = 2
COUNTS = (1, 40, 300)
BY_LAYER, PUBLISHED = 1, 2
RESET = struct.pack("ii", 1, 0)
WORDS = 800
"""Bytes of a command or reply beside the rows, about."""


class Proxy:
    """Forwards one connection after the other until so many bytes went one way, then cuts it.

    Attributes:
        port: Where it listens.
        plan: (upwards, bytes, reset) of the connections to come.
        cuts: How many it has cut.
    """

    def __init__(self, target: int) -> None:
        self.plan = (True, 0, False)
        self.cuts = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with (
                    client,
                    socket.create_connection(("127.0.0.1", self._target)) as server,
                    suppress(OSError),
                ):
                    self._forward(client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        upwards, left, reset = self.plan
        other = {client: server, server: client}
        cut = client if upwards else server
        while True:
            for source in select.select(list(other), [], [])[0]:
                data = source.recv(min(65536, max(1, left)) if source is cut else 65536)
                if not data:
                    return
                if source is cut:
                    if not left:
                        self._cut(client, server, reset)
                        return
                    left -= len(data)
                other[source].sendall(data)
                if source is cut and not left:
                    self._cut(client, server, reset)
                    return

    def _cut(self, client: socket.socket, server: socket.socket, reset: bool) -> None:
        self.cuts += 1
        if reset:
            for end in (client, server):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


class CutLoop:
    """Commands through the proxy, each cut somewhere, and what is there afterwards.

    Args:
        port: Of a server with one worker.
        seed: Decides where.
    """

    def __init__(self, port: int, seed: int) -> None:
        self.proxy = Proxy(port)
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._direct = connect(port)
        self._version = 1
        self._may_be = {BY_LAYER: {1}, PUBLISHED: {1}}
        self._rows = {BY_LAYER: 300, PUBLISHED: 300}
        self._value = {b"v" * 100_000}
        for number in (BY_LAYER, PUBLISHED):
            self._direct.execute_command("KV.PREFIX.REGISTER", name_of(number), 64, "fp32")
            for layer in range(LAYERS):
                store(self._direct, number, layer, (0, 300), 1)
        self._direct.set("key", b"v" * 100_000)

    def run(self, cuts: int) -> None:
        """So many cuts. Raises `WrongRows`."""
        try:
            while self.proxy.cuts < cuts:
                kind = self._random.choice((self._store, self._publish, self._fetch, self._set))
                self.counts[kind.__name__[1:]] += 1
                kind()
                self._wait_for_quiet()
                self._look()
        finally:
            self.proxy.close()
            self._direct.close()

    def _through(self, size: int, act: Callable[[redis.Redis], object], *, upwards: bool) -> bool:
        """Run commands through the proxy; whether they were all answered."""
        self.proxy.plan = (upwards, self._random.randrange(1, size + WORDS), self._random.random() < 0.5)
        client = None
        try:
            client = connect(self.proxy.port)
            act(client)
            return True
        except LOST:
            return False
        finally:
            if client is not None:
                client.close()

    def _wait_for_quiet(self) -> None:
        """Until the server has done with the connection that was cut."""
        while self._direct.info("clients")["connected_clients"] > 1:
            pass

    def _store(self) -> None:
        self._version += 1
        version, rows = self._version, self._rows[BY_LAYER]

        def act(client: redis.Redis) -> None:
            for layer in range(LAYERS):
                store(client, BY_LAYER, layer, (0, rows), version)

        done = self._through(rows * ROW_BYTES * 2 * LAYERS, act, upwards=self._random.random() < 0.8)
        self._may_be[BY_LAYER] = {version} if done else self._may_be[BY_LAYER] | {version}

    def _publish(self) -> None:
        self._version += 1
        version, rows = self._version, self._random.choice(COUNTS)
        name = name_of(PUBLISHED)

        def act(client: redis.Redis) -> None:
            form = ("KV", 64, "fp32", "LAYERS", LAYERS, "FROM", name, 0)
            txn = client.execute_command("KV.PREFIX.BEGIN", name, *form)
            for layer in range(LAYERS):
                store(client, PUBLISHED, layer, (0, rows), version, b"TXN", txn)
            client.execute_command("KV.PREFIX.PUBLISH", txn)

        done = self._through(rows * ROW_BYTES * 2 * LAYERS, act, upwards=self._random.random() < 0.8)
        self._may_be[PUBLISHED] = {version} if done else self._may_be[PUBLISHED] | {version}

    def _fetch(self) -> None:
        number = self._random.choice((BY_LAYER, PUBLISHED))
        self._through(300 * ROW_BYTES * 2 * LAYERS, lambda client: self._read(client, number), upwards=False)

    def _set(self) -> None:
        self._version += 1
        value = b"%07d|" % self._version * self._random.choice((10, 1_000, 20_000))
        done = self._through(len(value), lambda client: client.set("key", value), upwards=True)
        self._value = {value} if done else self._value | {value}

    def _look(self) -> None:
        for number in (BY_LAYER, PUBLISHED):
            versions = self._read(self._direct, number)
            if not versions <= self._may_be[number] or (number == PUBLISHED and len(versions) != 1):
                raise WrongRows(f"namespace {number} is of {versions}, not of {self._may_be[number]}")
            if len(versions) == 1:
                self._may_be[number] = versions
        value = self._direct.get("key")
        if value not in self._value:
            raise WrongRows(f"the key begins with {value[:16]!r}" if value else "the key is gone")
        self._value = {value}

    def _read(self, client: redis.Redis, number: int) -> set[int]:
        """The versions of a namespace's layers, every row of them checked."""
        sids = [name_of(number) + suffix for suffix in SIDES]
        info = client.execute_command("V.INFO", sids[0])
        rows = int(info.split(b"layer_0_tokens:")[1].split(b"\r\n")[0])
        replies = client.execute_command("V.FETCHALL", *sids, 0, rows, "FMT", "RAW")
        versions = set()
        for index, raw in enumerate(replies):
            layer, side = divmod(index, 2)
            versions.add(version_of(raw or b"", number, side, layer, 0, rows))
        if len(replies) != 2 * LAYERS:
            raise WrongRows(f"{len(replies)} layers of namespace {number}")
        self.counts["rows"] += rows * len(replies)
        return versions
