"""What may be run, on which names and channels: the part of ACL rules that a selector has as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..glob import matches
from .categories import ALL, commands_of

EVERYTHING = b"*"
_KEY_RULE = re.compile(r"(?:%(R|W|RW|WR))?~(.+)", re.IGNORECASE | re.DOTALL)

SYNTAX = "Syntax error"
UNKNOWN = "Unknown command or category name in ACL"
KEYS_AFTER_ALL = (
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. "
    "Try 'resetkeys' to start with an empty list of patterns"
)
CHANNELS_AFTER_ALL = (
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any "
    "effect. Try 'resetchannels' to start with an empty list of channels"
)


class RuleError(ValueError):
    """A rule cannot be applied; the text says why."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Names that match `pattern` may be read, or written, or both."""

    pattern: bytes
    read: bool = True
    write: bool = True

    @property
    def text(self) -> str:
        """As it is written in a rule."""
        mode = "" if self.read and self.write else "%R" if self.read else "%W"
        return f"{mode}~{self.pattern.decode('utf-8', 'surrogateescape')}"


EVERY_KEY = KeyRule(EVERYTHING)


@dataclass(slots=True, eq=False)
class Selector:
    """Commands, names and channels that go together.

    Attributes:
        allowed: The commands that may be run.
        rules: How `allowed` came about, from `+@all` or `-@all` on.
        keys: Names of namespaces, sessions and plain keys that may be used.
        channels: Channels that may be listened to and sent to.
    """

    allowed: frozenset[str] = frozenset()
    rules: list[str] = field(default_factory=lambda: [f"-@{ALL}"])
    keys: list[KeyRule] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, rules: Iterable[str]) -> Selector:
        """A selector from its rules. Raises `RuleError`."""
        selector = cls()
        for rule in rules:
            if not selector.take(rule):
                raise RuleError(SYNTAX)
        return selector

    def take(self, rule: str) -> bool:
        """Apply a rule; False: it is none of a selector. Raises `RuleError`."""
        if (plain := _WORDS.get(rule.lower())) is not None:
            plain(self)
        elif match := _KEY_RULE.fullmatch(rule):
            self._add_keys(match[1], match[2].encode("utf-8", "surrogateescape"))
        elif rule[:1] in ("+", "-") and len(rule) > 1:
            self._command(rule[0], rule[1:].lower())
        elif rule[:1] == "&" and len(rule) > 1:
            self._add_channel(rule[1:].encode("utf-8", "surrogateescape"))
        else:
            return False
        return True

    @property
    def allows_everything(self) -> bool:
        """Whether there is nothing that may not be done."""
        everything = commands_of(f"@{ALL}")
        return self.allowed == everything and self.keys == [EVERY_KEY] and self.channels == [EVERYTHING]

    def sees(self, name: bytes, *, write: bool = False) -> bool:
        """Whether what has this name may be read, or also written."""
        fitting = [rule for rule in self.keys if matches(rule.pattern, name)]
        return any(rule.read for rule in fitting) and (not write or any(rule.write for rule in fitting))

    @property
    def sees_everything(self) -> bool:
        """Whether everything may be read and written whatever its name."""
        return EVERY_KEY in self.keys

    def hears(self, channel: bytes, *, pattern: bool = False) -> bool:
        """Whether a channel may be used; a pattern of channels only if a rule says exactly the same."""
        if pattern:
            return channel in self.channels or EVERYTHING in self.channels
        return any(matches(rule, channel) for rule in self.channels)

    @property
    def commands_text(self) -> str:
        """The rules for commands, as they are written."""
        return " ".join(self.rules)

    @property
    def keys_text(self) -> str:
        """The rules for names, as they are written."""
        return " ".join(rule.text for rule in self.keys)

    @property
    def channels_text(self) -> str:
        """The rules for channels, as they are written."""
        return " ".join(f"&{rule.decode('utf-8', 'surrogateescape')}" for rule in self.channels)

    @property
    def line(self) -> str:
        """All of it, as rules that make it again."""
        names = (self.keys_text or "resetkeys", self.channels_text or "resetchannels")
        return " ".join((*names, self.commands_text))

    def _add_keys(self, mode: str | None, pattern: bytes) -> None:
        if EVERY_KEY in self.keys:
            if pattern == EVERYTHING:
                return
            raise RuleError(KEYS_AFTER_ALL)
        letters = (mode or "RW").upper()
        rule = KeyRule(pattern, "R" in letters, "W" in letters)
        if rule == EVERY_KEY:
            self.keys = []
        if rule not in self.keys:
            self.keys.append(rule)

    def _add_channel(self, name: bytes) -> None:
        if EVERYTHING in self.channels and name != EVERYTHING:
            raise RuleError(CHANNELS_AFTER_ALL)
        if name == EVERYTHING:
            self.channels = []
        if name not in self.channels:
            self.channels.append(name)

    def _command(self, sign: str, word: str) -> None:
        meant = commands_of(word)
        if meant is None:
            raise RuleError(UNKNOWN)
        self.allowed = self.allowed | meant if sign == "+" else self.allowed - meant
        if word == f"@{ALL}":
            self.rules = []
        self.rules = [rule for rule in self.rules if rule[1:] != word] + [sign + word]

    def _forget_keys(self) -> None:
        self.keys = []

    def _forget_channels(self) -> None:
        self.channels = []


_WORDS: dict[str, Callable[[Selector], None]] = {
    "allkeys": lambda selector: selector._add_keys(None, EVERYTHING),
    "resetkeys": Selector._forget_keys,
    "allchannels": lambda selector: selector._add_channel(EVERYTHING),
    "resetchannels": Selector._forget_channels,
    "allcommands": lambda selector: selector._command("+", f"@{ALL}"),
    "nocommands": lambda selector: selector._command("-", f"@{ALL}"),
}
