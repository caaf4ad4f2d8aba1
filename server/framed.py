"""Connections of the binary lane: the same clients, commands and checks in frames instead of RESP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pionkv.protocol.errors import CommandError
from pionkv.protocol.frame_bodies import ELEMENT_BYTES
from pionkv.protocol.frames import FrameParser, FrameReplies
from pionkv.storage import StorageError

from .arguments import Argument, integer
from .commands.attend import STORE, dims_of
from .connection import Connection
from .metrics import BINARY, Metrics
from .output import Departures, Output


class FrameOutput(Output):
    """The writing half: what the commands wrote as RESP goes out as frames."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics, departures: Departures) -> None:
        super().__init__(loop, metrics, departures)
        self._frames = FrameReplies()

    def flush(self) -> None:
        """Spell what was gathered, and hand it to the transport."""
        if self.held:
            return
        gathered = [piece for data in self._gathered for piece in self._frames.feed(data)]
        self._gathered = gathered
        self._gathered_bytes = sum(len(piece) for piece in gathered)
        super().flush()


class FrameConnection(Connection):
    """Drives one `FrameParser`."""

    lane = BINARY
    parser_type = FrameParser
    output_type = FrameOutput

    def _take(self, words: Sequence[Argument]) -> None:
        super()._take(self._with_blob_cut(words) if words[0] == STORE.encode() else words)

    def _with_blob_cut(self, words: Sequence[Argument]) -> list[Argument]:
        """ATTEND.STORE with keys and values apart: the frame has them as one blob, of `n` rows each."""
        *place, blob = words
        key_dim = 0
        if self.client.authenticated:
            # Where there is no such session the command is about to say so.
            with suppress(CommandError, StorageError):
                key_dim, _ = dims_of(self.client, self.client.user.tag + bytes(place[1]))  # type: ignore[arg-type]
        view = memoryview(blob)  # type: ignore[arg-type]
        cut = integer(place[3]) * key_dim * ELEMENT_BYTES
        return [*place, view[:cut], view[cut:]]
