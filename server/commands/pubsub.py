"""SUBSCRIBE and its like, PUBLISH, PUBSUB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pionkv.protocol import reply

from ..arguments import Argument, blob
from ..clients import Client
from ..dispatch import Handler
from ..glob import matches
from ..pubsub import push
from ..questions import CHANNELS, PATTERNS
from .command import help


def _subscribe(kind: bytes, *, pattern: bool) -> Handler:
    async def run(client: Client, args: Sequence[Argument]) -> bytes:
        answers = []
        await client.service.announce(client.service.channels)
        for name in map(blob, args[1:]):
            client.service.channels.listen(client, name, pattern=pattern)
            answers.append(push(client, kind, client.user.shown(name), client.listens_to))
        return b"".join(answers)

    return run


def _unsubscribe(kind: bytes, *, pattern: bool) -> Handler:
    def run(client: Client, args: Sequence[Argument]) -> bytes:
        names = [*map(blob, args[1:])] or [*(client.patterns if pattern else client.channels)]
        answers = []
        for name in names:
            client.service.channels.leave(client, name, pattern=pattern)
            answers.append(push(client, kind, client.user.shown(name), client.listens_to))
        return b"".join(answers) or push(client, kind, None, client.listens_to)

    return run


def publish(client: Client, args: Sequence[Argument]) -> bytes:
    """PUBLISH channel message."""
    return reply.integer(client.service.channels.publish(blob(args[1]), blob(args[2])))


async def _listeners(client: Client) -> Counter[bytes]:
    """How many listen to each channel, in all workers."""
    found: Counter[bytes] = Counter()
    for answer in await client.service.asking.all(CHANNELS):
        found.update(dict(answer))
    return found


async def channels(client: Client, args: Sequence[Argument]) -> bytes:
    """PUBSUB CHANNELS [pattern]."""
    pattern = blob(args[2]) if len(args) > 2 else b"*"
    user = client.user
    known = (name for name in await _listeners(client) if name.startswith(user.tag))
    found = [name for name in map(user.shown, known) if matches(pattern, name)]
    return reply.encode(found, client.protocol)


async def count_listeners(client: Client, args: Sequence[Argument]) -> bytes:
    """PUBSUB NUMSUB [channel ...]."""
    known = await _listeners(client)
    shown = client.user.shown
    counts = [item for name in map(blob, args[2:]) for item in (shown(name), known[name])]
    return reply.encode(counts, client.protocol)


async def count_patterns(client: Client, args: Sequence[Argument]) -> bytes:
    """PUBSUB NUMPAT."""
    tag = client.user.tag
    patterns = {name for answer in await client.service.asking.all(PATTERNS) for name in answer}
    return reply.integer(sum(name.startswith(tag) for name in patterns))


HANDLERS: dict[str, Handler] = {
    "PSUBSCRIBE": _subscribe(b"psubscribe", pattern=True),
    "PUBLISH": publish,
    "PUBSUB|CHANNELS": channels,
    "PUBSUB|HELP": help,
    "PUBSUB|NUMPAT": count_patterns,
    "PUBSUB|NUMSUB": count_listeners,
    "PUNSUBSCRIBE": _unsubscribe(b"punsubscribe", pattern=True),
    "SUBSCRIBE": _subscribe(b"subscribe", pattern=False),
    "UNSUBSCRIBE": _unsubscribe(b"unsubscribe", pattern=False),
}
