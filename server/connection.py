"""One connection: bytes in, commands run in order, replies out.

Commands of a connection never overtake each other: while one is slow (rows being packed, unpacked or sent),
or the peer does not read its replies, this connection parses no further and reads no further. Others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from typing import ClassVar, cast

from pionkv.protocol import reply
from pionkv.protocol.errors import ProtocolError
from pionkv.protocol.frames import FrameParser, Refusal
from pionkv.protocol.parser import NEED_DATA, Body, BulkMore, BulkStart, Command, RequestParser

from .acl.permit import enter
from .admission import check_permission, turned_away
from .arguments import Argument
from .clients import lane_of, read_addresses, tune
from .dispatch import Dispatcher
from .output import TURN_BYTES
from .receiving import Receiver, Refused
from .running import Runner, Taken
from .service import Service

LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
"""How long and how much a peer may go on to send after an error that ends its connection."""
FULL_READ = 1 << 17
"""A read of so much of commands, not of a large argument, is likely to have left more."""
DRAIN = memoryview(bytearray(1 << 16))
"""Where that goes; its content is nobody's."""


class Connection(Runner, asyncio.BufferedProtocol):
    """Drives one parser from a transport and runs what it yields.

    Attributes:
        lane: How its bytes are counted; empty: as the transport's.
        parser_type: What reads the commands.
    """

    lane: ClassVar[str] = ""
    parser_type: ClassVar[type[RequestParser | FrameParser]] = RequestParser

    def __init__(self, service: Service, dispatcher: Dispatcher) -> None:
        super().__init__(service, dispatcher)
        self._parser = self.parser_type(service.limits, authenticated=False)
        self._transport: asyncio.Transport | None = None
        self._reads = True
        """The transport was told to read, not to pause."""
        self._starved_of = 0
        """Bytes of the body that is arriving for which its receiver has no buffer yet."""
        self._lane = self.lane
        self._ended = False
        self._unheard: int | None = None
        """Bytes dropped since the connection was dismissed; None before."""

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register, or refuse when the server is full."""
        self._transport = cast(asyncio.Transport, transport)
        self._lane = self.lane or lane_of(self._transport)
        self._out.attach(self._transport, self._lane)
        self._service.metrics.connections += 1
        read_addresses(self.client, self._transport)
        tune(self._transport, same_machine=self.client.same_machine)
        self.client.last_active = self._service.clock()
        self.set_authenticated(self.client.user.needs_no_password)
        self._service.add(self)
        if (refusal := turned_away(self.client)) is not None:
            self._service.metrics.rejected_connections += 1
            self._dismiss(reply.error(refusal.code, refusal.message))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client; what it was sending leaves no trace."""
        self._service.remove(self)
        self.client.end(for_good=True)
        self._ended = True
        self._transport = None
        self._out.detach()
        if self._task is None:
            self._close_receivers()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the parser's buffer, or straight to where a large argument belongs."""
        return self._parser.get_buffer() if self._unheard is None else DRAIN

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._unheard is not None:
            self._unheard += nbytes
            if self._unheard > LINGER_BYTES:
                self.abort()
            return
        self._service.metrics.received[self._lane] += nbytes
        self.client.last_active = self._service.clock()
        if self._parser.received(nbytes):
            self._out.turn = TURN_BYTES
            self._advance()
            if nbytes >= FULL_READ and self._reads and not self._receivers and not self._ended:
                # There is more, and it would be read at once, up to 32 times: others are looked at first.
                assert self._transport is not None
                self._reads = False
                self._transport.pause_reading()
                self._service.loop.call_soon(self._advance)

    def eof_received(self) -> bool:
        """The peer sends no more; it still gets the replies to what it sent."""
        self._input_over = True
        self._advance()
        assert self._transport is not None
        # With TLS there is no half of a connection: what is queued is sent, and that is all.
        return not self._ended and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """The socket is full."""
        self._out.pause()

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        self._out.resume()
        if not self._waits:
            self._advance()

    # What others ask for

    def set_authenticated(self, authenticated: bool) -> None:
        """Let the client in, or out; the parser's limits follow."""
        self.client.authenticated = authenticated
        self._parser.authenticated = authenticated

    def wake(self) -> None:
        """The receiver that had no buffer has one again."""
        if self._starved_of and not self._ended:
            self._advance()

    def stop_when_idle(self) -> None:
        """Close now, or as soon as the command in flight is answered."""
        if not (self._waits or self._receivers or self._out.blocked or self._calls):
            self.end()

    def end(self) -> None:
        """Send what is queued and close."""
        if self._ended:
            return
        self._ended = True
        self._out.flush()
        if self._transport is not None:
            self._transport.close()

    @property
    def idle_since(self) -> float:
        """When it last sent anything; never, while it is served or listens."""
        busy = self._waits or self._out.blocked or self._receivers
        if busy or self.client.listens_to or self.client in self._service.monitors:
            return math.inf
        return self.client.last_active

    def cut_off(self) -> None:
        """End for a reason that is not the peer's: at once, or after the command that is the reason."""
        if self._task in (None, asyncio.current_task()):
            self.client.closing = True
            self._service.loop.call_soon(self._advance)
        else:
            self.end()

    def _dismiss(self, last_words: bytes) -> None:
        """Close after an error that ends the connection, so that the peer can read it.

        Closing while input is unread would reset the connection, and the error with it. So the sending half
        is closed, and what still comes is read and dropped, for a while. Nobody counts this client any more.
        """
        transport = self._transport
        if self._ended or transport is None:
            return
        self._ended, self._unheard = True, 0
        self._service.remove(self)
        self._out.write(last_words)
        self._out.flush()
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._service.loop.call_later(LINGER_SECONDS, transport.abort)

    def kill(self) -> None:
        """Close at once, so that the peer can tell when this returns: `abort` alone waits for the loop."""
        if self._transport is not None and not self._ended:
            handle = os.dup(self._transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=handle) as connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.abort()

    def abort(self) -> None:
        """Close at once; unsent replies are lost."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    # The one loop

    def _advance(self) -> None:
        """Run commands until one is slow, the peer lags behind, or the input is used up."""
        if self._ended or self._transport is None:
            return
        try:
            hungry = self._run_commands()
        except ProtocolError as error:
            # What came before it is answered first; the parser tells of the error again.
            if self._settle():
                self._dismiss(reply.protocol_error(error))
            return
        self._out.flush_soon()
        idle = hungry and not self._receivers
        over = self.client.closing and not self._waits
        if over or (hungry and self._input_over) or (idle and self._service.stopping):
            self.end()
        elif hungry is not self._reads:
            self._reads = hungry
            if hungry:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _run_commands(self) -> bool:
        """True when only more input helps."""
        if self._starved_of and not self._feed(self._starved_of):
            return False
        parser, out, client = self._parser, self._out, self.client
        while self._task is None and not (out.held or out.blocked or client.closing):
            if self._held is None and (commands := parser.take_batch()):
                assert isinstance(parser, RequestParser)
                if (taken := self._run_batch(commands, alike=parser.alike)) < len(commands):
                    parser.give_back(commands[taken:])
                elif parser.empty and not self._must_wait:
                    return not self._calls or self._join()
                continue
            event = self._held or parser.next_event()
            self._held = None
            if event is NEED_DATA:
                return self._join()
            if isinstance(event, Command):
                self._take(self._words(event.args))
            elif isinstance(event, BulkMore):
                self._feed_later(event.remaining)
                return False
            elif isinstance(event, Refusal):
                self._run([], None, event.error)
            elif self._calls and not self._settle():
                self._held = event
            elif isinstance(event, BulkStart):
                if not self._open(event):
                    return False
            elif isinstance(event, Taken):
                self._run(*event)
            else:
                self._run_brief(*event)
        return False

    # Large arguments

    def _open(self, event: BulkStart) -> bool:
        """Decide where a large argument goes; False when it has to wait for a buffer."""
        index, length = event.index, event.length
        try:
            words = self._words([*event.args])
            receiver = self._receiver(words, index, length)
        except Exception as error:
            receiver = Refused(length, error)
        if receiver is None:
            self._parser.collect()
            return True
        self._receivers[index] = self._filling = receiver
        return self._feed(length)

    def _receiver(self, words: list[Argument], index: int, length: int) -> Receiver | None:
        """Where the argument at `index` goes; None: into the parser's memory."""
        entry = self._dispatcher.begun(words)
        opener = entry.openers.get(index) if entry is not None else None
        if entry is None or opener is None:
            return None
        if self.client.user.restricted:
            check_permission(self.client, entry, words)
            enter(self.client.user, entry.spec, words)
        return opener(self.client, words, length)

    def _feed(self, remaining: int) -> bool:
        """Give the parser the receiver's next buffer, if there is one; a refused body is dropped."""
        receiver = self._filling
        assert receiver is not None
        buffer: memoryview | None = None
        if not receiver.refused:
            try:
                buffer = receiver.next_buffer(remaining)
            except Exception as error:
                receiver = self._refuse(receiver, error)
        self._starved_of = 0
        if buffer is not None:
            self._parser.direct(buffer)
        elif receiver.refused:
            self._parser.discard()
        else:
            self._starved_of = remaining
            return False
        return True

    def _feed_later(self, remaining: int) -> None:
        """A buffer is full, of a MiB mostly: others are looked at before the next one is filled.

        A socket that is never empty is else read 32 times in a turn of the event loop.
        """
        self._starved_of = remaining
        self._service.loop.call_soon(self.wake)

    def _refuse(self, receiver: Receiver, error: Exception) -> Refused:
        """A receiver failed in the middle of a body: the rest is dropped and the command fails."""
        refused = Refused(receiver.length, error)
        receiver.close()
        for index, other in self._receivers.items():
            if other is receiver:
                self._receivers[index] = refused
        self._filling = refused
        return refused

    def _words(self, args: list[bytes | memoryview | Body]) -> list[Argument]:
        """The arguments with receivers in the places of what they received."""
        words: list[Argument] = args  # type: ignore[assignment]
        if self._receivers:
            for index, receiver in self._receivers.items():
                words[index] = receiver
        return words
