"""CONFIG GET: the settings in force, under our names and under the names that Redis tools ask for."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pionkv.protocol import reply

from ..arguments import Argument, blob
from ..clients import Client
from ..config import SETTINGS, Settings
from ..dispatch import Handler

FIXED = {
    "databases": "1",
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "volatile-ttl",
    "timeout": "0",
}
"""What Redis tools read and what no setting of ours changes."""


def parameters(settings: Settings) -> dict[str, str]:
    """Every CONFIG parameter and its value. A password is shown as `***`."""
    found = dict(FIXED)
    for name, item in SETTINGS.items():
        text = settings.text_of(name)
        found[name.replace("_", "-")] = text
        if (redis := item.metadata["redis"]) is not None:
            found[redis] = text
    return found


def get(client: Client, args: Sequence[Argument]) -> bytes:
    """CONFIG GET pattern [pattern ...]."""
    patterns = [blob(argument).decode("utf-8", "replace").lower() for argument in args[2:]]
    known = parameters(client.service.settings)
    found = {
        name.encode(): known[name].encode()
        for name in sorted(known)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    return reply.encode(found, client.protocol)


HANDLERS: dict[str, Handler] = {"CONFIG|GET": get}
