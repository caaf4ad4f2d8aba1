"""The longest stored prefix of some tokens: find it, restore it, and say why there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import requests
from .deadline import Clock, Deadline
from .digest import differences
from .errors import BadReply, NotStored
from .lane import Lane
from .pace import Pace, Watch
from .requests import Found
from .route import Route

if TYPE_CHECKING:
    from .shape import Shape

BEGINNING = 256
"""Tokens that prompts have to have in common for one process to wait for another's."""
MOST_BEGINNINGS = 64
MOST_MODELS = 32
"""Other models that are asked about when this one has nothing stored."""


def name_of(model: str, ids: Sequence[int]) -> str:
    """The namespace of a prefix that nobody named: it stands for the model and all tokens."""
    return names_of(model, ids, len(ids))[-1][0]


def names_of(model: str, ids: Sequence[int], known: int) -> list[tuple[str, int]]:
    """Names of beginnings that are longer than `known` tokens, and how many more tokens each has.

    They end where any other process's do that has the same tokens: after multiples of `BEGINNING` tokens,
    and at the end. The last one is the name of the whole.
    """
    tokens = np.asarray(ids, "<u4").tobytes()
    hashed, at = hashlib.sha256(model.encode() + b"|"), 0
    first = (known // BEGINNING + 1) * BEGINNING
    ends = range(first, len(ids), BEGINNING)[: MOST_BEGINNINGS - 1]
    names = []
    for end in (*ends, len(ids)):
        hashed.update(tokens[at * 4 : end * 4])
        at = end
        names.append(("tokens:" + hashed.hexdigest()[:32], end - known))
    return names


def find(lane: Lane, deadline: Deadline, model: str, ids: Sequence[int], *, whole: bool) -> Found | None:
    """The longest stored prefix of the tokens, under a model."""
    lane.send(requests.match(ids, model, whole=whole), deadline)
    return Found.parse(lane.receive(deadline), len(ids))


class Declined(NotStored):
    """It is stored, but prefilling is faster; the text says by how much.

    Attributes:
        found: What is stored.
    """

    def __init__(self, found: Found, why: str) -> None:
        super().__init__(why)
        self.found = found


def find_worth(
    lane: Lane,
    deadline: Deadline,
    model: str,
    shape: Shape,
    ids: Sequence[int],
    pace: Pace | None,
    beyond: int,
) -> Found:
    """What is stored of the tokens, if it is worth fetching. Arguments and errors as `restore_longest`."""
    found = find(lane, deadline, model, ids, whole=shape.whole)
    if found is None:
        raise NotStored(why_not(lane, deadline, model, ids))
    if found.tokens <= beyond:
        raise NotStored(f"{found.tokens} of {len(ids)} tokens are stored, more than {beyond} were asked")
    objection = None if pace is None else pace.objection(found.tokens, shape.plan.bytes(found.tokens))
    if objection is not None:
        raise Declined(found, objection)
    return found


def restore_longest(
    lane: Lane,
    deadline: Deadline,
    model: str,
    shape: Shape,
    ids: Sequence[int],
    route: Route,
    pace: Pace | None,
    clock: Clock,
    beyond: int = 0,
) -> tuple[Found, list[Any]]:
    """What is stored of the tokens, and caches that hold it.

    Args:
        lane: The lane.
        deadline: Bounds all of it.
        model: The model's digest.
        shape: What its caches look like.
        ids: The tokens.
        route: How rows come.
        pace: Says whether fetching pays, and learns from it; None: it does.
        clock: Source of the time, in seconds.
        beyond: Tokens that need no restoring: more than so many must be stored.

    Raises:
        Declined: Prefilling is faster.
        NotStored: Not one is, or not enough are; the text says what is stored instead.
        StoreError: As `prefix.restore`.
    """
    from .prefix import restore

    found = find_worth(lane, deadline, model, shape, ids, pace, beyond)
    begin = clock()
    watch = None if pace is None else Watch(pace, shape.plan.bytes(1), found.tokens, clock)
    caches = restore(
        lane, deadline, found.namespace, shape, ids[: found.tokens], route, watch, found.generation
    )
    if pace is not None:
        pace.fetched(shape.plan.bytes(held(shape, caches, found.tokens)), clock() - begin)
    return found, caches


def held(shape: Shape, caches: Sequence[Any], known: int) -> int:
    """How many tokens restored caches hold, of so many that are stored."""
    kept = shape.layout.row_caches
    return int(caches[kept[0]].offset) if kept else known


@dataclass(frozen=True, slots=True)
class Other:
    """What is stored of some tokens under another model.

    Attributes:
        model: Its digest.
        tokens: How many of the tokens.
        fields: In what the two models differ.
    """

    model: str
    tokens: int
    fields: tuple[str, ...]


def others(lane: Lane, deadline: Deadline, model: str, ids: Sequence[int]) -> list[Other]:
    """What other models have stored of the tokens, those that differ in least first."""
    lane.send(("KV.PREFIX.MODELS",), deadline)
    known = lane.receive(deadline)
    if not isinstance(known, list):
        raise BadReply("KV.PREFIX.MODELS answered something else")
    names = [name.decode("latin-1") for name in known[::2] if isinstance(name, bytes)]
    closest = sorted((len(differences(model, name)), name) for name in names if name and name != model)
    asked = [name for _, name in closest[:MOST_MODELS]]
    for name in asked:
        lane.send(requests.match(ids, name, whole=False), deadline)
    answers = [Found.parse(lane.receive(deadline), len(ids)) for _ in asked]
    return [
        Other(name, found.tokens, differences(model, name))
        for name, found in zip(asked, answers, strict=True)
        if found is not None
    ]


def why_not(lane: Lane, deadline: Deadline, model: str, ids: Sequence[int]) -> str:
    """Why nothing is stored of the tokens under this model."""
    stored = others(lane, deadline, model, ids)
    if not stored:
        return "not stored"
    nearest = max(stored, key=lambda each: (-len(each.fields), each.tokens))
    return f"{nearest.tokens} of {len(ids)} tokens are stored of another model: {', '.join(nearest.fields)}"


def explanation(
    asked: int, model: str | None, answered: tuple[Found | None, list[Other]] | None, reason: str
) -> dict[str, Any]:
    """What is stored of so many tokens, as `PionPromptCache.explain` answers.

    Args:
        asked: How many tokens.
        model: This model's digest.
        answered: What is stored of them under this model, and under others; None: nobody could say.
        reason: Why.
    """
    found, elsewhere = answered or (None, [])
    return {
        "tokens": asked,
        "stored": 0 if found is None else found.tokens,
        "namespace": None if found is None else found.namespace.decode("utf-8", "replace"),
        "others": [{"stored": each.tokens, "differs": list(each.fields)} for each in elsewhere],
        "model": model,
        "reason": reason if answered is None else "" if found is not None else "not stored",
    }
