"""Connections of the binary lane: the same clients, commands and checks in frames instead of RESP."""

from __future__ import annotations

import asyncio

from pionkv.protocol.frames import FrameParser, FrameReplies

from .clients import BINARY
from .connection import Connection
from .metrics import Metrics
from .output import Output


class FrameOutput(Output):
    """The writing half: what the commands wrote as RESP goes out as frames."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        super().__init__(loop, metrics)
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
