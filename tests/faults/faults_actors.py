"""Writers and readers as processes of their own: `python faults_actors.py writer|reader <port> <seed> …`.

They go on through every loss of the connection, until standard input ends. A line of output is JSON:
`done` after an acknowledged change, `seen` after rows were looked at, `wrong`, the last one, when rows are
not those that were stored or something acknowledged is not there.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from collections.abc import Callable

import redis
from faults_rows import SIDES, Found, WrongRows, connect, look, name_of, shape_of, store, version_of

OWN = 4
"""Namespaces of a writer. The first is only ever published whole."""
PUBLISHED = 0
LAYERS = 3
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
KEY_BYTES = (40, 3_000, 90_000)
GIVE_UP_SECONDS = 90
Change = tuple[Callable[[], None], Found]
"""What makes a change, and what its namespace holds then."""


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def told_to_end() -> bool:
    """Whether standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Actor:
    """Something that has a connection, until it has none and makes another."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.reconnect()

    def reconnect(self) -> None:
        """Until a server answers."""
        begun = time.monotonic()
        while True:
            try:
                self.client = connect(self.port)
                self.client.ping()
                return
            except LOST:
                if time.monotonic() - begun > GIVE_UP_SECONDS:
                    raise
                time.sleep(0.005)


class Writer(Actor):
    """Changes its namespaces and a key, and knows what of it must be there."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(port, seed)
        self.numbers = [seed % 1000 * 10 + index for index in range(OWN)]
        self.key = b"key%d" % (seed % 1000)
        self.version = seed // 1000 * 10_000
        self.held: dict[int, Found] = {}
        self.value: tuple[int, int] | None = None
        for number in self.numbers:
            self.surely(lambda number=number: self.client.execute_command("KV.PREFIX.DROP", name_of(number)))
            self.held[number] = {}
        self.surely(lambda: self.client.delete(self.key))

    def surely(self, act: Callable[[], object]) -> None:
        """Do what may be done twice until it is acknowledged."""
        while True:
            try:
                act()
                return
            except LOST:
                self.reconnect()

    def step(self) -> None:
        """One change of something."""
        self.version += 1
        number = self.random.choice(self.numbers)
        if self.random.random() < 0.2:
            self.change_key()
        elif number == self.numbers[PUBLISHED]:
            self.change(number, self.publish, one_of=True)
        else:
            held = self.held[number]
            ways = [self.replace] if not held else [self.replace, self.overwrite, self.append]
            self.change(number, self.random.choice(ways))
        say(done=1)

    def change(self, number: int, way: Callable[[int], Change], one_of: bool = False) -> None:
        act, after = way(number)
        before = self.held[number]
        try:
            act()
        except LOST:
            self.reconnect()
            self.after_a_loss(number, before, after, one_of)
            self.surely(lambda: self.client.execute_command("KV.PREFIX.DROP", name_of(number)))
            after = {}
        self.held[number] = after

    def after_a_loss(self, number: int, before: Found, after: Found, one_of: bool) -> None:
        """The change was cut off: each layer is as it was or as it was to be, and nothing else is touched."""
        self.check_others(number)
        while True:
            try:
                hit, found = look(self.client, number)
            except LOST:
                self.reconnect()
                continue
            if one_of and found not in (before, after):
                raise WrongRows(f"namespace {number} is {found}: neither {before} nor {after}")
            for place, layer in found.items():
                if layer not in (before.get(place), after.get(place)):
                    raise WrongRows(
                        f"namespace {number}, {place}: {layer}, not {before.get(place)} or {after.get(place)}"
                    )
            if hit and len({rows for rows, _ in found.values()}) != 1:
                raise WrongRows(f"namespace {number} is a hit with {found}")
            return

    def check_others(self, changing: int | None) -> None:
        """What was acknowledged is there."""
        for number in self.numbers:
            if number != changing:
                self.surely(lambda number=number: self.check(number))

    def check_all(self) -> None:
        """Everything that was acknowledged is there, as it was; the server runs."""
        for number in self.numbers:
            self.check(number)
        self.check_key(self.value)

    def check(self, number: int) -> None:
        hit, found = look(self.client, number)
        if found != self.held[number] or hit != bool(found):
            raise WrongRows(
                f"namespace {number} was acknowledged as {self.held[number]}, is {found} (hit: {hit})"
            )
        say(seen=sum(rows for rows, _ in found.values()))

    def shape(self, rows: int) -> Found:
        return {(side, layer): (rows, self.version) for side in (0, 1) for layer in range(LAYERS)}

    def count(self) -> int:
        return self.random.choice((1, 7, 60, 300, 300, 2_000, 6_000))

    def replace(self, number: int) -> Change:
        rows, version = self.count(), self.version

        def act() -> None:
            self.client.execute_command("KV.PREFIX.DROP", name_of(number))
            self.client.execute_command("KV.PREFIX.REGISTER", name_of(number), 64, "fp32")
            for layer in range(LAYERS):
                store(self.client, number, layer, (0, rows), version)

        return act, self.shape(rows)

    def overwrite(self, number: int) -> Change:
        rows, version = self.held[number][0, 0][0], self.version

        def act() -> None:
            for layer in range(LAYERS):
                store(self.client, number, layer, (0, rows), version)

        return act, self.shape(rows)

    def append(self, number: int) -> Change:
        rows, version = self.held[number][0, 0]
        more = self.count()

        def act() -> None:
            for layer in range(LAYERS):
                store(self.client, number, layer, (rows, rows + more), version)

        return act, {place: (rows + more, version) for place in self.shape(0)}

    def publish(self, number: int) -> Change:
        """Another version of every layer of both sides, in one step."""
        rows, version, before = self.count(), self.version, self.held[number]

        def act() -> None:
            client = self.client
            form = ("KV", 64, "fp32", "LAYERS", LAYERS)
            origin = ("FROM", name_of(number), 0) if before else ()
            txn = client.execute_command("KV.PREFIX.BEGIN", name_of(number), *form, *origin)
            for layer in range(LAYERS):
                store(client, number, layer, (0, rows), version, b"TXN", txn)
            client.execute_command("KV.PREFIX.PUBLISH", txn)

        return act, self.shape(rows)

    def change_key(self) -> None:
        before, after = self.value, (self.version, self.random.choice(KEY_BYTES))
        try:
            self.client.set(self.key, value_of(*after))
        except LOST:
            self.reconnect()
            self.check_others(None)
            self.surely(lambda: self.check_key(before, after))
            self.surely(lambda: self.client.set(self.key, value_of(*after)))
        self.value = after

    def check_key(self, *may_be: tuple[int, int] | None) -> None:
        """The key holds one of these values."""
        found = self.client.get(self.key)
        if found not in [None if value is None else value_of(*value) for value in may_be]:
            shown = None if found is None else found[:16]
            raise WrongRows(f"key {self.key!r} begins with {shown!r}, it should be one of {may_be}")


def value_of(version: int, size: int) -> bytes:
    """A plain value that says which it is."""
    return (b"%08d" % version * (size // 8 + 1))[:size]


class Reader(Actor):
    """Reads the namespaces of all writers while they change."""

    def __init__(self, port: int, seed: int, writers: int) -> None:
        super().__init__(port, seed)
        self.numbers = [writer * 10 + index for writer in range(writers) for index in range(OWN)]

    def step(self) -> None:
        """Read one namespace, both sides of all layers as of one moment."""
        number = self.random.choice(self.numbers)
        try:
            say(seen=self.read(number))
        except LOST:
            self.reconnect()
        except redis.ResponseError:
            # It was dropped or cut between two commands.
            say(seen=0)

    def read(self, number: int) -> int:
        shape = shape_of(self.client, number)
        rows = min((rows for rows in shape if rows), default=0)
        if not rows:
            return 0
        sids = [name_of(number) + suffix for suffix in SIDES]
        replies = self.client.execute_command("V.FETCHALL", *sids, 0, rows, "FMT", "RAW")
        versions = set()
        for index, raw in enumerate(replies):
            layer, side = divmod(index, 2)
            if raw is not None:
                versions.add(version_of(raw, number, side, layer, 0, rows))
        if number % 10 == PUBLISHED and (len(versions) > 1 or None in replies):
            raise WrongRows(f"namespace {number} shows versions {versions} of what was published whole")
        return rows * sum(raw is not None for raw in replies)


def main(role: str, port: int, seed: int, *more: int) -> None:
    """Act until standard input ends."""
    try:
        actor = Writer(port, seed) if role == "writer" else Reader(port, seed, *more)
        while not told_to_end():
            actor.step()
        if isinstance(actor, Writer):
            actor.check_all()
    except WrongRows as error:
        say(wrong=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
