"""Which tokens a stored prefix stands for.

A name alone does not tell: a prompt may have been edited and its name kept. So the token ids are stored with
the prefix, in the table that `KV.PREFIX.REGISTER … BLOCKS` keeps: blocks of one token, whose "hash" is the
token id itself. That is 8 bytes a token beside thousands for its rows, and nothing has to be trusted.
"""

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from pionkv.protocol.limits import DEFAULT_LIMITS

from .errors import BadReply, NotStored, OtherTokens

BLOCK_SIZE = 1
GREATEST_ID = 2**32 - 1

_HEADER = struct.Struct("<II")
_IDS = np.dtype("<u8")


def token_ids(tokens: Iterable[int]) -> list[int]:
    """Token ids as plain integers.

    Args:
        tokens: A list, an iterator, or an array of one dimension, of any library.

    Raises:
        TypeError: They are no row of integers.
        ValueError: One of them is not within 0..4,294,967,295.
    """
    array = np.asarray(tokens.tolist() if hasattr(tokens, "tolist") else list(tokens))
    if not array.size:
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"token ids are a row of integers, not {array.dtype} of shape {array.shape}")
    least, greatest = int(array.min()), int(array.max())
    if least < 0 or greatest > GREATEST_ID:
        wrong = least if least < 0 else greatest
        raise ValueError(f"token id {wrong} is not within 0..{GREATEST_ID}")
    found: list[int] = array.tolist()
    return found


def token_table(ids: Sequence[int]) -> bytes | None:
    """The hashes to register a prefix with; None for one that is too long to have any."""
    if len(ids) > DEFAULT_LIMITS.block_hashes:
        return None
    return np.asarray(ids, _IDS).tobytes()


def check_tokens(reply: object, ids: Sequence[int], *, whole: bool = False) -> None:
    """Compare the reply of `KV.PREFIX.BLOCKS` with the tokens of a prefix.

    Nothing is known of a prefix without a table, or with one of larger blocks: those who stored it vouch for
    its name.

    Args:
        reply: The reply.
        ids: The tokens of the prefix.
        whole: Whether the stored prefix must have exactly these tokens.

    Raises:
        OtherTokens: The prefix stands for other tokens; the text says from where on. Or it
            is longer, and must not be.
        NotStored: It is shorter, and must not be.
        BadReply: It is no such reply.
    """
    if reply == "UNKNOWN":
        return
    if not isinstance(reply, bytes) or len(reply) < _HEADER.size:
        raise BadReply("KV.PREFIX.BLOCKS answered something else")
    size, count = _HEADER.unpack_from(reply)
    if len(reply) != _HEADER.size + count * _IDS.itemsize:
        raise BadReply(f"a table of {count} blocks in {len(reply)} bytes")
    if size != BLOCK_SIZE:
        return
    stored = np.frombuffer(reply, _IDS, count, _HEADER.size)
    common = min(count, len(ids))
    differing = np.flatnonzero(stored[:common] != np.asarray(ids[:common], _IDS))
    if differing.size:
        first = int(differing[0])
        raise OtherTokens(f"the name stands for other tokens: {stored[first]} at {first}, asked {ids[first]}")
    if whole and count != len(ids):
        kind = OtherTokens if count > len(ids) else NotStored
        raise kind(f"the name stands for {count} tokens, which is of no use after {len(ids)}")
