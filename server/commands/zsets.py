"""Sorted sets under plain keys: members and their scores. Ranges are in `zranges`."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage.keyspace import generic, zranges, zsets
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.entry import Kind
from pionkv.storage.keyspace.numbers import parse_double, parse_integer
from pionkv.storage.keyspace.zsets import AddRules, Scored, read_score

from ..arguments import Argument, Cursor, blob
from ..keyed import Change, Read, handlers
from ..scanning import Scan, read_cursor, scanned

SYNTAX = CommandError("ERR", "syntax error")


def score_of(argument: Argument) -> float:
    """A score: a decimal number or an infinity."""
    value = parse_double(blob(argument))
    if value is None:
        raise CommandError("ERR", "value is not a valid float")
    return value


def optional_double(value: float | None, protocol: int) -> bytes:
    """A score, or null."""
    return reply.null(protocol) if value is None else reply.double(value, protocol)


def scored(found: Sequence[Scored], protocol: int) -> bytes:
    """Members and scores: in RESP3 pairs, in RESP2 one after the other."""
    if protocol == 3:
        return reply.encode([[member, score] for member, score in found], protocol)
    return reply.encode([part for item in found for part in item], protocol)


def add(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member [score member ...]."""
    words = {"NX", "XX", "GT", "LT", "CH", "INCR"}
    cursor, options = Cursor(args, 2), set[str]()
    while taken := next((word for word in words if cursor.take_keyword(word)), None):
        options.add(taken)
    rules = _rules(options, cursor.left)
    given = []
    while cursor:
        score = score_of(cursor.take())
        given.append((blob(cursor.take()), score))
    added = zsets.add(keys, blob(args[1]), given, rules)
    if rules.increment:
        return optional_double(added.last, protocol)
    return reply.integer(added.new + (added.changed if "CH" in options else 0))


def _rules(options: set[str], left: int) -> AddRules:
    """What the options mean. The order of the checks is Redis'."""
    if not left or left % 2:
        raise SYNTAX.again()
    if options >= {"NX", "XX"}:
        raise CommandError("ERR", "XX and NX options at the same time are not compatible")
    if len(options & {"GT", "LT", "NX"}) > 1:
        raise CommandError("ERR", "GT, LT, and/or NX options at the same time are not compatible")
    if "INCR" in options and left > 2:
        raise CommandError("ERR", "INCR option supports a single increment-element pair")
    return AddRules(
        only_new="NX" in options,
        only_old="XX" in options,
        only_greater="GT" in options,
        only_less="LT" in options,
        increment="INCR" in options,
    )


def increment(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """ZINCRBY key increment member."""
    given = [(blob(args[3]), score_of(args[2]))]
    added = zsets.add(keys, blob(args[1]), given, AddRules(increment=True))
    return optional_double(added.last, protocol)


def score(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """ZSCORE key member."""
    return optional_double(zsets.scores(keys, blob(args[1]), [blob(args[2])])[0], protocol)


def score_many(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """ZMSCORE key member [member ...]."""
    return reply.encode(zsets.scores(keys, blob(args[1]), [*map(blob, args[2:])]), protocol)


def length(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """ZCARD key."""
    return reply.integer(zsets.length(keys, blob(args[1])))


def _rank(*, reverse: bool) -> Read:
    def run(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
        found = zranges.rank(keys, blob(args[1]), blob(args[2]), reverse=reverse)
        return reply.null(protocol) if found is None else reply.integer(found)

    return run


def remove(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """ZREM key member [member ...]."""
    return reply.integer(zsets.remove(keys, blob(args[1]), [*map(blob, args[2:])]))


def _positive(argument: Argument) -> int:
    count = parse_integer(blob(argument))
    if count is None or count < 0:
        raise CommandError("ERR", "value is out of range, must be positive")
    return count


def _pop(*, reverse: bool) -> Change:
    def run(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
        if len(args) > 3:
            raise SYNTAX.again()
        count = 1 if len(args) == 2 else _positive(args[2])
        name = blob(args[1])
        if not zsets.length(keys, name) or not count:
            return reply.array_header(0)
        found = zranges.remove_by_index(keys, name, 0, count - 1, reverse=reverse)
        if len(args) == 3:
            return scored(found, protocol)
        return reply.encode([*found[0]], protocol)

    return run


def scan(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """ZSCAN key cursor [MATCH pattern] [COUNT n]."""
    read_cursor(args[2])
    entry = keys.get(blob(args[1]), Kind.ZSET)
    if entry is None:
        return scanned(0, (), protocol)
    step = Scan.read(args, 2)
    cursor, found = generic.scan_fields(keys, entry, step.cursor, step.count)
    items = ((member, reply.double_text(read_score(raw))) for member, raw in found if step.wants(member))
    return scanned(cursor, (part for item in items for part in item), protocol)


READS: dict[str, Read] = {
    "ZCARD": length,
    "ZMSCORE": score_many,
    "ZRANK": _rank(reverse=False),
    "ZREVRANK": _rank(reverse=True),
    "ZSCAN": scan,
    "ZSCORE": score,
}
CHANGES: dict[str, Change] = {
    "ZADD": add,
    "ZINCRBY": increment,
    "ZPOPMAX": _pop(reverse=True),
    "ZPOPMIN": _pop(reverse=False),
    "ZREM": remove,
}
HANDLERS = handlers(READS, CHANGES)
