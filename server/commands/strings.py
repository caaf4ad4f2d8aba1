"""Strings under plain keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage.keyspace import expiry, generic, strings
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.entry import Kind
from pionkv.storage.keyspace.numbers import INT64_MIN
from pionkv.storage.keyspace.strings import Condition

from ..arguments import Argument, Cursor, blob, integer, pairs
from ..clients import Client
from ..deadlines import UNITS, Unit, deadline
from ..dispatch import Opener, Several
from ..keyed import Answer, Batch, Change, Read, handlers, value, values
from ..values import data, open_value

OK = reply.OK
SYNTAX = CommandError("ERR", "syntax error")


def get(keys: KeyReader, args: Sequence[Argument], protocol: int) -> Answer:
    """GET key."""
    found = strings.get(keys, blob(args[1]))
    return reply.bulk(found) if type(found) is bytes else value(found, protocol)


def gets(client: Client, lines: Sequence[list[bytes]], longest: int) -> bytes | None:
    """GET, several times, of short strings that were found before."""
    keyspace = client.service.store.keyspace
    found = keyspace.known_values([name for _, name in lines], note_use=not client.no_touch)
    return None if found is None else reply.bulks(found)


def get_range(keys: KeyReader, args: Sequence[Argument], protocol: int) -> Answer:
    """GETRANGE key start end."""
    start, end = integer(args[2]), integer(args[3])
    return reply.bulk(strings.get_range(keys, blob(args[1]), start, end))


def length(keys: KeyReader, args: Sequence[Argument], protocol: int) -> Answer:
    """STRLEN key."""
    return reply.integer(strings.length(keys, blob(args[1])))


def get_many(keys: KeyReader, args: Sequence[Argument], protocol: int) -> Answer:
    """MGET key [key ...]; null for keys that hold something else."""
    return values([_string_or_none(keys, blob(name)) for name in args[1:]], protocol)


def _string_or_none(keys: KeyReader, name: bytes) -> strings.Value | None:
    entry = keys.find(name)
    if entry is None or entry.kind is not Kind.STRING:
        return None
    keys.note(entry)
    return strings.load(keys, entry)


Expiration = tuple[Unit, Argument]


def take_unit(cursor: Cursor, before: Expiration | None) -> Unit | None:
    """Take EX, PX, EXAT or PXAT, when a value follows, and no other of them came `before`."""
    if cursor.left < 2:
        return None
    allowed = UNITS.items() if before is None else [item for item in UNITS.items() if item[1] == before[0]]
    return next((unit for word, unit in allowed if cursor.take_keyword(word)), None)


@dataclass(frozen=True, slots=True)
class SetOptions:
    """The options of SET, read but not yet checked against the clock."""

    condition: Condition
    answers_old: bool
    keeps_deadline: bool
    expiration: Expiration | None

    @classmethod
    def read(cls, args: Sequence[Argument]) -> SetOptions:
        """From the arguments after the value."""
        condition, answers_old, keeps, expiration = Condition.ALWAYS, False, False, None
        cursor = Cursor(args, 3)
        while cursor:
            if cursor.take_keyword("GET"):
                answers_old = True
            elif condition is not Condition.IF_PRESENT and cursor.take_keyword("NX"):
                condition = Condition.IF_ABSENT
            elif condition is not Condition.IF_ABSENT and cursor.take_keyword("XX"):
                condition = Condition.IF_PRESENT
            elif expiration is None and cursor.take_keyword("KEEPTTL"):
                keeps = True
            elif not keeps and (unit := take_unit(cursor, expiration)):
                expiration = unit, cursor.take()
            else:
                raise SYNTAX.again()
        return cls(condition, answers_old, keeps, expiration)


def put(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]."""
    name = blob(args[1])
    if len(args) == 3:
        strings.put(keys, name, data(args[2]))
        return OK
    options = SetOptions.read(args)
    at = 0 if options.expiration is None else deadline(keys.now, *options.expiration, "set")
    old = strings.get(keys, name) if options.answers_old else None
    done = strings.put(
        keys,
        name,
        data(args[2]),
        deadline=at,
        keep_deadline=options.keeps_deadline,
        condition=options.condition,
    )
    if options.answers_old:
        return value(old, protocol)
    return OK if done else reply.null(protocol)


def puts(keys: KeyWriter, lines: Sequence[list[bytes]], protocol: int) -> Sequence[bytes] | None:
    """SET, several times, without options: of a key that is set again only the last value is stored."""
    try:
        last = {name: given for _, name, given in lines}
    except ValueError:
        return None
    for name, given in last.items():
        strings.put(keys, name, given)
    return [OK] * len(lines)


def put_new(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """SETNX key value."""
    done = strings.put(keys, blob(args[1]), data(args[2]), condition=Condition.IF_ABSENT)
    return reply.integer(done)


def _put_ending(unit: Unit, command: str) -> Change:
    def run(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
        at = deadline(keys.now, unit, args[2], command)
        strings.put(keys, blob(args[1]), data(args[3]), deadline=at)
        return OK

    return run


def get_and_put(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """GETSET key value."""
    name = blob(args[1])
    old = strings.get(keys, name)
    strings.put(keys, name, data(args[2]))
    return value(old, protocol)


def get_and_delete(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """GETDEL key."""
    name = blob(args[1])
    old = strings.get(keys, name)
    generic.delete(keys, (name,))
    return value(old, protocol)


def get_and_expire(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]."""
    name, cursor = blob(args[1]), Cursor(args, 2)
    expiration: Expiration | None = None
    persist = False
    while cursor:
        if not persist and (unit := take_unit(cursor, expiration)):
            expiration = unit, cursor.take()
        elif expiration is None and cursor.take_keyword("PERSIST"):
            persist = True
        else:
            raise SYNTAX.again()
    found = strings.get(keys, name)
    if found is None:
        return reply.null(protocol)
    if expiration is not None:
        expiry.expire(keys, name, deadline(keys.now, *expiration, "getex"))
    elif persist:
        expiry.persist(keys, name)
    return value(found, protocol)


def put_many(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """MSET key value [key value ...]."""
    for name, given in pairs(args, 1, "mset"):
        strings.put(keys, blob(name), data(given))
    return OK


def put_many_new(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """MSETNX key value [key value ...]."""
    wanted = [(blob(name), given) for name, given in pairs(args, 1, "msetnx")]
    if any(keys.find(name) for name, _ in wanted):
        return reply.integer(0)
    for name, given in wanted:
        strings.put(keys, name, data(given))
    return reply.integer(1)


def append(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """APPEND key value."""
    return reply.integer(strings.append(keys, blob(args[1]), blob(args[2])))


def set_range(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """SETRANGE key offset value."""
    offset = integer(args[2])
    if offset < 0:
        raise CommandError("ERR", "offset is out of range")
    return reply.integer(strings.set_range(keys, blob(args[1]), offset, blob(args[3])))


def _count(step: int) -> Change:
    def run(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
        return reply.integer(strings.increment(keys, blob(args[1]), step))

    return run


def increment(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """INCRBY key increment."""
    return reply.integer(strings.increment(keys, blob(args[1]), integer(args[2])))


def decrement(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """DECRBY key decrement."""
    step = integer(args[2])
    if step == INT64_MIN:
        raise CommandError("ERR", "decrement would overflow")
    return reply.integer(strings.increment(keys, blob(args[1]), -step))


def increment_float(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> Answer:
    """INCRBYFLOAT key increment."""
    return reply.bulk(strings.increment_float(keys, blob(args[1]), blob(args[2])))


READS: dict[str, Read] = {
    "GET": get,
    "GETRANGE": get_range,
    "MGET": get_many,
    "STRLEN": length,
}
CHANGES: dict[str, Change] = {
    "APPEND": append,
    "DECR": _count(-1),
    "DECRBY": decrement,
    "GETDEL": get_and_delete,
    "GETEX": get_and_expire,
    "GETSET": get_and_put,
    "INCR": _count(1),
    "INCRBY": increment,
    "INCRBYFLOAT": increment_float,
    "MSET": put_many,
    "MSETNX": put_many_new,
    "PSETEX": _put_ending(UNITS["PX"], "psetex"),
    "SET": put,
    "SETEX": _put_ending(UNITS["EX"], "setex"),
    "SETNX": put_new,
    "SETRANGE": set_range,
}
BATCHES: dict[str, Batch] = {"SET": puts}
HANDLERS = handlers(READS, CHANGES, BATCHES)
SEVERAL: dict[str, Several] = {"GET": gets}
OPENERS: dict[str, dict[int, Opener]] = {
    **{name: {2: open_value} for name in ("GETSET", "SET", "SETNX")},
    **{name: {3: open_value} for name in ("PSETEX", "SETEX")},
}
