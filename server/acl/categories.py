"""The categories of commands that rules may name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from pionkv.protocol.table import COMMANDS

ALL = "all"


def _members() -> Mapping[str, frozenset[str]]:
    found = defaultdict(set)
    for name, spec in COMMANDS.items():
        for category in spec.categories:
            found[category].add(name)
    return MappingProxyType({category: frozenset(found[category]) for category in sorted(found)})


CATEGORIES: Mapping[str, frozenset[str]] = _members()
"""Category, without the @ -> the commands and subcommands in it."""


def commands_of(word: str) -> frozenset[str] | None:
    """The commands that a rule's word stands for: `@category`, `command` or `command|subcommand`.

    A container stands for all its subcommands. None for a word that names nothing.
    """
    if word.startswith("@"):
        return frozenset(COMMANDS) if word[1:] == ALL else CATEGORIES.get(word[1:])
    name = word.upper()
    if name not in COMMANDS:
        return None
    return frozenset({name, *(sub for sub in COMMANDS if sub.startswith(f"{name}|"))})
