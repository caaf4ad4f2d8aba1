"""The text of the demonstration: a long system prompt, questions about it, and their token ids."""

from functools import cache
from importlib.resources import files
from typing import Protocol

from .tokenizer import Message


class Chat(Protocol):
    """A tokenizer with a chat template."""

    def chat(self, messages: list[Message], *, answer: bool = True) -> list[int]:
        """Token ids of a conversation."""


@cache
def handbook() -> str:
    """The system prompt: the operations handbook of a company that does not exist."""
    return _read("handbook.txt")


@cache
def questions() -> tuple[str, ...]:
    """Questions about the handbook."""
    return tuple(_read("questions.txt").splitlines())


def prefix_ids(tokenizer: Chat, system: str | None = None) -> list[int]:
    """Token ids of the system turn, which every question shares."""
    return tokenizer.chat([_system(system)], answer=False)


def suffix_ids(tokenizer: Chat, question: str, system: str | None = None) -> list[int]:
    """Token ids that follow the prefix when `question` is asked.

    Raises:
        ValueError: The template or the tokenizer joins them, so that the prefix is not one of the whole.
    """
    whole = tokenizer.chat([_system(system), {"role": "user", "content": question}])
    prefix = prefix_ids(tokenizer, system)
    if whole[: len(prefix)] != prefix:
        raise ValueError("the conversation does not begin with its system turn")
    return whole[len(prefix) :]


def _system(text: str | None) -> Message:
    return {"role": "system", "content": handbook() if text is None else text}


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip()
