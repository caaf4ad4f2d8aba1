"""One user, and the rules of ACL SETUSER that change it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields

from pionkv.storage import LONGEST_TENANT, tag_of

from ..config import parse_size
from .selector import SYNTAX, RuleError, Selector

DEFAULT = "default"
MOST_CONNECTIONS = 1_000_000
_HASH = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(rf"[A-Za-z0-9_.-]{{0,{LONGEST_TENANT}}}")

NO_SUCH_PASSWORD = "The password you are trying to remove from the user does not exist"
BAD_HASH = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
BAD_TENANT = f"a tenant's name has at most {LONGEST_TENANT} letters, digits, '_', '-' and '.'"
NEEDS_TENANT = "max-bytes limits what a tenant has stored: it needs tenant=<name> as well"
UNMATCHED = "Unmatched parenthesis in acl selector starting at '{}'."


@dataclass(slots=True, eq=False)
class User(Selector):
    """Who may connect, run what, on which names.

    What it may do is what its own rules allow, or one of its selectors alone.

    Attributes:
        name: Its name.
        enabled: Whether it may log in.
        open: Whether any password is right (`nopass`).
        hashes: SHA-256 of each password, hex.
        selectors: Further rules.
        tenant: Whose names its names are; empty: they are names as they are stored.
        max_bytes: What its tenant may have stored; 0: no limit.
        max_connections: How many connections it may have; 0: no limit.
        tag: What stands before its names where they are stored.
    """

    name: str = ""
    enabled: bool = False
    open: bool = False
    hashes: list[str] = field(default_factory=list)
    selectors: list[Selector] = field(default_factory=list)
    tenant: str = ""
    max_bytes: int = 0
    max_connections: int = 0
    tag: bytes = b""
    restricted: bool = True
    """Whether there is anything that it may not do: whoever may do everything costs no check."""

    def apply(self, rules: Iterable[str]) -> None:
        """Change it by rules, all of them or, when one is wrong, none.

        Raises:
            RuleError: One is wrong; the text says which, and why.
        """
        changed = deepcopy(self)
        for rule in _whole(rules):
            try:
                changed._apply(rule)
            except RuleError as error:
                shown = "(secret)" if rule[:1] in "><#!" else rule
                raise RuleError(f"Error in ACL SETUSER modifier '{shown}': {error}") from None
        if changed.max_bytes and not changed.tenant:
            raise RuleError(f"Error in ACL SETUSER modifier 'max-bytes={changed.max_bytes}': {NEEDS_TENANT}")
        self.become(changed)

    def become(self, other: User) -> None:
        """Take over everything of another user; those connected as this one are bound by it at once."""
        for item in fields(User):
            if item.name != "name":
                setattr(self, item.name, getattr(other, item.name))
        self.tag = tag_of(self.tenant.encode()) if self.tenant else b""
        self.restricted = bool(self.tenant) or not self.allows_everything

    def accepts(self, password: bytes) -> bool:
        """Whether somebody who gives this password is this user."""
        given = hash_of(password)
        right = [hmac.compare_digest(given, known) for known in self.hashes]
        return self.enabled and (self.open or any(right))

    @property
    def all_rules(self) -> list[Selector]:
        """Its own rules and its selectors; each of them alone may allow something."""
        return [self, *self.selectors]

    def may_run(self, command: str) -> bool:
        """Whether it may run a command at all."""
        return any(command in part.allowed for part in self.all_rules)

    def lists(self, stored: bytes, *, write: bool = False) -> bool:
        """Whether it may know of what is stored under this name, or also change it.

        Listings leave out everything else.
        """
        if not stored.startswith(self.tag):
            return False
        name = stored[len(self.tag) :]
        return any(part.sees(name, write=write) for part in self.all_rules)

    def shown(self, stored: bytes) -> bytes:
        """The user's own name of what it may know of."""
        return stored.removeprefix(self.tag)

    @property
    def is_operator(self) -> bool:
        """Whether it may read and write whatever is stored."""
        return self.sees_everything and not self.tenant

    @property
    def needs_no_password(self) -> bool:
        """Whether whoever connects is this user."""
        return self.enabled and self.open

    @property
    def flags(self) -> list[str]:
        """As ACL GETUSER lists them."""
        return ["on" if self.enabled else "off", *(["nopass"] if self.open else [])]

    def full_line(self) -> str:
        """Everything in one line, as ACL LIST shows it and as the file of users has it."""
        secrets = [f"#{known}" for known in self.hashes]
        limits = [f"tenant={self.tenant}"] if self.tenant else []
        limits += [f"max-bytes={self.max_bytes}"] if self.max_bytes else []
        limits += [f"max-connections={self.max_connections}"] if self.max_connections else []
        others = [f"({selector.line})" for selector in self.selectors]
        return " ".join(("user", self.name, *self.flags, *secrets, *limits, self.line, *others))

    def _apply(self, rule: str) -> None:
        plain, (setting, equals, value) = _WORDS.get(rule.lower()), rule.partition("=")
        if plain is not None:
            plain(self)
        elif self.take(rule):
            pass
        elif rule.startswith("("):
            self.selectors = [*self.selectors, Selector.of(rule[1:-1].split())]
        elif rule[:1] in _SECRETS and len(rule) > 1:
            _SECRETS[rule[0]](self, rule[1:])
        elif equals and setting.lower() in _SETTINGS:
            _SETTINGS[setting.lower()](self, value)
        else:
            raise RuleError(SYNTAX)

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

    def _set_tenant(self, value: str) -> None:
        if not _TENANT.fullmatch(value):
            raise RuleError(BAD_TENANT)
        self.tenant = value

    def _set_max_bytes(self, value: str) -> None:
        try:
            self.max_bytes = parse_size(value)
        except ValueError as error:
            raise RuleError(str(error)) from None

    def _set_max_connections(self, value: str) -> None:
        if not value.isdecimal() or int(value) > MOST_CONNECTIONS:
            raise RuleError(f"'{value}' is not a number of connections (0..{MOST_CONNECTIONS}, 0: no limit)")
        self.max_connections = int(value)

    def _forget_selectors(self) -> None:
        self.selectors = []

    def _reset(self) -> None:
        self.become(User(name=self.name))


_WORDS: dict[str, Callable[[User], None]] = {
    "on": lambda user: user._set_enabled(True),
    "off": lambda user: user._set_enabled(False),
    "nopass": lambda user: user._forget_passwords(open=True),
    "resetpass": lambda user: user._forget_passwords(open=False),
    "clearselectors": User._forget_selectors,
    "reset": User._reset,
    "sanitize-payload": lambda user: None,
    "skip-sanitize-payload": lambda user: None,
}
"""Rules of one word. The last two are about a command that this server does not have."""

_SECRETS: dict[str, Callable[[User, str], None]] = {
    ">": User._add_password,
    "<": User._remove_password,
    "#": User._add_hash,
    "!": User._remove_hash,
}

_SETTINGS: dict[str, Callable[[User, str], None]] = {
    "tenant": User._set_tenant,
    "max-bytes": User._set_max_bytes,
    "max-connections": User._set_max_connections,
}


def _whole(rules: Iterable[str]) -> Iterator[str]:
    """The rules, those of a selector in one piece: it may have been given word by word."""
    parts: list[str] = []
    for rule in rules:
        if parts or rule.startswith("("):
            parts.append(rule)
            if rule.endswith(")"):
                yield " ".join(parts)
                parts = []
        else:
            yield rule
    if parts:
        raise RuleError(UNMATCHED.format(parts[0]))


def hash_of(password: bytes) -> str:
    """What is kept of a password."""
    return hashlib.sha256(password).hexdigest()
