"""Which node has a key: the only one, or that of its slot. One that is away keeps no other from answering."""

from __future__ import annotations

import asyncio
import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from pionkv.protocol.errors import CommandError

from ..logs import logger
from .wire import Address, Command, Login, Node

SLOTS = 16384
REDIRECTS = 4
"""A question is passed on at most so many times."""
LEARN_SECONDS = 1.0
"""Between two times of learning the slots."""
_CHANGED = frozenset({"CLUSTERDOWN", "READONLY"})
"""Refusals that tell of another order of the slots."""
_UNNAMED = "?"
"""What a cluster that gives out names says of a node that has none."""
_ENABLED = re.compile(rb"cluster_enabled:1\b")


class NoNode(OSError):
    """Nobody has the slot of a key, or no node could say who has."""


def slot_of(key: bytes) -> int:
    """The slot of a key: its hash tag counts alone, if it has one."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class Shards:
    """The nodes of a tier.

    Args:
        addresses: Nodes that are known.
        login: How connections begin.
        clustered: Whether they are of a cluster; None: the first answer tells.
    """

    def __init__(self, addresses: Sequence[Address], login: Login, *, clustered: bool | None) -> None:
        self._seeds = tuple(addresses)
        self._login = login
        self._clustered = clustered
        self._nodes = {address: Node(address, login) for address in addresses}
        self._slots: list[Address | None] = [None] * SLOTS
        self._learning: asyncio.Task[None] | None = None
        self._learned_at = float("-inf")

    def address_of(self, key: bytes) -> Address | None:
        """The node that has a key; None as long as that is not known."""
        if self._clustered is None:
            return None
        return self._slots[slot_of(key)] if self._clustered else self._seeds[0]

    async def ask(self, key: bytes, *commands: Command) -> list[object]:
        """The replies of the node that has a key, refusals among them.

        Raises:
            OSError: It cannot be reached.
            CommandError: It refuses the login.
        """
        if self.address_of(key) is None:
            await self._learn()
        address = self.address_of(key)
        if address is None:
            raise NoNode("no node has the slot of this key")
        prefix: list[Command] = []
        for _ in range(REDIRECTS):
            asked = [word for command in commands for word in (*prefix, command)]
            try:
                replies = (await self._node(address).ask(asked))[len(prefix) :: len(prefix) + 1]
            except BaseException:
                # It may have gone, and another have its slots; a deadline ends here, too.
                self._learn_later()
                raise
            moved = next((each for each in replies if _is_redirect(each)), None)
            if moved is None:
                if any(isinstance(each, CommandError) and each.code in _CHANGED for each in replies):
                    self._learn_later()
                return replies
            address = await self._follow(moved, address)
            prefix = [("ASKING",)] if moved.code == "ASK" else []
        raise NoNode("nodes point to each other")

    async def ask_each(self, keys: Sequence[bytes], commands: Sequence[Command]) -> list[object]:
        """Replies to commands about keys of one node, a command for each; those that have moved are found."""
        replies = await self._node(self.address_of(keys[0]) or self._seeds[0]).ask(commands)
        for place, (key, command) in enumerate(zip(keys, commands, strict=True)):
            if _is_redirect(replies[place]):
                replies[place] = (await self.ask(key, command))[0]
        return replies

    def close(self) -> None:
        """End all connections."""
        if self._learning is not None:
            self._learning.cancel()
        for node in self._nodes.values():
            node.close()

    def _node(self, address: Address) -> Node:
        found = self._nodes.get(address)
        if found is None:
            found = self._nodes[address] = Node(address, self._login)
        return found

    async def _follow(self, moved: CommandError, asked: Address) -> Address:
        """Where a redirection points."""
        slot, _, place = moved.message.partition(" ")
        host, _, port = place.rpartition(":")
        if host == _UNNAMED:
            await self._learn()
            known = self._slots[int(slot)]
            if moved.code != "MOVED" or known is None:
                raise NoNode(f"the node that slot {slot} is moving to has no name")
            return known
        address = Address(host or asked.host, int(port))
        if moved.code == "MOVED":
            self._slots[int(slot)] = address
            self._learn_later()
        return address

    # What it knows of the cluster

    async def _learn(self) -> None:
        """Know who has which slot. Goes on when who waits for it gives up."""
        await asyncio.shield(self._start())

    def _learn_later(self) -> None:
        if self._clustered and asyncio.get_running_loop().time() - self._learned_at > LEARN_SECONDS:
            self._start()

    def _start(self) -> asyncio.Task[None]:
        if self._learning is None or self._learning.done():
            self._learning = asyncio.get_running_loop().create_task(self._ask_around())
            self._learning.add_done_callback(_learned)
        return self._learning

    async def _ask_around(self) -> None:
        """Ask all known nodes at once; the first answer counts."""
        loop = asyncio.get_running_loop()
        self._learned_at = loop.time()
        asked = {loop.create_task(self._describe(self._node(each))) for each in self._known()}
        for task in asked:
            task.add_done_callback(_heard)
        errors: list[BaseException] = []
        try:
            while asked:
                done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if (error := task.exception()) is not None:
                        errors.append(error)
                        continue
                    self._know(task.result())
                    return
        finally:
            for task in asked:
                task.cancel()
        raise errors[0]

    def _known(self) -> list[Address]:
        return list(dict.fromkeys((*self._seeds, *(each for each in set(self._slots) if each is not None))))

    async def _describe(self, node: Node) -> dict[tuple[int, int], Address] | None:
        """Ranges of slots and who has them, as a node sees it; None when it is not of a cluster."""
        if self._clustered is None:
            info = (await node.ask([("INFO", "cluster")]))[0]
            if isinstance(info, CommandError):
                raise info
            if not isinstance(info, bytes) or not _ENABLED.search(info):
                return None
        listed = (await node.ask([("CLUSTER", "SLOTS")]))[0]
        if isinstance(listed, CommandError):
            raise listed
        return dict(_ranges(listed, node.address))

    def _know(self, ranges: dict[tuple[int, int], Address] | None) -> None:
        self._clustered = ranges is not None
        slots: list[Address | None] = [None] * SLOTS
        for (first, last), address in (ranges or {}).items():
            slots[first : last + 1] = [address] * (last + 1 - first)
        self._slots = slots
        known = {*self._seeds, *slots}
        for address in [each for each in self._nodes if each not in known]:
            self._nodes.pop(address).close()


def _learned(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger().debug("slots of the tier not learned", error=str(error))


def _heard(task: asyncio.Task[dict[tuple[int, int], Address] | None]) -> None:
    """What came of a question after another node has answered matters to nobody."""
    if not task.cancelled():
        task.exception()


def _is_redirect(reply: object) -> TypeGuard[CommandError]:
    return isinstance(reply, CommandError) and reply.code in ("MOVED", "ASK")


def _ranges(listed: object, asked: Address) -> Iterable[tuple[tuple[int, int], Address]]:
    """Of a reply to CLUSTER SLOTS. A node that does not know its own host is reached as it was asked."""
    if not isinstance(listed, list):
        raise NoNode("no list of slots")
    for first, last, primary, *_ in listed:
        yield (first, last), Address(_host(primary) or asked.host, primary[1])


def _host(node: list[Any]) -> str:
    """Of a node in that reply: its name or address, or nothing where that of the asked node is meant."""
    host, _, _, *further = node
    if host == _UNNAMED.encode():
        # The other one of name and address follows the id, as pairs of a name and a value.
        pairs = further[0] if further else []
        host = dict(zip(pairs[::2], pairs[1::2], strict=False)).get(b"ip", b"")
    return bytes(host or b"").decode()
