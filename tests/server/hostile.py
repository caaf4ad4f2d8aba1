"""Requests that nobody should send: random, malformed, and for what belongs to somebody else."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

from pionkv.protocol.request import encode_command
from pionkv.protocol.table import COMMANDS

OTHERS = ("team2:x", "team2:x_pk", "team2:x_pv", "team2:alone", "team2:h", "team2:z", "team2:s")
STORED = tuple(f"3:red,{name.removeprefix('team2:')}" for name in OTHERS)
"""The names of a tenant's as they are stored."""
OWN = ("team1:a", "team1:a_pk", "team1:a_pv", "team1:b", "team1:c")
WORDS = (
    "*", "team2:*", "3:red,*", "?eam2:x", "RANGE", "BATCH", "FMT", "F32", "F16", "RAW", "NATIVE", "MATCH",
    "COUNT", "TXN",
    "AT", "MODEL", "TOKENS", "GET", "WITHSCORES", "LIMIT", "REV", "BYSCORE", "0", "1", "4", "-1",
    "32", "fp32", "fp16", "inf", "nan", "1e308", "9223372036854775807", "-9223372036854775808", "",
    "99999999999999999999", "x" * 300,
)  # fmt: skip
NOT_SENT = frozenset({"WAIT", "BLOCK"})
MANY = 25
"""Requests of one connection."""


class Attacker:
    """Makes requests, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = [name for name in COMMANDS if name not in NOT_SENT]

    def batch(self, count: int) -> bytes:
        """So many requests, one after the other."""
        return b"".join(self.request() for _ in range(count))

    def request(self) -> bytes:
        """One request."""
        kind = self._random.randrange(20)
        if kind < 9:
            return self._aimed()
        if kind < 16:
            return self._joined(self._command())
        if kind < 18:
            return self._inline()
        return self._broken() if kind == 19 and self._random.randrange(3) == 0 else self._guess()

    def _aimed(self) -> bytes:
        """A command with a name of somebody else wherever a name belongs."""
        name = self._random.choice(self._names)
        spec = COMMANDS[name]
        words: list[str | bytes] = [*name.split("|")]
        for index in range(len(words), max(abs(spec.arity), len(words)) + self._random.randrange(4)):
            is_key = spec.first_key and index >= spec.first_key
            words.append(
                self._random.choice(OTHERS + STORED)
                if is_key and self._random.random() < 0.7
                else self._word()
            )
        return self._joined(words)

    def _command(self) -> list[str | bytes]:
        words: list[str | bytes] = [*self._random.choice(self._names).split("|")]
        return words + [self._word() for _ in range(self._random.randrange(8))]

    def _word(self) -> str | bytes:
        kind = self._random.randrange(10)
        if kind < 4:
            return self._random.choice(WORDS)
        if kind < 6:
            return self._random.choice(OTHERS + STORED)
        if kind < 8:
            return self._random.choice(OWN)
        if kind == 8:
            return str(self._random.randrange(-5, 50))
        return self._random.randbytes(self._random.choice((1, 16, 512, 512, 4096, 40_000)))

    def _guess(self) -> bytes:
        """A password that is not right, or another door."""
        return self._joined(
            self._random.choice(
                (
                    ["AUTH", "wrong"],
                    ["AUTH", "owner", "wrong"],
                    ["AUTH", "default", ""],
                    ["HELLO", "3", "AUTH", "owner", "wrong"],
                    ["HELLO", str(self._random.randrange(5))],
                    ["ACL", "SETUSER", "default", "on", "nopass", "~*", "+@all"],
                    ["CONFIG", "SET", "requirepass", ""],
                    ["RESET"],
                )
            )
        )

    def _inline(self) -> bytes:
        words = [self._word() for _ in range(self._random.randrange(1, 5))]
        line = b" ".join(word.encode() if isinstance(word, str) else word for word in words)
        return line.replace(b"\n", b" ").replace(b"\r", b" ")[:8000] + b"\r\n"

    def _broken(self) -> bytes:
        """A frame with something wrong in it."""
        frame = bytearray(self._joined(self._command()))
        for _ in range(self._random.randrange(1, 4)):
            frame[self._random.randrange(len(frame))] = self._random.randrange(256)
        return self._random.choice(
            (
                bytes(frame),
                bytes(frame[: self._random.randrange(len(frame))]),
                b"*-5\r\n",
                b"*99999999999\r\n",
                b"*2\r\n$3\r\nGET\r\n$-7\r\n",
                b"*2\r\n$3\r\nGET\r\n$99999999999999\r\n",
                self._random.randbytes(200),
            )
        )

    def _joined(self, words: list[str | bytes]) -> bytes:
        return b"".join(bytes(piece) for piece in encode_command(words))


def answers(port: int, attacker: Attacker, user: str | None, requests: int) -> Iterator[bytes]:
    """Everything that a server says to so many requests of a user, one connection after the other.

    Some connections end in the middle.
    """
    for start in range(0, requests, MANY):
        count = min(MANY, requests - start)
        login = b"" if user is None else b"AUTH %s pw\r\n" % user.encode()
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.settimeout(60)
            yield _told(connection, login + attacker.batch(count), start)


def _told(connection: socket.socket, data: bytes, start: int) -> bytes:
    found = bytearray()
    try:
        connection.sendall(data)
        if start // MANY % 10 == 9:
            return b""
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(1 << 16):
            found += piece
    except OSError:
        pass  # the server has ended the connection, as it should after a broken frame
    return bytes(found)
