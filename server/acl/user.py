"""One user, and the rules of ACL SETUSER that change it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from ..glob import matches
from .categories import ALL, commands_of

DEFAULT = "default"
EVERYTHING = b"*"
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY_RULE = re.compile(r"(?:%(R|W|RW|WR))?~(.+)", re.IGNORECASE | re.DOTALL)

SYNTAX = "Syntax error"
UNKNOWN = "Unknown command or category name in ACL"
NO_SUCH_PASSWORD = "The password you are trying to remove from the user does not exist"
BAD_HASH = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
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
class User:
    """Who may connect, run what, on which names.

    Attributes:
        name: Its name.
        enabled: Whether it may log in.
        open: Whether any password is right (`nopass`).
        hashes: SHA-256 of each password, hex.
        allowed: The commands it may run.
        rules: How `allowed` came about, from `+@all` or `-@all` on.
        keys: Names of namespaces, sessions and plain keys that it may use.
        channels: Channels it may listen to and send to.
    """

    name: str
    enabled: bool = False
    open: bool = False
    hashes: list[str] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()
    rules: list[str] = field(default_factory=lambda: [f"-@{ALL}"])
    keys: list[KeyRule] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)
    restricted: bool = True
    """Whether there is anything that it may not do: whoever may do everything costs no check."""

    def apply(self, rules: Iterable[str]) -> None:
        """Change it by rules, all of them or, when one is wrong, none.

        Raises:
            RuleError: One is wrong; the text says which, and why.
        """
        changed = deepcopy(self)
        for rule in rules:
            try:
                changed._apply(rule)
            except RuleError as error:
                shown = "(secret)" if rule[:1] in "><#!" else rule
                raise RuleError(f"Error in ACL SETUSER modifier '{shown}': {error}") from None
        self.become(changed)

    def become(self, other: User) -> None:
        """Take over everything of another user; those connected as this one are bound by it at once."""
        for name in ("enabled", "open", "hashes", "allowed", "rules", "keys", "channels"):
            setattr(self, name, getattr(other, name))
        everything = commands_of(f"@{ALL}")
        self.restricted = not (
            self.allowed == everything and self.keys == [EVERY_KEY] and self.channels == [EVERYTHING]
        )

    def accepts(self, password: bytes) -> bool:
        """Whether somebody who gives this password is this user."""
        given = hash_of(password)
        right = [hmac.compare_digest(given, known) for known in self.hashes]
        return self.enabled and (self.open or any(right))

    def sees(self, name: bytes, *, write: bool = False) -> bool:
        """Whether it may read, or also write, what has this name."""
        fitting = [rule for rule in self.keys if matches(rule.pattern, name)]
        return any(rule.read for rule in fitting) and (not write or any(rule.write for rule in fitting))

    @property
    def needs_no_password(self) -> bool:
        """Whether whoever connects is this user."""
        return self.enabled and self.open

    @property
    def sees_everything(self) -> bool:
        """Whether it may read and write whatever its name."""
        return EVERY_KEY in self.keys

    def hears(self, channel: bytes, *, pattern: bool = False) -> bool:
        """Whether it may use a channel; a pattern of channels only if a rule says exactly the same."""
        if pattern:
            return channel in self.channels or EVERYTHING in self.channels
        return any(matches(rule, channel) for rule in self.channels)

    @property
    def flags(self) -> list[str]:
        """As ACL GETUSER lists them."""
        return ["on" if self.enabled else "off", *(["nopass"] if self.open else [])]

    @property
    def keys_text(self) -> str:
        """The rules for names, as they are written."""
        return " ".join(rule.text for rule in self.keys)

    @property
    def channels_text(self) -> str:
        """The rules for channels, as they are written."""
        return " ".join(f"&{rule.decode('utf-8', 'surrogateescape')}" for rule in self.channels)

    def line(self) -> str:
        """Everything in one line, as ACL LIST shows it and as the file of users has it."""
        secrets = [f"#{known}" for known in self.hashes]
        words = [*self.flags, *secrets, self.keys_text or "resetkeys", self.channels_text or "resetchannels"]
        return " ".join(("user", self.name, *words, *self.rules))

    def _apply(self, rule: str) -> None:
        plain = _WORDS.get(rule.lower())
        if plain is not None:
            plain(self)
            return
        if match := _KEY_RULE.fullmatch(rule):
            self._add_keys(match[1], match[2].encode("utf-8", "surrogateescape"))
            return
        change = _SIGNS.get(rule[:1])
        if change is None or len(rule) < 2:
            raise RuleError(SYNTAX)
        change(self, rule[1:])

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

    def _add_channel(self, pattern: str) -> None:
        name = pattern.encode("utf-8", "surrogateescape")
        if EVERYTHING in self.channels and name != EVERYTHING:
            raise RuleError(CHANNELS_AFTER_ALL)
        if name == EVERYTHING:
            self.channels = []
        if name not in self.channels:
            self.channels.append(name)

    def _allow(self, word: str) -> None:
        self._command("+", word)

    def _forbid(self, word: str) -> None:
        self._command("-", word)

    def _command(self, sign: str, word: str) -> None:
        word = word.lower()
        meant = commands_of(word)
        if meant is None:
            raise RuleError(UNKNOWN)
        self.allowed = self.allowed | meant if sign == "+" else self.allowed - meant
        if word == f"@{ALL}":
            self.rules = []
        self.rules = [rule for rule in self.rules if rule[1:] != word] + [sign + word]

    def _add_password(self, password: str) -> None:
        self._add_hash(hash_of(password.encode("utf-8", "surrogateescape")))

    def _remove_password(self, password: str) -> None:
        self._remove_hash(hash_of(password.encode("utf-8", "surrogateescape")))

    def _add_hash(self, text: str) -> None:
        if not _HASH.fullmatch(text):
            raise RuleError(BAD_HASH)
        self.open = False
        if text not in self.hashes:
            self.hashes.append(text)

    def _remove_hash(self, text: str) -> None:
        if text not in self.hashes:
            raise RuleError(NO_SUCH_PASSWORD)
        self.hashes.remove(text)

    def _set_enabled(self, value: bool) -> None:
        self.enabled = value

    def _forget_passwords(self, *, open: bool) -> None:
        self.hashes, self.open = [], open

    def _forget_keys(self) -> None:
        self.keys = []

    def _forget_channels(self) -> None:
        self.channels = []

    def _reset(self) -> None:
        self.become(User(self.name))


_WORDS: dict[str, Callable[[User], None]] = {
    "on": lambda user: user._set_enabled(True),
    "off": lambda user: user._set_enabled(False),
    "nopass": lambda user: user._forget_passwords(open=True),
    "resetpass": lambda user: user._forget_passwords(open=False),
    "allkeys": lambda user: user._add_keys(None, EVERYTHING),
    "resetkeys": User._forget_keys,
    "allchannels": lambda user: user._add_channel("*"),
    "resetchannels": User._forget_channels,
    "allcommands": lambda user: user._allow(f"@{ALL}"),
    "nocommands": lambda user: user._forbid(f"@{ALL}"),
    "reset": User._reset,
    "sanitize-payload": lambda user: None,
    "skip-sanitize-payload": lambda user: None,
}
"""Rules of one word. The last two are about a command that this server does not have."""

_SIGNS: dict[str, Callable[[User, str], None]] = {
    "+": User._allow,
    "-": User._forbid,
    ">": User._add_password,
    "<": User._remove_password,
    "#": User._add_hash,
    "!": User._remove_hash,
    "&": User._add_channel,
}


def hash_of(password: bytes) -> str:
    """What is kept of a password."""
    return hashlib.sha256(password).hexdigest()
