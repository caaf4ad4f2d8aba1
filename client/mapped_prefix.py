"""A whole prefix out of the server's files: one question, and its answer. No framework is imported."""

from __future__ import annotations

from collections.abc import Sequence

from .deadline import Deadline
from .errors import NotStored, ServerRefused
from .lane import Lane
from .mapping import NotMapped, RowMap, Target, fill_prefix
from .requests import Name
from .route import Route
from .shape import Shape


def may_map(route: Route, shape: Shape) -> bool:
    """Whether such a prefix may be taken from files: groups of rows have no place of their own."""
    return route.maps and not any(spec.details.grouped for spec in shape.specs)


def ask_where(lane: Lane, namespace: Name, deadline: Deadline) -> None:
    """Ask for the places of its rows; `take_mapped` receives the answer."""
    lane.send(("KV.PREFIX.MAP", namespace), deadline)


def take_mapped(
    lane: Lane,
    deadline: Deadline,
    shape: Shape,
    targets: Sequence[Target],
    tokens: int,
    at: int | None,
    route: Route,
) -> bool:
    """Receive the places of a prefix's rows and take the rows from there; whether that can be done.

    Args:
        lane: Where it was asked.
        deadline: Bounds the wait for the answer.
        shape: What the rows must be.
        targets: Where they go: k0 v0 k1 v1 and so on.
        tokens: How many rows.
        at: The generation that they must be of; None: any.
        route: Where what came, or why it did not, is noted.

    Raises:
        NotStored: Something else is stored.
        BadReply: The answer makes no sense.
        Unavailable: There was none.
    """
    try:
        found = RowMap.parse(lane.receive(deadline))
        if found is None:
            raise NotStored("dropped a moment ago")
        if at not in (None, found.generation):
            raise NotStored("replaced a moment ago")
        fill_prefix(found, shape.specs, targets, tokens)
    except ServerRefused as error:
        # It is elsewhere, or does not know the command: it will not learn it.
        route.maps, route.not_mapped = False, str(error)
        return False
    except NotMapped as error:
        route.not_mapped = str(error)
        return False
    route.mapped_bytes += shape.plan.bytes(tokens)
    route.used = 0
    return True
