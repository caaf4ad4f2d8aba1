"""The page of the client's interface of the documentation, written from its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pionkv.client as client

FIRST = ("PromptStore", "PionPromptCache", "StoreClient")
INTRODUCTION = """# The client's interface

Made from the docstrings of `pionkv.client` by `make docs`; [the client](client.md) says how it is used.
"""
WIDTH = 100

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Warns|Example|Examples):{1,2}$")
_ANNOTATION = re.compile(r"(: |-> )'([^']*)'")
_ITEM = re.compile(r"^([\w*, ]+): (.*)$", re.DOTALL)


def client_page() -> str:
    """Every public name as one Markdown page, those first that a generation loop needs."""
    names = [*FIRST, *(name for name in client.__all__ if name not in FIRST)]
    return "\n".join([INTRODUCTION, *(_class(name, getattr(client, name)) for name in names)])


def _class(name: str, kind: type) -> str:
    parts = [f"## {name}\n", *([] if issubclass(kind, Exception) else [_signature(name, kind)]), _text(kind)]
    if inspect.isfunction(made := kind.__init__) and made.__doc__:  # type: ignore[misc]
        parts.append(_text(made))
    for member, value in _members(kind).items():
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if member.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, property):
            parts += [f"### {name}.{member}\n", _text(value)]
        elif inspect.isfunction(plain):
            parts += [f"### {name}.{member}()\n", _signature(member, getattr(kind, member)), _text(plain)]
    return "\n".join(parts)


def _members(kind: type) -> dict[str, Any]:
    """Its own, and those of bases that have no place of their own on the page."""
    hidden = [base for base in kind.__mro__[1:] if base.__name__ not in client.__all__]
    inherited = [each for each in hidden if each.__module__.startswith(client.__name__)]
    members: dict[str, Any] = {}
    for each in (kind, *inherited):
        members = {**members, **{name: value for name, value in vars(each).items() if name not in members}}
    return members


def _signature(name: str, of: Any) -> str:
    """How it is called, on one line or with a line for each parameter."""
    signature = inspect.signature(of)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    text = str(signature.replace(parameters=kept))
    if len(name + text) > WIDTH:
        shown = [str(one) for one in kept]
        named = [at for at, one in enumerate(kept) if one.kind is one.KEYWORD_ONLY]
        if named and not any(one.kind is one.VAR_POSITIONAL for one in kept):
            shown.insert(named[0], "*")
        text = "(\n    " + ",\n    ".join(shown) + ",\n)" + text.rpartition(")")[2]
    plain = _ANNOTATION.sub(r"\1\2", text)
    return f"```python\n{name}{plain}\n```\n"


def _text(of: Any) -> str:
    """A docstring as Markdown: its sections become lists, its examples blocks."""
    lines = (inspect.getdoc(of) or "").splitlines()
    return "\n".join(_sections(lines)) + "\n"


def _sections(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        found = _SECTION.match(lines[at])
        if found is None:
            yield lines[at]
            at += 1
            continue
        end = at + 1
        while end < len(lines) and (not lines[end] or lines[end].startswith("    ")):
            end += 1
        body = dedent("\n".join(lines[at + 1 : end])).strip("\n")
        yield f"*{found[1]}*\n"
        yield f"```python\n{body}\n```\n" if found[1].startswith("Example") else _items(body)
        at = end


def _items(body: str) -> str:
    items = [" ".join(item.split()) for item in re.split(r"\n(?! )", body)]
    shown = (_ITEM.sub(r"`\1`: \2", item) for item in items)
    return "".join(f"- {item}\n" for item in shown if item)
