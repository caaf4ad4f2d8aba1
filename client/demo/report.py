"""What the demonstration found, as tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from .worker import Result

_HEADINGS = ("format", "tokens", "cold", "restored", "ratio", "sent", "received", "differs")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same prefix in two processes: prefilled in the first, restored in the second."""

    vquant: str
    cold: Result
    warm: Result

    @property
    def first_difference(self) -> tuple[int, int] | None:
        """Question and position of the first token that differs, counted from 0; None when none does."""
        for question, (cold, warm) in enumerate(zip(self.cold.answers, self.warm.answers, strict=True)):
            position = first_difference(cold, warm)
            if position is not None:
                return question, position
        return None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Position of the first token in which two answers differ; None when they are equal."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def figures(comparisons: Sequence[Comparison]) -> Table:
    """The table of times and bytes."""
    table = Table(
        title="Time to first token: prefilled in process A, restored in process B",
        caption="sent by A to publish, received by B to restore; differs: answer and token unlike A's",
    )
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "format" else "right", no_wrap=True)
    for each in comparisons:
        table.add_row(
            each.vquant,
            str(each.warm.prefix_tokens),
            f"{each.cold.ttft:.2f} s",
            f"{each.warm.ttft:.2f} s",
            f"{each.cold.ttft / each.warm.ttft:.1f}x",
            _megabytes(each.cold.bytes_sent),
            _megabytes(each.warm.bytes_received),
            _place(each.first_difference),
        )
    return table


def answers(question: str, index: int, comparisons: Sequence[Comparison]) -> Table:
    """The table of answers to one question."""
    table = Table(title=question, title_justify="left", show_header=False)
    table.add_row("prefilled", comparisons[0].cold.texts[index])
    for each in comparisons:
        table.add_row(f"restored, {each.vquant}", each.warm.texts[index])
    return table


def _place(found: tuple[int, int] | None) -> str:
    return "none" if found is None else f"{found[0] + 1}:{found[1] + 1}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
