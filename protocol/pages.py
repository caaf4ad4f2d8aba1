"""The command page of the documentation, written from the command table."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from .spec import CommandSpec

GROUPS = {
    "vstore": "Sessions of rows",
    "prefix": "Prefixes",
    "state": "State blobs",
    "attention": "Attention",
    "generic": "Plain keys",
    "string": "Strings",
    "hash": "Hashes",
    "sorted-set": "Sorted sets",
    "transactions": "Transactions",
    "connection": "Connection",
    "server": "Server",
    "pubsub": "Publish and subscribe",
}
"""Groups in the order of the page, with their headings; others follow under their own names."""

INTRODUCTION = """# Commands

Made from the command table by `make docs`; `COMMAND DOCS` says the same to a client, and `HELP` in
`redis-cli`. What a command may be given at most is in [limits](limits.md).
"""


def command_page(specs: Iterable[CommandSpec]) -> str:
    """All commands as one Markdown page: by group, and in a group by name. Containers have no entry."""
    order = list(GROUPS)

    def place(spec: CommandSpec) -> tuple[int, str, str]:
        known = spec.group in GROUPS
        return order.index(spec.group) if known else len(order), spec.group, spec.name

    shown = sorted((spec for spec in specs if not spec.container or spec.works_alone), key=place)
    parts = [INTRODUCTION]
    for group, members in groupby(shown, key=lambda spec: spec.group):
        parts.append(f"## {GROUPS.get(group, group.capitalize())}\n")
        parts += [command_section(spec) for spec in members]
    return "\n".join(parts)


def command_section(spec: CommandSpec) -> str:
    """The entry of one command."""
    lines = [
        f"### {' '.join(spec.words)}",
        "",
        "```",
        spec.syntax,
        "```",
        "",
        spec.summary,
        "",
        f"**Reply:** {spec.reply}",
        "",
        f"Cost {spec.complexity} · since {spec.since} · {_names(spec)}",
        "",
    ]
    if spec.examples:
        lines += ["```", *(f"> {example.command}\n{example.shows}" for example in spec.examples), "```", ""]
    return "\n".join(lines)


def _names(spec: CommandSpec) -> str:
    return " ".join(f"@{category}" for category in spec.categories) or "no category"
