"""One module a family of commands: parse the arguments, apply, reply. Here they are put together."""

from __future__ import annotations

from ..dispatch import Dispatcher
from ..tiered import tiered
from . import (
    acl,
    attend,
    attend_forms,
    attend_prefix,
    client,
    command,
    config,
    connection,
    export,
    hashes,
    info,
    keys,
    ledger,
    mapping,
    memory,
    prefix,
    prefix_blocks,
    prefix_claim,
    prefix_listing,
    prefix_manifest,
    prefix_match,
    prefix_transactions,
    prefix_transitions,
    prefix_upkeep,
    process,
    pubsub,
    slowlog,
    snapshots,
    states,
    stats,
    strings,
    transactions,
    vfetch,
    vstore,
    vstorebatch,
    zranges,
    zsets,
)

_FAMILIES = (
    connection, client, command, config, info, process, stats, acl, memory, slowlog,
    vstore, vstorebatch, vfetch, mapping, snapshots, export, prefix, prefix_blocks, states,
    prefix_match, prefix_claim, prefix_transactions, prefix_transitions, prefix_manifest, ledger,
    prefix_listing, prefix_upkeep, attend_prefix, attend,
    strings, hashes, zsets, zranges, keys, transactions, pubsub,
)  # fmt: skip


def make_dispatcher() -> Dispatcher:
    """A dispatcher that knows every command of this server."""
    handlers = {
        name: tiered(name, handler) for family in _FAMILIES for name, handler in family.HANDLERS.items()
    }
    openers = vstorebatch.OPENERS | states.OPENERS | strings.OPENERS | attend_forms.OPENERS | attend.OPENERS
    return Dispatcher(handlers, openers, connection.SEVERAL | prefix.SEVERAL | strings.SEVERAL)
