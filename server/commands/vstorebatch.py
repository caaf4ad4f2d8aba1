"""V.STOREBATCH: rows come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NoReturn, TypeAlias

from pionkv.kernels import LayerSpec
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import RowsWrite, Stale, Store, Transaction, Write

from ..arguments import OPTIONS_KEPT, Argument, blob, integer, keyword
from ..clients import Client
from ..dispatch import Handler, Opener, Slow
from ..packing import INPUTS, Filler, Fit, Input, Landing, Packing, Spooling, StoreReceiver, fit_of
from ..preparing import named
from ..receiving import Receiver, Refused

NAME = "V.STOREBATCH"
BLOB = 5
"""Position of the blob among the arguments."""

TWO_BYTES = (Input.F16, Input.BF16)
UNKNOWN_OPTION = CommandError("ERR", "V.STOREBATCH: unknown option (expected FMT F32|F16|BF16|RAW)")

Target: TypeAlias = Store | Transaction
"""Where rows go: to everybody, or into a transaction of the connection."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which rows are written."""

    sid: bytes
    layer: int
    start: int
    count: int

    @classmethod
    def read(cls, args: Sequence[Argument]) -> Place:
        """From the arguments before the blob."""
        layer, start, count = map(integer, args[2:BLOB])
        if layer < 0 or start < 0 or count <= 0:
            raise CommandError("ERR", "invalid layer_id/start_id/count")
        return cls(blob(args[1]), layer, start, count)

    def stored(self, target: Target) -> LayerSpec:
        """The format and dim of the layer."""
        if isinstance(target, Transaction):
            return target.schema(self.sid).layer(self.layer)
        return target.session(self.sid).schema.layer(self.layer)

    def begin(self, target: Target, suits: Callable[[LayerSpec], object] | None = None) -> RowsWrite:
        """Reserve the rows, unless `suits` raises for the format and dim of the layer."""
        if isinstance(target, Store):
            return target.begin_write(self.sid, self.layer, self.start, self.count, suits=suits)
        if suits is not None:
            suits(self.stored(target))
        return target.begin_write(self.sid, self.layer, self.start, self.count)


def storebatch(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """V.STOREBATCH sid layer start count blob [FMT F32|F16|BF16|RAW] [TXN id]."""
    txn = named(args, BLOB + 1)
    if txn is not None:
        preparation = client.preparations.live(txn)
        return preparation.run(NAME, lambda: _store_into(client, args, preparation.transaction))
    client.preparations.refuse_outside(NAME, client.preparations.of_session(blob(args[1])))
    return _store_into(client, args, client.service.store)


def _store_into(client: Client, args: Sequence[Argument], target: Target) -> bytes | Slow:
    values, options = args[BLOB], tuple(map(blob, args[BLOB + 1 :]))
    if isinstance(values, StoreReceiver):
        return _finish(client, args, target, values, _declared(options))
    place = Place.read(args)
    declared = _declared(options)
    if isinstance(values, Receiver):
        return _refuse(target, place, values, declared)
    return _store(client, target, place, declared, memoryview(values))


@lru_cache(OPTIONS_KEPT)
def _declared(options: tuple[bytes, ...]) -> Input:
    declared: Input | None = Input.F32
    if len(options) % 2:
        raise UNKNOWN_OPTION.again()
    for name, value in zip(options[::2], options[1::2], strict=True):
        option = keyword(name)
        if option == "FMT":
            declared = INPUTS.get(keyword(value))
        elif option != "TXN":
            declared = None
        if declared is None:
            raise UNKNOWN_OPTION.again()
    assert declared is not None
    return declared


def check_length(spec: LayerSpec, count: int, declared: Input, length: int) -> None:
    """The blob must hold exactly `count` rows."""
    size = declared.row_bytes(spec)
    if length != size * count:
        unit = (
            f"row_bytes={size}" if declared is Input.RAW else f"per_layer_dim={spec.dim} × {size // spec.dim}"
        )
        raise CommandError(
            "ERR", f"{NAME}: blob size {length} != expected {size * count} (count={count} × {unit})"
        )


def _finish(
    client: Client, args: Sequence[Argument], target: Target, values: StoreReceiver, declared: Input
) -> bytes | Slow:
    if isinstance(target, Transaction) and values.target is not target:
        place = Place.read(args)
        place.stored(target)
        raise Stale(place.sid)  # when the blob began, it was not for this transaction
    if declared not in values.fit.kinds:
        check_length(values.stored.wire, values.rows, declared, values.length)
    if values.finish_now(declared):
        return _stored(client, values, declared)
    return _finish_later(client, values, declared)


async def _finish_later(client: Client, values: StoreReceiver, declared: Input) -> bytes:
    await values.finish(declared)
    return _stored(client, values, declared)


def _stored(client: Client, values: StoreReceiver, declared: Input) -> bytes:
    if declared in TWO_BYTES:
        client.two_byte_input = declared
    client.service.metrics.rows_in[values.stored.format] += values.length
    return reply.OK


def _refuse(target: Target, place: Place, values: Receiver, declared: Input) -> NoReturn:
    if isinstance(values, Refused) and values.error is not None:
        raise values.error
    check_length(place.stored(target).wire, place.count, declared, values.length)
    raise Stale(place.sid)  # when the blob began, its length did not fit the session


def _store(client: Client, target: Target, place: Place, declared: Input, values: memoryview) -> bytes | Slow:
    """A small blob, which the parser has gathered: packed here and now if its kernel is loaded."""
    stored = place.stored(target)
    spec = stored.wire
    check_length(spec, place.count, declared, values.nbytes)
    client.service.metrics.rows_in[stored.format] += values.nbytes
    ready = (declared.lands(spec) and not stored.details.grouped) or client.service.kernels.has(stored)
    if not ready:
        return _store_in_thread(client, target, place, declared, values)
    with place.begin(target) as write:
        Filler(write, declared).fill(values)
        write.commit()
    return reply.OK


async def _store_in_thread(
    client: Client, target: Target, place: Place, declared: Input, values: memoryview
) -> bytes:
    service = client.service
    with place.begin(target) as write:
        await service.loop.run_in_executor(service.threads, Filler(write, declared).fill, values)
        write.commit()
    return reply.OK


class Misfit(Exception):
    """A blob of this length cannot be rows of the layer."""


class Opening:
    """A blob that has been announced, and what it can be.

    Attributes:
        place: Which rows it is for.
        length: Its bytes.
        stored: The format and dim of the layer.
        fit: What it can be.
    """

    stored: LayerSpec
    fit: Fit

    def __init__(self, place: Place, length: int) -> None:
        self.place = place
        self.length = length

    def suits(self, stored: LayerSpec) -> None:
        """See what it can be in a layer. Raises `Misfit`."""
        self.stored = stored
        self.fit = fit_of(stored.wire, self.place.count, self.length)
        if not self.fit.kinds:
            raise Misfit


def open_blob(client: Client, args: Sequence[Argument], length: int) -> Receiver:
    """Decide on the header where a large blob goes."""
    place = Place.read(args)
    preparation = client.preparations.of_session(place.sid)
    target: Target = client.service.store if preparation is None else preparation.transaction
    opening = Opening(place, length)
    try:
        write = place.begin(target, opening.suits)
    except Misfit:
        return Refused(length)
    receiver = _receiver(client, target, opening, write)
    receiver.target = target
    return receiver


def _receiver(client: Client, target: Target, opening: Opening, write: RowsWrite) -> StoreReceiver:
    service, stored, fit, length = client.service, opening.stored, opening.fit, opening.length
    if fit.landing and isinstance(write, Write):
        return Landing(service, write, length, fit)
    wake = service.connections[client.id].wake
    if len(fit.kinds) == 1:
        return Packing(service, write, stored, length, fit, fit.kinds[0], wake)
    begin = partial(opening.place.begin, target)
    try:
        return Spooling(service, write, begin, stored, length, fit, client.two_byte_input, wake)
    except BaseException:
        write.abort()
        raise


def run(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """Store rows, and tell those who listen when their prefix can be restored."""
    result = storebatch(client, args)
    if not client.service.notices or named(args, BLOB + 1) is not None:
        return result
    if not isinstance(result, bytes):
        return _then_notice(client, blob(args[1]), result)
    client.service.notices.changed(blob(args[1]))
    return result


async def _then_notice(client: Client, sid: bytes, slow: Slow) -> bytes | None:
    result = await slow
    client.service.notices.changed(sid)
    return result


HANDLERS: dict[str, Handler] = {NAME: run}
OPENERS: dict[str, dict[int, Opener]] = {NAME: {BLOB: open_blob}}
