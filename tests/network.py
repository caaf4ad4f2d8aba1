"""Hosts of a network of their own: network namespaces on one bridge, whose links can be cut and mended.

A link that is cut lets nothing through and tells nobody: no reset, no refusal. Nothing leaves the namespaces;
whoever is outside reaches the programs in them by Unix sockets.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

NET = "198.18.0"
"""Of the addresses that are set aside for tests of networks."""
_serial = itertools.count()


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        number: Tells it from the others of its network.
        inside: What a command line begins with that is to run there.
        folder: A folder with a short name, for Unix sockets.
    """

    number: int
    inside: tuple[str, ...]
    folder: Path

    @property
    def address(self) -> str:
        """Its address in the network."""
        return f"{NET}.{self.number}"

    def socket(self, name: str) -> str:
        """The path of a Unix socket of a program on it."""
        return str(self.folder / f"{name}{self.number}")


class Network:
    """Some hosts. Raises `subprocess.CalledProcessError` where namespaces may not be made."""

    def __init__(self, hosts: int) -> None:
        self._tag = f"pion{os.getpid()}x{next(_serial)}"
        self._hub = f"{self._tag}-hub"
        self._made: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="pn"))
        self.hosts: list[Host] = []
        try:
            self._add(self._hub)
            self._ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
            self._ip("-n", self._hub, "link", "set", "bridge", "up")
            for number in range(1, hosts + 1):
                self._join(number)
        except BaseException:
            self.close()
            raise

    def cut(self, host: Host) -> None:
        """Nothing reaches this host, and nothing comes from it."""
        self._ip("-n", self._hub, "link", "set", f"v{host.number}", "down")

    def mend(self, host: Host) -> None:
        """Its link is there again."""
        self._ip("-n", self._hub, "link", "set", f"v{host.number}", "up")

    def close(self) -> None:
        """Nothing is left of it."""
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, number: int) -> None:
        name, link = f"{self._tag}-{number}", f"v{number}"
        self._add(name)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
        self._ip("-n", self._hub, "link", "add", link, *peer)
        self._ip("-n", self._hub, "link", "set", link, "master", "bridge", "up")
        host = Host(number, ("ip", "netns", "exec", name), self._folder)
        self._ip("-n", name, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for each in ("lo", "eth0"):
            self._ip("-n", name, "link", "set", each, "up")
        self.hosts.append(host)

    def _add(self, name: str) -> None:
        self._ip("netns", "add", name)
        self._made.append(name)

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


def may_be_made() -> bool:
    """Whether this machine lets us make namespaces and links."""
    try:
        Network(1).close()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
