"""From the settings to a tier."""

from __future__ import annotations

import socket
from collections import Counter

from pionkv.storage import Store

from ..config import Settings
from ..place import Place
from .context import Context
from .guard import Guard
from .interface import Tier
from .link import TierLink
from .redis_tier import RedisTier

OBJECTS = ("s3://", "file://")


def open_tier(settings: Settings, store: Store, place: Place, counts: Counter[str]) -> TierLink | None:
    """The tier that the settings name; None without one. Nothing is connected before it is asked.

    Args:
        settings: The settings.
        store: The store.
        place: Which worker this is.
        counts: Where the tier counts.
    """
    if settings.tier is None:
        return None
    deadline = settings.tier_deadline / 1000
    tier = make_tier(settings, deadline)
    context = Context(
        store,
        Guard(tier, deadline, counts),
        counts,
        f"{socket.gethostname()}:{settings.port}",
    )
    owner = f"{place.run_id}:{place.number}:{place.lives}".encode()
    return TierLink(
        tier,
        context,
        check=settings.tier_check / 1000,
        queue_bytes=settings.tier_queue_bytes,
        owner=owner if place.workers > 1 else None,
        sweeps=place.number == 0,
    )


def make_tier(settings: Settings, deadline: float) -> Tier:
    """The engine for an address. Raises `OSError` when it lacks something here."""
    assert settings.tier is not None
    if settings.tier.startswith(OBJECTS):
        # Loaded only where it is used.
        try:
            from .objects import ObjectTier
        except ImportError as error:
            raise OSError("a tier of objects needs obstore: pip install 'pionkv[s3]'") from error
        return ObjectTier(settings.tier, settings.tier_prefix, deadline)
    try:
        return RedisTier(settings.tier, settings.tier_prefix)
    except ValueError as error:
        raise OSError(str(error)) from error
