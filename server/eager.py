"""Run a coroutine as far as it comes at once; a task takes over only where it has to wait.

Most replies are complete before they wait for anything. A task for each would cost a turn of the event loop.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The coroutine has returned."""

    value: T


def begin(coroutine: Coroutine[Any, Any, T]) -> Done[T] | Coroutine[Any, Any, T]:
    """Run `coroutine` up to the first thing it waits for.

    Returns:
        `Done`, or the rest of it as a coroutine for a task.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        return Done(stop.value)
    return _rest(coroutine, waits_for)


async def _rest(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> T:
    return await _relay(coroutine, waits_for)


@types.coroutine
def _relay(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Hand to the task what the coroutine waits for, and to the coroutine what the task answers."""
    try:
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
