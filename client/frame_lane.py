"""A connection to the binary lane: the same server, spoken to in frames."""

from __future__ import annotations

from collections.abc import Sequence

from pionkv.protocol.frame_bodies import PING, auth_body
from pionkv.protocol.frames import HEADER, Status, frame_header, read_header
from pionkv.protocol.limits import DEFAULT_LIMITS

from .deadline import Deadline
from .endpoint import Endpoint
from .errors import BadReply, NotStored, ServerRefused
from .lane import Lane


class FrameLane(Lane):
    """One connection. Not thread-safe; one frame at a time."""

    def greet(self, endpoint: Endpoint, deadline: Deadline, *, ahead: bool = False) -> None:
        """Say who we are, and see that the server answers, at once. Raises as `ask`."""
        if endpoint.password is not None:
            opcode, body = auth_body(endpoint.username, endpoint.password)
            self.ask(opcode, [body], deadline)
        self.ask(PING, [], deadline)

    def ask(self, opcode: int, body: Sequence[bytes | memoryview], deadline: Deadline) -> bytearray:
        """Send a frame and receive its reply; the reply's body.

        Args:
            opcode: What is asked.
            body: The pieces of the body; they are not joined.
            deadline: Bounds all of it.

        Raises:
            NotStored: There is no such thing.
            ServerRefused: The server answered with an error. The connection stays open.
            BadReply: The server broke the protocol. The connection was closed.
            Unavailable: The connection broke or stalled. It was closed.
        """
        length = sum(memoryview(piece).nbytes for piece in body)
        self.send_pieces([frame_header(opcode, length), *body], deadline)
        self.pending += 1
        header = self.receive_exactly(HEADER.size, deadline)
        with self._closing_on_error(deadline):
            status, length = read_header(bytes(header), DEFAULT_LIMITS.bulk_bytes)
            if status not in Status.__members__.values():
                raise BadReply(f"a reply of status {status}")
        answer = self.receive_exactly(length, deadline)
        self.pending -= 1
        if status == Status.MISS:
            raise NotStored("the server has no such thing")
        if status != Status.OK:
            raise ServerRefused(answer.decode("utf-8", "replace"))
        return answer
