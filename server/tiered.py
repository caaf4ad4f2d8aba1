"""Commands that use a prefix of the tier as if it were here: it is brought first, or nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pionkv.protocol.table import COMMANDS, CommandSpec

from .acl.permit import names
from .arguments import Argument, integer
from .attention.sources import stored_names
from .clients import Client
from .dispatch import Handler, Slow

if TYPE_CHECKING:
    from .tier.link import TierLink

CHECKED = frozenset({"KV.PREFIX.LOOKUP", "KV.PREFIX.MAP", "KV.PREFIX.ADMIT", "ATTEND.PREFIX.LOOKUP"})
"""Commands with which a restore begins: they see to it that what is here is not older than the tier's."""
BROUGHT = CHECKED | {
    "KV.PREFIX.BEGIN",
    "KV.PREFIX.BLOCKS",
    "KV.PREFIX.EXPIRE",
    "KV.PREFIX.FORK",
    "KV.PREFIX.MANIFEST",
    "KV.PREFIX.MEMBERSHIP",
    "KV.PREFIX.OWNER",
    "KV.PREFIX.PIN",
    "KV.PREFIX.TRUNCATE",
    "KV.PREFIX.TTL",
    "KV.PREFIX.VERIFY",
    "KV.PREFIX.WARM",
    "SSM.PREFIX.FETCH",
    "V.EXPORT",
    "V.FETCH",
    "V.FETCHALL",
    "V.MAP",
}
CHANGES = frozenset(
    {"KV.PREFIX.EXPIRE", "KV.PREFIX.MANIFEST", "KV.PREFIX.REGISTER", "SSM.PREFIX.DROP", "SSM.PREFIX.STORE"}
)
"""Commands that change a prefix without a notice."""
MILLISECONDS = 1000
ATTENTION = "attention"


def tiered(name: str, handler: Handler) -> Handler:
    """The handler of a command, with what the tier has to do before and after it."""
    if name not in BROUGHT | CHANGES:
        return handler
    spec, check = COMMANDS[name], name in CHECKED

    def run(client: Client, args: Sequence[Argument]) -> bytes | Slow:
        link = client.service.tier
        if link is None:
            return handler(client, args)
        used = _used(client, spec, args)
        wanted = [each for each in used if link.wants(each, check=check)] if name in BROUGHT else []
        if not wanted and name not in CHANGES:
            return handler(client, args)
        return _run(link, wanted, used if name in CHANGES else (), handler, client, args)

    return run


def _used(client: Client, spec: CommandSpec, args: Sequence[Argument]) -> list[bytes]:
    """The prefixes that a command line is about, each once."""
    found = dict.fromkeys(names(spec, args))
    if spec.group == ATTENTION:
        found = dict.fromkeys(name for sid in found for name in stored_names(client.user, sid))
    return list(found)


async def _run(
    link: TierLink,
    wanted: Sequence[bytes],
    changed: Sequence[bytes],
    handler: Handler,
    client: Client,
    args: Sequence[Argument],
) -> bytes | None:
    if wanted:
        hint = _prefill_us(args)
        await asyncio.gather(*(link.bring(name, hint) for name in wanted))
    result = handler(client, args)
    answer = result if isinstance(result, bytes) else await result
    for name in changed:
        link.changed(name, whole=False)
    return answer


def _prefill_us(args: Sequence[Argument]) -> int | None:
    """What a LOOKUP says that computing the rows takes; the command itself checks it."""
    for word, value in zip(args[2:], args[3:], strict=False):
        if isinstance(word, bytes) and word.upper() == b"PREFILL_MS":
            try:
                return integer(value) * MILLISECONDS
            except Exception:
                return None
    return None
