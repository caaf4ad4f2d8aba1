"""Plain keys of any type: removed, renamed, searched, and when they end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage.keyspace import expiry, generic
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.entry import Entry
from pionkv.storage.keyspace.expiry import DeadlineRule

from ..arguments import Argument, Cursor, blob, integer, keyword, shown
from ..deadlines import AT_MILLISECONDS, AT_SECONDS, MILLISECONDS, SECONDS, Unit, deadline
from ..dispatch import Handler
from ..glob import compile_glob
from ..keyed import Answer, Change, Read, handlers, value
from ..scanning import Scan, scanned
from .command import help
from .strings import OK

SYNTAX = CommandError("ERR", "syntax error")
RULES = {
    "NX": DeadlineRule.IF_NONE,
    "XX": DeadlineRule.IF_SET,
    "GT": DeadlineRule.IF_LATER,
    "LT": DeadlineRule.IF_SOONER,
}
NO_FREQUENCY = CommandError(
    "ERR",
    "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
    "between policies at runtime LRU and LFU data will take some time to adjust.",
)


def kind_name(entry: Entry) -> bytes:
    """A type as TYPE answers it."""
    return entry.kind.name.lower().encode()


def delete(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """DEL key [key ...], UNLINK key [key ...]."""
    return reply.integer(generic.delete(keys, map(blob, args[1:])))


def exists(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """EXISTS key [key ...]."""
    return reply.integer(sum(keys.find(blob(name)) is not None for name in args[1:]))


def touch(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """TOUCH key [key ...]."""
    found = [entry for name in args[1:] if (entry := keys.find(blob(name))) is not None]
    for entry in found:
        keys.note(entry)
    return reply.integer(len(found))


def kind(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """TYPE key."""
    entry = keys.find(blob(args[1]))
    return reply.simple("none" if entry is None else kind_name(entry).decode())


def rename(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """RENAME key newkey."""
    generic.rename(keys, blob(args[1]), blob(args[2]))
    return OK


def rename_new(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """RENAMENX key newkey."""
    return reply.integer(generic.rename(keys, blob(args[1]), blob(args[2]), replace=False))


def copy(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """COPY source destination [DB 0] [REPLACE]."""
    replace, cursor = False, Cursor(args, 3)
    while cursor:
        if cursor.take_keyword("REPLACE"):
            replace = True
        elif cursor.left >= 2 and cursor.take_keyword("DB"):
            if integer(cursor.take()) != 0:
                raise CommandError("ERR", "DB index is out of range")
        else:
            raise SYNTAX.again()
    return reply.integer(generic.copy(keys, blob(args[1]), blob(args[2]), replace=replace))


def _expire(unit: Unit, command: str) -> Change:
    def run(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
        rules = _rules(args[3:])
        at = deadline(keys.now, unit, args[2], command, past=True)
        return reply.integer(expiry.expire(keys, blob(args[1]), at, rules))

    return run


def _rules(words: Sequence[Argument]) -> frozenset[DeadlineRule]:
    given = set()
    for word in words:
        if keyword(word) not in RULES:
            raise CommandError("ERR", f"Unsupported option {shown(word)}")
        given.add(keyword(word))
    if "NX" in given and len(given) > 1:
        raise CommandError("ERR", "NX and XX, GT or LT options at the same time are not compatible")
    if given >= {"GT", "LT"}:
        raise CommandError("ERR", "GT and LT options at the same time are not compatible")
    return frozenset(RULES[word] for word in given)


def _ending(answer: Callable[[int, int], int]) -> Read:
    """A command about a deadline: `answer` gets it and the time now; -1 and -2 are answered as they are."""

    def run(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
        at = expiry.deadline(keys, blob(args[1]))
        return reply.integer(at if at < 0 else answer(at, keys.now))

    return run


def persist(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """PERSIST key."""
    return reply.integer(expiry.persist(keys, blob(args[1])))


def names(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """KEYS pattern."""
    pattern, told = compile_glob(blob(args[1])), keys.listing.told
    found = [name for entry in generic.entries(keys) if pattern.fullmatch(name := told(entry.name))]
    return reply.encode(found, protocol)


def scan(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]."""
    step, told = Scan.read(args, 1, kinds=True), keys.listing.told

    def wanted(entry: Entry) -> bool:
        return step.wants(told(entry.name)) and step.kind in (None, kind_name(entry))

    following, found = generic.scan(keys, step.cursor, step.count, wanted)
    return scanned(following, map(told, found), protocol)


def random_key(keys: KeyReader, args: Sequence[Argument], protocol: int) -> Answer:
    """RANDOMKEY."""
    name = generic.random_key(keys, random.SystemRandom())
    return value(None if name is None else keys.listing.told(name), protocol)


def size(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """DBSIZE: what FLUSHALL would remove; for a tenant what is its own."""
    if tag := keys.listing.tag:
        return reply.integer(generic.count_tagged(keys, tag))
    return reply.integer(keys.count() + keys.reader.entries("namespaces"))


def flush(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """FLUSHALL [ASYNC|SYNC], FLUSHDB [ASYNC|SYNC]."""
    if len(args) > 2 or (len(args) == 2 and keyword(args[1]) not in ("ASYNC", "SYNC")):
        raise SYNTAX.again()
    generic.flush(keys)
    return OK


def _object(answer: Callable[[Entry, int], bytes]) -> Read:
    """A subcommand of OBJECT: `answer` gets the key and the time now, milliseconds."""

    def run(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
        entry = keys.find(blob(args[2]))
        return reply.null(protocol) if entry is None else answer(entry, keys.now)

    return run


def _encoding(entry: Entry, now: int) -> bytes:
    return reply.bulk(entry.encoding.name.lower().encode())


def _frequency(entry: Entry, now: int) -> bytes:
    raise NO_FREQUENCY.again()


def _idle(entry: Entry, now: int) -> bytes:
    return reply.integer(max(0, now // 1000 - entry.used))


def _references(entry: Entry, now: int) -> bytes:
    return reply.integer(1)


READS: dict[str, Read] = {
    "DBSIZE": size,
    "EXISTS": exists,
    "EXPIRETIME": _ending(lambda at, now: (at + 500) // 1000),
    "KEYS": names,
    "OBJECT|ENCODING": _object(_encoding),
    "OBJECT|FREQ": _object(_frequency),
    "OBJECT|IDLETIME": _object(_idle),
    "OBJECT|REFCOUNT": _object(_references),
    "PEXPIRETIME": _ending(lambda at, now: at),
    "PTTL": _ending(lambda at, now: at - now),
    "RANDOMKEY": random_key,
    "SCAN": scan,
    "TOUCH": touch,
    "TTL": _ending(lambda at, now: (at - now + 500) // 1000),
    "TYPE": kind,
}
CHANGES: dict[str, Change] = {
    "COPY": copy,
    "DEL": delete,
    "EXPIRE": _expire(SECONDS, "expire"),
    "EXPIREAT": _expire(AT_SECONDS, "expireat"),
    "FLUSHALL": flush,
    "FLUSHDB": flush,
    "PERSIST": persist,
    "PEXPIRE": _expire(MILLISECONDS, "pexpire"),
    "PEXPIREAT": _expire(AT_MILLISECONDS, "pexpireat"),
    "RENAME": rename,
    "RENAMENX": rename_new,
    "UNLINK": delete,
}
HANDLERS: dict[str, Handler] = {**handlers(READS, CHANGES), "OBJECT|HELP": help}
