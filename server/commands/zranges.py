"""Ranges of sorted sets: by index, by score, by the members' bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage.keyspace import zranges
from pionkv.storage.keyspace.access import KeyReader, KeyWriter
from pionkv.storage.keyspace.numbers import parse_double
from pionkv.storage.keyspace.zranges import LexRange, Range, ScoreRange

from ..arguments import Argument, Cursor, blob, integer
from ..keyed import Change, Read, handlers
from .zsets import SYNTAX, scored


def _score_bound(argument: Argument) -> tuple[float, bool]:
    """A score, and whether it is left out itself."""
    text = blob(argument)
    is_open = text.startswith(b"(")
    value = parse_double(text[is_open:])
    if value is None:
        raise CommandError("ERR", "min or max is not a float")
    return value, is_open


def score_range(low: Argument, high: Argument) -> ScoreRange:
    """Scores from `low` to `high`; `(` before one leaves it out."""
    (first, first_open), (last, last_open) = _score_bound(low), _score_bound(high)
    return ScoreRange(first, last, first_open, last_open)


def lex_range(low: Argument, high: Argument) -> LexRange:
    """Members from `[low` or `(low` to `[high` or `(high`; `-` and `+` are the ends."""
    first, last = blob(low), blob(high)
    for text in (first, last):
        if text not in (b"-", b"+") and text[:1] not in (b"[", b"("):
            raise CommandError("ERR", "min or max not valid string range item")
    return LexRange(
        None if first == b"-" else first[1:],
        None if last == b"+" else last[1:],
        first[:1] == b"(",
        last[:1] == b"(",
        empty=first == b"+" or last == b"-",
    )


@dataclass(slots=True)
class Options:
    """The options of the range commands."""

    by: str = ""
    reverse: bool = False
    offset: int = 0
    limit: int = -1
    with_scores: bool = False

    @classmethod
    def read(cls, args: Sequence[Argument], words: frozenset[str]) -> Options:
        """From the arguments after the range; `words` are those the command knows."""
        options, cursor = cls(), Cursor(args, 4)
        while cursor:
            word = next((word for word in words if cursor.take_keyword(word)), "")
            if word == "LIMIT" and cursor.left >= 2:
                options.offset, options.limit = integer(cursor.take()), integer(cursor.take())
            elif word in ("BYSCORE", "BYLEX") and not options.by:
                options.by = word
            elif word == "REV" and not options.reverse:
                options.reverse = True
            elif word == "WITHSCORES":
                options.with_scores = True
            else:
                raise SYNTAX.again()
        return options


RANGE_WORDS = frozenset({"BYSCORE", "BYLEX", "REV", "LIMIT", "WITHSCORES"})


def select(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
    """ZRANGE key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]."""
    options = Options.read(args, RANGE_WORDS)
    if options.limit != -1 and not options.by:
        raise CommandError(
            "ERR", "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
        )
    if options.with_scores and options.by == "BYLEX":
        raise CommandError("ERR", "syntax error, WITHSCORES not supported in combination with BYLEX")
    return _answer(keys, args, options, protocol)


def _select(by: str, *words: str, reverse: bool = False) -> Read:
    """ZREVRANGE, ZRANGEBYSCORE and their like."""
    known = frozenset(words)

    def run(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
        options = Options.read(args, known)
        options.by, options.reverse = by, reverse
        return _answer(keys, args, options, protocol)

    return run


def _answer(keys: KeyReader, args: Sequence[Argument], options: Options, protocol: int) -> bytes:
    name, first, last = blob(args[1]), args[2], args[3]
    if options.by:
        found = zranges.by_range(
            keys,
            name,
            _range(options.by, *((last, first) if options.reverse else (first, last))),
            reverse=options.reverse,
            offset=options.offset,
            limit=options.limit,
        )
    else:
        start, stop = integer(first), integer(last)
        found = zranges.by_index(keys, name, start, stop, reverse=options.reverse)
    if options.with_scores:
        return scored(found, protocol)
    return reply.encode([member for member, _ in found], protocol)


def _range(by: str, low: Argument, high: Argument) -> Range:
    return score_range(low, high) if by == "BYSCORE" else lex_range(low, high)


def _count(by: str) -> Read:
    def run(keys: KeyReader, args: Sequence[Argument], protocol: int) -> bytes:
        return reply.integer(zranges.count(keys, blob(args[1]), _range(by, args[2], args[3])))

    return run


def _remove(by: str) -> Change:
    def run(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
        wanted = _range(by, args[2], args[3])
        return reply.integer(zranges.remove_by_range(keys, blob(args[1]), wanted))

    return run


def remove_by_rank(keys: KeyWriter, args: Sequence[Argument], protocol: int) -> bytes:
    """ZREMRANGEBYRANK key start stop."""
    start, stop = integer(args[2]), integer(args[3])
    return reply.integer(len(zranges.remove_by_index(keys, blob(args[1]), start, stop)))


READS: dict[str, Read] = {
    "ZCOUNT": _count("BYSCORE"),
    "ZLEXCOUNT": _count("BYLEX"),
    "ZRANGE": select,
    "ZRANGEBYLEX": _select("BYLEX", "LIMIT"),
    "ZRANGEBYSCORE": _select("BYSCORE", "LIMIT", "WITHSCORES"),
    "ZREVRANGE": _select("", "WITHSCORES", reverse=True),
    "ZREVRANGEBYLEX": _select("BYLEX", "LIMIT", reverse=True),
    "ZREVRANGEBYSCORE": _select("BYSCORE", "LIMIT", "WITHSCORES", reverse=True),
}
CHANGES: dict[str, Change] = {
    "ZREMRANGEBYLEX": _remove("BYLEX"),
    "ZREMRANGEBYRANK": remove_by_rank,
    "ZREMRANGEBYSCORE": _remove("BYSCORE"),
}
HANDLERS = handlers(READS, CHANGES)
