"""What a check found, and how checks are run one after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


class NotHere(Exception):
    """A peer that cannot be had on this machine; the text says which and why."""


@dataclass(frozen=True)
class Outcome:
    """One line of the report."""

    peer: str
    check: str
    passed: bool | None
    """None: the peer is not to be had here."""
    detail: str
    seconds: float


@dataclass(frozen=True)
class Check:
    """Something to try with a peer; it returns a detail for the report or raises."""

    peer: str
    name: str
    run: Callable[[], str]


def run(checks: Iterator[Check]) -> Iterator[Outcome]:
    """Run checks in order and report each on standard error as it ends."""
    for check in checks:
        begin = time.perf_counter()
        passed: bool | None = True
        try:
            detail = check.run()
        except NotHere as missing:
            passed, detail = None, str(missing)
        except Exception as error:
            passed, detail = False, f"{type(error).__name__}: {error}"[-1500:]
        outcome = Outcome(check.peer, check.name, passed, detail, round(time.perf_counter() - begin, 1))
        word = {True: "ok  ", False: "FAIL", None: "--  "}[passed]
        print(f"{word} {outcome.peer}: {outcome.check} ({outcome.seconds} s) {detail}", file=sys.stderr)
        yield outcome


def same(what: str, found: object, expected: object) -> None:
    """Raise unless both are equal."""
    if found != expected:
        raise AssertionError(f"{what}: {_short(found)} is not {_short(expected)}")


def holds(what: str, condition: object) -> None:
    """Raise unless the condition is true."""
    if not condition:
        raise AssertionError(what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}…"
