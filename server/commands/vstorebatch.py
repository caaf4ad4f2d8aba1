"""V.STOREBATCH: rows come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from pionkv.kernels import LayerSpec
from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import RowsWrite, Stale, Store, Transaction, Write

from ..arguments import Argument, Cursor, blob, integer, keyword
from ..clients import Client
from ..dispatch import Handler, Opener, Slow
from ..packing import Filler, Input, Landing, Packing, Spooling, StoreReceiver, inputs_of_length
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

    def begin(self, target: Target) -> RowsWrite:
        """Reserve the rows."""
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
    place = Place.read(args)
    declared = _declared(args)
    values = args[BLOB]
    if isinstance(values, Receiver):
        return _finish(client, target, place, values, declared)
    return _store(client, target, place, declared, memoryview(values))


def _declared(args: Sequence[Argument]) -> Input:
    cursor = Cursor(args, BLOB + 1)
    declared = Input.F32
    while cursor:
        if cursor.left >= 2 and cursor.take_keyword("FMT"):
            declared = _input(cursor.take())
        elif cursor.left >= 2 and cursor.take_keyword("TXN"):
            cursor.take()
        else:
            raise UNKNOWN_OPTION.again()
    return declared


def _input(argument: Argument) -> Input:
    try:
        return Input[keyword(argument)]
    except KeyError:
        raise UNKNOWN_OPTION.again() from None


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


async def _finish(client: Client, target: Target, place: Place, values: Receiver, declared: Input) -> bytes:
    if isinstance(values, Refused) and values.error is not None:
        raise values.error
    stored = values.stored if isinstance(values, StoreReceiver) else place.stored(target)
    check_length(stored.wire, place.count, declared, values.length)
    if not isinstance(values, StoreReceiver):
        raise Stale(place.sid)  # when the blob began, its length did not fit the session
    await values.finish(declared)
    if declared in TWO_BYTES:
        client.two_byte_input = declared
    client.service.metrics.rows_in[stored.format] += values.length
    return reply.OK


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


def open_blob(client: Client, args: Sequence[Argument], length: int) -> Receiver:
    """Decide on the header where a large blob goes."""
    place = Place.read(args)
    preparation = client.preparations.of_session(place.sid)
    target: Target = client.service.store if preparation is None else preparation.transaction
    stored = place.stored(target)
    spec = stored.wire
    inputs = inputs_of_length(spec, place.count, length)
    if not inputs:
        return Refused(length)
    service = client.service
    wake = service.connections[client.id].wake
    if not stored.details.grouped and any(kind.lands(spec) for kind in inputs):
        write = place.begin(target)
        assert isinstance(write, Write)
        return Landing(service, write, length)
    if len(inputs) == 1:
        return Packing(service, place.begin(target), stored, length, inputs[0], wake)
    return Spooling(service, partial(place.begin, target), stored, length, client.two_byte_input, wake)


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
