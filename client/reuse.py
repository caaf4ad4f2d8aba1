"""The longest stored prefix of some tokens: find it, restore it, and say why there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import requests
from .deadline import Deadline
from .errors import BadReply, NotStored
from .lane import Lane
from .requests import Found
from .route import Route

if TYPE_CHECKING:
    from .prefix import Shape

MOST_MODELS = 32
"""Other models that are asked about when this one has nothing stored."""


def name_of(model: str, ids: Sequence[int]) -> str:
    """The namespace of a prefix that nobody named: it stands for the model and all tokens."""
    tokens = np.asarray(ids, "<u4").tobytes()
    return "tokens:" + hashlib.sha256(model.encode() + b"|" + tokens).hexdigest()[:32]


def find(lane: Lane, deadline: Deadline, model: str, ids: Sequence[int], *, whole: bool) -> Found | None:
    """The longest stored prefix of the tokens, under a model."""
    lane.send(requests.match(ids, model, whole=whole), deadline)
    return Found.parse(lane.receive(deadline), len(ids))


def restore_longest(
    lane: Lane, deadline: Deadline, model: str, shape: Shape, ids: Sequence[int], route: Route
) -> tuple[Found, list[Any]]:
    """What is stored of the tokens, and caches that hold it.

    Raises:
        NotStored: Not one is; the text says what is stored instead.
        StoreError: As `prefix.restore`.
    """
    from .prefix import restore

    found = find(lane, deadline, model, ids, whole=shape.whole)
    if found is None:
        raise NotStored(why_not(lane, deadline, model, ids))
    return found, restore(lane, deadline, found.namespace, shape, ids[: found.tokens], route)


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
    from .fingerprint import differences

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
