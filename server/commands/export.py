"""V.EXPORT: rows as a safetensors file, for a client on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Rows, SessionView

from ..arguments import Argument, blob, integer
from ..clients import Client
from ..dispatch import Handler, Slow
from ..exporting import ExportError, Request

EXPORT = "V.EXPORT"


def export(client: Client, args: Sequence[Argument]) -> bytes | Slow:
    """V.EXPORT k_sid v_sid start end num_layers n_kv_heads head_dim: the path of the file."""
    if not client.same_machine:
        raise CommandError("ERR", f"{EXPORT} serves clients on this machine only; use V.FETCH")
    request = _request(client, args)
    service = client.service
    views = [service.store.session(sid) for sid in request.sids]
    _check(request, views)
    generations = [view.generation for view in views]
    path = service.exports.find(request, generations)
    if path is not None:
        return reply.bulk(str(path).encode())
    rows = service.store.rows_of_layers(
        request.sids, range(request.layers), request.start, request.end, generations=generations
    )
    found = [layer for layer in rows if layer is not None]
    if len(found) < len(rows):
        raise CommandError("ERR", f"{EXPORT} num_layers exceeds the layers stored")
    return _write(client, request, generations, found)


def _request(client: Client, args: Sequence[Argument]) -> Request:
    start, end, layers, heads, head_dim = map(integer, args[3:8])
    if not 0 <= start < end:
        raise CommandError("ERR", f"{EXPORT} invalid range: end must exceed start (>=0)")
    if not 0 < layers <= client.service.limits.layers or heads <= 0 or head_dim <= 0:
        raise CommandError("ERR", f"{EXPORT} num_layers, n_kv_heads and head_dim must be positive")
    return Request((blob(args[1]), blob(args[2])), start, end, layers, heads, head_dim)


def _check(request: Request, views: Sequence[SessionView]) -> None:
    width = request.heads * request.head_dim
    for view in views:
        if request.layers > view.num_layers:
            raise CommandError("ERR", f"{EXPORT} num_layers exceeds the layers stored")
        for layer in range(request.layers):
            if (dim := view.schema.layer(layer).dim) != width:
                text = f"holds {dim} values per token, not n_kv_heads * head_dim = {width}"
                raise CommandError("ERR", f"{EXPORT} layer {layer} {text}")


async def _write(client: Client, request: Request, generations: list[int], rows: list[Rows]) -> bytes:
    service = client.service
    try:
        path = await service.loop.run_in_executor(
            service.threads, service.exports.write, request, generations, rows
        )
    except ExportError as error:
        raise CommandError("ERR", f"{EXPORT} {error}") from error
    service.exports.keep(request, path)
    return reply.bulk(str(path).encode())


HANDLERS: dict[str, Handler] = {EXPORT: export}
