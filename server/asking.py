"""What one worker asks the others: what they know of slow commands, of clients, of what they refused.

A question goes to all of them, over the supervisor; each answers with what it knows itself. A worker that
does not answer in time, because it has just died or is very busy, is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .control import ANSWER, ASK
from .place import Place

PATIENCE_SECONDS = 1.0

Question: TypeAlias = Callable[..., Any]
"""What is done to answer it; arguments and result are what msgpack knows, and tuples instead of lists."""


class Asking:
    """Asks the other workers, and answers them.

    Args:
        place: Which worker this is.
        questions: What can be asked.
    """

    def __init__(self, place: Place, questions: Mapping[str, Question]) -> None:
        self._place = place
        self._questions = questions
        self._waiting: dict[int, tuple[list[Any], asyncio.Event]] = {}
        self._last = 0

    async def all(self, question: str, *args: Any) -> list[Any]:
        """The answers of all workers, this one's first."""
        own = self._questions[question](*args)
        if self._place.workers == 1:
            return [own]
        self._last += 1
        number, answers, complete = self._last, [own], asyncio.Event()
        self._waiting[number] = answers, complete
        self._place.tell(ASK, self._place.number, number, question, args)
        try:
            await asyncio.wait_for(complete.wait(), PATIENCE_SECONDS)
        except TimeoutError:
            pass
        finally:
            del self._waiting[number]
        return answers

    def answer(self, asker: int, number: int, question: str, args: tuple[Any, ...]) -> None:
        """Another worker asks."""
        self._place.tell(ANSWER, asker, number, self._questions[question](*args))

    def answered(self, asker: int, number: int, answer: Any) -> None:
        """Another worker answers somebody."""
        waiting = self._waiting.get(number) if asker == self._place.number else None
        if waiting is None:
            return
        answers, complete = waiting
        answers.append(answer)
        if len(answers) == self._place.workers:
            complete.set()
