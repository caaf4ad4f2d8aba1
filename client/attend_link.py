"""The way to a server that computes attention: its binary lane where it has one, else its main port."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pionkv.protocol.frame_bodies import ATTEND_PREFIX_QUERY_FUSED
from pionkv.protocol.request import Word

from . import requests
from .breaker import Breaker
from .deadline import Deadline
from .errors import BadReply, ServerRefused, Unavailable
from .frame_lane import FrameLane
from .lane import Lane, Traffic
from .link import Link

Floats = NDArray[np.float32]


class AttendLink:
    """Asks a server for attention: on its binary lane where it has one, else as RESP. Thread-safe.

    Attributes:
        calls: Queries answered.
        milliseconds: What they took, the wait for the server included.
        warmed: Times that rows had to be warmed first.
    """

    def __init__(self, link: Link) -> None:
        """Prepare; nothing is connected yet.

        Args:
            link: Where the server is and how long exchanges may take. Queries have connections of their own:
                a server that computes is silent, so only the total bounds them.
        """
        self.calls = 0
        self.milliseconds = 0.0
        self.warmed = 0
        self._endpoint = link.endpoint
        self._clock = link.clock
        self._link = link.twin(link.endpoint, link.breaker)
        self._frames: Link | None = None
        self._lock = threading.Lock()
        self._looked = link.endpoint.unix_socket_path is not None

    @property
    def traffic(self) -> Traffic:
        """Bytes moved on both lanes."""
        return self._link.traffic if self._frames is None else self._link.traffic + self._frames.traffic

    @property
    def framed(self) -> bool:
        """Whether the binary lane is used."""
        return self._frames is not None

    def close(self) -> None:
        """Close the connections."""
        self._link.close()
        if self._frames is not None:
            self._frames.close()

    def call(self, command: Sequence[Word]) -> object:
        """Send a command that is no query; its reply.

        Raises:
            ServerRefused: The server answered with an error.
            StoreError: It is not available, or answered nonsense.
        """

        def work(lane: Lane, deadline: Deadline) -> object:
            lane.send(command, deadline)
            return lane.receive(deadline)

        return self._link.exchange(work)

    def query(
        self,
        command: Sequence[Word],
        nbytes: int,
        warm: Sequence[Word],
        frame: Sequence[bytes | memoryview] | None = None,
    ) -> Floats:
        """Send a query; the elements of its reply.

        Args:
            command: The query.
            nbytes: How long the reply must be.
            warm: The command that makes the rows ready, should the server ask for it.
            frame: The same query as the body of its frame, if it has one.

        Raises:
            ServerRefused: The server answered with an error.
            StoreError: It is not available, or answered nonsense.
        """
        begin = self._clock()
        try:
            answer = self._query(command, nbytes, frame)
        except ServerRefused as error:
            if error.code != "COLDMISS":
                raise
            with self._lock:
                self.warmed += 1
            self.call(warm)
            answer = self._query(command, nbytes, frame)
        with self._lock:
            self.calls += 1
            self.milliseconds += (self._clock() - begin) * 1000
        return answer

    def _query(
        self, command: Sequence[Word], nbytes: int, frame: Sequence[bytes | memoryview] | None
    ) -> Floats:
        link = None if frame is None else self._frame_link()
        if link is not None and frame is not None:
            try:
                return self._query_framed(link, frame, nbytes)
            except (Unavailable, BadReply):
                pass  # its breaker lets it rest; the same is asked on the main port
        return self._query_resp(command, nbytes)

    def _query_resp(self, command: Sequence[Word], nbytes: int) -> Floats:
        answer = np.empty(nbytes, np.uint8)

        def work(lane: Lane, deadline: Deadline) -> int:
            lane.send(command, deadline)
            return lane.receive_rows(lambda index, length: answer.data, deadline)

        self._link.exchange(work)
        return answer.view("<f4")

    @staticmethod
    def _query_framed(link: Link, frame: Sequence[bytes | memoryview], nbytes: int) -> Floats:
        def work(lane: Lane, deadline: Deadline) -> bytearray:
            assert isinstance(lane, FrameLane)
            answer = lane.ask(ATTEND_PREFIX_QUERY_FUSED, frame, deadline)
            if len(answer) != nbytes:
                raise BadReply(f"{len(answer)} bytes where {nbytes} were expected")
            return answer

        return np.frombuffer(link.exchange(work), np.dtype("<f4"))

    def _frame_link(self) -> Link | None:
        """The binary lane, where the server says that it has one; it is asked once.

        A password goes to no port that the server has not named.
        """
        with self._lock:
            if not self._looked:
                port = self._named_port()
                self._looked = True
                if port:
                    endpoint, breaker = replace(self._endpoint, port=port), Breaker(clock=self._clock)
                    self._frames = self._link.twin(endpoint, breaker, FrameLane)
            return self._frames

    def _named_port(self) -> int:
        """The lane's port; 0 when there is none that is secured as this client's connections are."""
        try:
            lines = requests.read_lines(self.call(("INFO", "server")))
        except ServerRefused:
            return 0
        port = lines.get("binary_port", "")
        # Such a server has no other port than the one with TLS; the lane has it, too.
        over_tls = lines.get("tls_port") == lines.get("tcp_port")
        fits = over_tls == (self._endpoint.tls is not None)
        return int(port) if fits and port.isdecimal() else 0
