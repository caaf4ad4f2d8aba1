"""What the command table is made of: `CommandSpec`, `Parameter`, and short ways to write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .errors import CommandError


@dataclass(frozen=True)
class Parameter:
    """One parameter of a command, in the terms of Redis' COMMAND DOCS."""

    name: str
    kind: str
    """`key`, `string`, `integer`, `double`, `pattern`, `pure-token`, `oneof` or `block`."""
    token: str = ""
    """A word that stands before it; for a `pure-token` the word itself."""
    optional: bool = False
    multiple: bool = False
    """One or more of it."""
    parts: tuple[Parameter, ...] = ()
    """The alternatives of a `oneof`, the members of a `block`."""

    @property
    def syntax(self) -> str:
        """As it is written on a command page, such as `[FMT <F16 | RAW>]`."""
        one = self._one()
        if self.multiple:
            one = f"{one} [{one} ...]"
        return f"[{one}]" if self.optional else one

    def _one(self) -> str:
        if self.kind == "pure-token":
            return self.token
        if self.kind == "block":
            inner = " ".join(part.syntax for part in self.parts)
        elif self.kind == "oneof":
            inner = " | ".join(part.syntax for part in self.parts)
            inner = inner if self.optional and not self.token else f"<{inner}>"
        else:
            inner = self.name
        return f"{self.token} {inner}" if self.token else inner

    @property
    def fewest(self) -> int:
        """The fewest words it takes."""
        if self.optional:
            return 0
        before = 1 if self.token else 0
        if self.kind == "block":
            return before + sum(part.fewest for part in self.parts)
        if self.kind == "oneof":
            return before + min(part.fewest for part in self.parts)
        return 1 if self.kind == "pure-token" else before + 1

    @property
    def fixed(self) -> bool:
        """Whether it always takes the same number of words."""
        same = self.kind != "oneof" or len({part.fewest for part in self.parts}) == 1
        return same and not self.optional and not self.multiple and all(part.fixed for part in self.parts)


@dataclass(frozen=True)
class Example:
    """What somebody types into redis-cli, and what it shows."""

    command: str
    shows: str


@dataclass(frozen=True)
class CommandSpec:
    """Everything that is known of a command before anybody sends it."""

    name: str
    """Upper case; a subcommand is `CONTAINER|NAME`."""
    summary: str
    group: str
    reply: str
    """What it answers, in words."""
    parameters: tuple[Parameter, ...] = ()
    flags: tuple[str, ...] = ()
    """Redis' command flags. `no_auth`: allowed before the password was given."""
    categories: tuple[str, ...] = ()
    """ACL categories, without the @."""
    keys: tuple[int, int, int] = (0, 0, 0)
    """Positions of the names of sessions or namespaces: first, last (negative: from the end), step."""
    complexity: str = "O(1)"
    since: str = "0.1.0"
    usage: str = ""
    """What follows `<NAME> requires: ` when arguments are missing; empty for the text that Redis has."""
    examples: tuple[Example, ...] = ()
    container: bool = False
    """Whether it has subcommands."""
    works_alone: bool = False
    """Whether a container is a command without a subcommand, too."""

    @property
    def first_key(self) -> int:
        """Position of the first key; 0 when there is none."""
        return self.keys[0]

    @property
    def last_key(self) -> int:
        """Position of the last key; negative: counted from the end."""
        return self.keys[1]

    @property
    def step(self) -> int:
        """From one key to the next."""
        return self.keys[2]

    @property
    def words(self) -> tuple[str, ...]:
        """The name as it is typed."""
        return tuple(self.name.split("|"))

    @property
    def syntax(self) -> str:
        """Name and parameters, as on a command page."""
        return " ".join((*self.words, *(parameter.syntax for parameter in self.parameters)))

    @cached_property
    def arity(self) -> int:
        """Number of words of the command line; negative: at least so many. As in Redis."""
        if self.container:
            return -1 if self.works_alone else -2
        fewest = len(self.words) + sum(parameter.fewest for parameter in self.parameters)
        return fewest if all(parameter.fixed for parameter in self.parameters) else -fewest

    def accepts(self, count: int) -> bool:
        """Whether a command line of `count` words can be right."""
        return count == self.arity if self.arity >= 0 else count >= -self.arity

    def arity_error(self) -> CommandError:
        """The error for a command line of the wrong length."""
        if self.usage:
            return CommandError("ERR", f"{self.name} requires: {self.usage}")
        return CommandError("ERR", f"wrong number of arguments for '{self.name.lower()}' command")


def key(name: str) -> Parameter:
    """The name of a session or namespace."""
    return Parameter(name, "key")


def string(name: str) -> Parameter:
    """Any bytes."""
    return Parameter(name, "string")


def integer(name: str) -> Parameter:
    """A decimal 64-bit integer."""
    return Parameter(name, "integer")


def pattern(name: str) -> Parameter:
    """A glob."""
    return Parameter(name, "pattern")


def word(token: str) -> Parameter:
    """A fixed word."""
    return Parameter(token.lower(), "pure-token", token=token)


def words(tokens: str) -> Iterator[Parameter]:
    """Several fixed words, separated by spaces."""
    return map(word, tokens.split())


def oneof(name: str, *parts: Parameter) -> Parameter:
    """One of several alternatives."""
    return Parameter(name, "oneof", parts=parts)


def block(name: str, *parts: Parameter) -> Parameter:
    """Several that go together."""
    return Parameter(name, "block", parts=parts)


def after(token: str, parameter: Parameter) -> Parameter:
    """A parameter with a word before it."""
    return replace(parameter, token=token)


def optional(parameter: Parameter) -> Parameter:
    """May be left out."""
    return replace(parameter, optional=True)


def many(parameter: Parameter) -> Parameter:
    """One or more."""
    return replace(parameter, multiple=True)
