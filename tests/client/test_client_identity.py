"""The table of tokens that is stored with a prefix."""

import struct

import numpy as np
import pytest
from pionkv.client.errors import BadReply, OtherTokens
from pionkv.client.identity import check_tokens, token_ids, token_table
from pionkv.protocol.limits import DEFAULT_LIMITS

IDS = [5, 0, 2**32 - 1, 7]


def table(ids: list[int], size: int = 1) -> bytes:
    hashes = token_table(ids)
    assert hashes is not None
    return struct.pack("<II", size, len(ids)) + hashes


def test_token_ids_are_integers_within_32_bits() -> None:
    for given in (IDS, tuple(IDS), iter(IDS), np.array(IDS), [np.uint32(each) for each in IDS]):
        assert token_ids(given) == IDS
    assert token_ids([]) == []
    for wrong in ("123", [1.0], [True], [None], 5, np.array([[1]]), [2**70]):
        with pytest.raises(TypeError):
            token_ids(wrong)
    for wrong, named in (([1, -1], "-1"), ([2**32], "4294967296")):
        with pytest.raises(ValueError, match=f"token id {named} is not within 0..4294967295"):
            token_ids(wrong)


@pytest.mark.parametrize("length", range(5))
def test_a_beginning_of_the_stored_tokens_fits(length: int) -> None:
    check_tokens(table(IDS), IDS[:length])
    check_tokens(table(IDS[:length]), IDS)


@pytest.mark.parametrize("place", range(4))
def test_any_other_token_does_not(place: int) -> None:
    with pytest.raises(OtherTokens, match=f"{IDS[place]} at {place}, asked 6"):
        check_tokens(table(IDS), [*IDS[:place], 6, *IDS[place + 1 :]])


@pytest.mark.parametrize("reply", ["UNKNOWN", table([1, 2], size=64), table([])])
def test_without_a_table_of_tokens_nothing_is_known(reply: object) -> None:
    check_tokens(reply, IDS)


@pytest.mark.parametrize("reply", [b"", b"1234567", table(IDS)[:-1], table(IDS) + b"x", None, 1, "OK", []])
def test_anything_else_is_a_bad_reply(reply: object) -> None:
    with pytest.raises(BadReply):
        check_tokens(reply, IDS)


def test_a_prefix_beyond_the_limit_has_no_table() -> None:
    assert token_table(range(DEFAULT_LIMITS.block_hashes + 1)) is None
    assert token_table(range(DEFAULT_LIMITS.block_hashes)) is not None
