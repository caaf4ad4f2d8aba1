"""V.CREATE, V.INFO, V.DROP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pionkv.protocol import reply
from pionkv.protocol.errors import CommandError
from pionkv.storage import Schema, SessionView

from ..arguments import Argument, Cursor, blob, integer, keyword, shown, unknown_option
from ..clients import Client
from ..dispatch import Handler
from ..notices import namespace_of
from ..schemas import DEFAULT_FORMAT, for_keys, per_layer, uniform
from .prefix import K_SUFFIX, own_numbers


def create(client: Client, args: Sequence[Argument]) -> bytes:
    """V.CREATE sid dim [VQUANT fmt], or V.CREATE sid [default_dim] SCHEMA n spec ..."""
    cursor = Cursor(args, 1)
    sid = blob(cursor.take())
    heterogeneous = keyword(args[2]) == "SCHEMA" or (len(args) > 3 and keyword(args[3]) == "SCHEMA")
    schema = (_listed if heterogeneous else _uniform)(client, cursor)
    cursor.end("V.CREATE")
    if namespace_of(sid) is not None and sid.endswith(K_SUFFIX):
        schema = for_keys(schema)
    return reply.integer(client.service.store.create_session(sid, schema))


def _uniform(client: Client, cursor: Cursor) -> Schema:
    dim = integer(cursor.take())
    limit = client.service.limits.dim
    if not 1 <= dim <= limit:
        raise CommandError("ERR", f"invalid value_dim (must be 1-{limit})")
    format = DEFAULT_FORMAT
    if cursor.left >= 2 and cursor.take_keyword("VQUANT"):
        format = shown(cursor.take()).lower()
    return uniform("V.CREATE", "VQUANT format", format, dim)


def _listed(client: Client, cursor: Cursor) -> Schema:
    limits = client.service.limits
    default_dim = 0
    if not cursor.take_keyword("SCHEMA"):
        default_dim = integer(cursor.take())
        if not 0 <= default_dim <= limits.dim:
            raise CommandError("ERR", f"V.CREATE SCHEMA: default_dim must be 0-{limits.dim}")
        cursor.take()
    return per_layer("V.CREATE", cursor, limits, default_dim)


def info(client: Client, args: Sequence[Argument]) -> bytes:
    """V.INFO [sid]."""
    if len(args) > 2:
        unknown_option("V.INFO", args[2])
    lines = (
        _store_lines(client)
        if len(args) == 1
        else _session_lines(client.service.store.session(blob(args[1])))
    )
    return reply.bulk("".join(f"{line}\r\n" for line in lines).encode())


def _store_lines(client: Client) -> Iterator[str]:
    tag = client.user.tag
    info = client.service.store.info() if not tag else own_numbers(client)
    yield "enabled:1"
    yield f"sessions:{info.sessions}"
    yield f"total_tokens:{info.rows}"
    yield f"total_fetches:{0 if tag else client.service.sums.all_metrics().rows_fetched}"


def _session_lines(view: SessionView) -> Iterator[str]:
    schema = view.schema
    first = schema.layer(0)
    heterogeneous = not schema.is_uniform and len({schema.layer(i) for i in range(view.num_layers)}) > 1
    # The two lines about the whole session say neither where a head ends nor where the rotated part does.
    by_layer = heterogeneous or first.rope > 0 or first.head_dim > 0
    yield f"session_idx:{view.slot}"
    yield f"value_dim:{first.dim}"
    yield f"v_format:{first.format}"
    yield f"num_layers:{view.num_layers}"
    yield f"schema:{'heterogeneous' if heterogeneous else 'uniform'}"
    for index in range(view.num_layers):
        if index < len(view.rows) and view.rows[index]:
            yield f"layer_{index}_tokens:{view.rows[index]}"
        if by_layer:
            spec = schema.layer(index)
            yield f"layer_{index}_dim:{spec.dim}"
            yield f"layer_{index}_fmt:{spec.format}"
            if spec.rope:
                yield f"layer_{index}_rope:{spec.rope}"
            if spec.head_dim:
                yield f"layer_{index}_head:{spec.head_dim}"
    yield f"total_tokens:{sum(view.rows)}"


def drop(client: Client, args: Sequence[Argument]) -> bytes:
    """V.DROP sid [sid ...]: how many there were."""
    sids, notices = [blob(sid) for sid in args[1:]], client.service.notices
    sides = notices.present(name for sid in sids if (name := namespace_of(sid)) is not None)
    count = client.service.store.drop_sessions(sids)
    notices.dropped(sides)
    return reply.integer(count)


HANDLERS: dict[str, Handler] = {"V.CREATE": create, "V.DROP": drop, "V.INFO": info}
