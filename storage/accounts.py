"""Tenants: whose a name is, and how many bytes each of them has stored.

What a tenant stores has names that begin with its tag, a netstring: the length of the tenant's name stands
before it, so no tag is the beginning of another one. A name thus says whose it
is, for units and plain keys alike; a page belongs to the tenant whose write made it.

    a, tenant          -> bytes of pages and plain keys, bytes of plain keys alone
    p, page (u64, BE)  -> the tenant

Bytes of names without a tag are in no account.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from .catalog import Reader, Writer
from .records import seal, unseal

LONGEST_TENANT = 64
TABLE = "accounts"
_TAG = re.compile(rb"([1-9][0-9]?):")
_ACCOUNT, _PAGE = b"a", b"p"
_COUNTS = struct.Struct("<QQ")


class Listing(NamedTuple):
    """What a listing shows to one who asks.

    Attributes:
        tag: What all names in it begin with; it is left out where they are told.
        holds: Whether it has a name, given as it is stored.
    """

    tag: bytes = b""
    holds: Callable[[bytes], bool] = lambda name: True

    def told(self, name: bytes) -> bytes:
        """A name as who asks says it."""
        return name[len(self.tag) :]


EVERYTHING = Listing()


class Account(NamedTuple):
    """Bytes that a tenant has stored: all of them, and those of its plain keys."""

    bytes: int
    key_bytes: int


def tag_of(tenant: bytes) -> bytes:
    """What the names of a tenant begin with: `5:team1,` for team1."""
    return b"%d:%s," % (len(tenant), tenant)


def tenant_of(name: bytes) -> bytes:
    """Whose a name is; empty for nobody's."""
    found = _TAG.match(name)
    if found is None:
        return b""
    end = found.end() + int(found[1])
    return name[found.end() : end] if name[end : end + 1] == b"," else b""


def account_of(reader: Reader, tenant: bytes) -> Account:
    """What a tenant has stored."""
    raw = reader.get(TABLE, _ACCOUNT + tenant)
    return Account(0, 0) if raw is None else Account(*_COUNTS.unpack(unseal(raw)))


def accounts(reader: Reader) -> dict[bytes, Account]:
    """Every tenant that has something stored."""
    found = reader.scan(TABLE, prefix=_ACCOUNT)
    return {key[1:]: Account(*_COUNTS.unpack(unseal(raw))) for key, raw in found}


def add(writer: Writer, tenant: bytes, growth: int, *, keys: bool = False) -> None:
    """A tenant's bytes have become more, or fewer; those of its plain keys, too, with `keys`."""
    if not tenant or not growth:
        return
    held = account_of(writer, tenant)
    grown = Account(held.bytes + growth, held.key_bytes + (growth if keys else 0))
    if grown.bytes > 0:
        writer.put(TABLE, _ACCOUNT + tenant, seal(_COUNTS.pack(*grown)))
    else:
        writer.delete(TABLE, _ACCOUNT + tenant)


def forget_keys(writer: Writer) -> None:
    """All plain keys are gone."""
    for tenant, held in accounts(writer).items():
        add(writer, tenant, -held.key_bytes, keys=True)


def give_page(writer: Writer, page: int, tenant: bytes) -> None:
    """A new page is a tenant's."""
    if tenant:
        writer.put(TABLE, _page_key(page), tenant)


def owner_of_page(reader: Reader, page: int) -> bytes:
    """Whose a page is; empty for nobody's."""
    return reader.get(TABLE, _page_key(page)) or b""


def forget_page(writer: Writer, page: int, size: int) -> None:
    """A page of so many bytes is gone."""
    tenant = owner_of_page(writer, page)
    if tenant:
        writer.delete(TABLE, _page_key(page))
        add(writer, tenant, -size)


def _page_key(page: int) -> bytes:
    return _PAGE + page.to_bytes(8, "big")
