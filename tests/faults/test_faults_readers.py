"""A reader in the middle of a reply, while another worker changes what it reads: the old version, whole."""

from __future__ import annotations

import socket

import pytest
from faults_rows import ROW_BYTES, SIDES, connect, name_of, store, version_of
from pionkv.protocol.request import encode_command

NUMBER, OTHER, LAYERS, ROWS = 1, 50, 3, 6_000
READ_FIRST = 100_000


class SlowReader:
    """Asks for a whole prefix, and reads the reply in two parts."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(60)
        self.data = bytearray()

    def worker(self) -> int:
        self.socket.sendall(b"INFO workers\r\n")
        text = b""
        while not text.endswith(b"\r\n\r\n") and b"worker1" not in text:
            text += self.socket.recv(65536)
        while not text.endswith(b"\r\n"):
            text += self.socket.recv(65536)
        return int(text.split(b"worker_id:")[1].split(b"\r\n")[0])

    def ask(self, number: int) -> None:
        sids = [name_of(number) + suffix for suffix in SIDES]
        for piece in encode_command(("V.FETCHALL", *sids, 0, ROWS, "FMT", "RAW")):
            self.socket.sendall(piece)
        self.read(READ_FIRST)

    def read(self, count: int) -> bool:
        """So many bytes in all; whether they came before the end."""
        while len(self.data) < count:
            piece = self.socket.recv(1 << 20)
            if not piece:
                return False
            self.data += piece
        return True

    def versions(self, number: int) -> set[int]:
        """The versions of all layers, read to the end; none if the connection was closed."""
        size = ROWS * ROW_BYTES
        header = b"$%d\r\n" % size
        if not self.read(len(b"*6\r\n") + 2 * LAYERS * (len(header) + size + 2)):
            return set()
        found, position = set(), len(b"*6\r\n")
        for index in range(2 * LAYERS):
            layer, side = divmod(index, 2)
            position += len(header)
            raw = bytes(self.data[position : position + size])
            found.add(version_of(raw, number, side, layer, 0, ROWS))
            position += size + 2
        return found


def put(client, number, version):
    client.execute_command("KV.PREFIX.REGISTER", name_of(number), 64, "fp32")
    for layer in range(LAYERS):
        store(client, number, layer, (0, ROWS), version)


def replace(client):
    client.execute_command("KV.PREFIX.DROP", name_of(NUMBER))
    put(client, NUMBER, 2)


def evict(client):
    """Other prefixes take the room of this one."""
    for number in range(OTHER, OTHER + 6):
        put(client, number, 1)
    assert client.execute_command("KV.PREFIX.LOOKUP", name_of(NUMBER)) == b"MISS"


CHANGES = {
    "drop": lambda client: client.execute_command("KV.PREFIX.DROP", name_of(NUMBER)),
    "drop and store again": replace,
    "overwrite": lambda client: put(client, NUMBER, 2),
    "evict": evict,
}


@pytest.mark.parametrize(
    "change, same_worker",
    [("drop and store again", True), *((change, False) for change in CHANGES)],
)
def test_a_reader_gets_the_old_version_whole(change, same_worker, start_server) -> None:
    server = start_server("--workers", "2", "--max-bytes", "30mb")
    writer = connect(server.port)
    put(writer, NUMBER, 1)
    home = writer.info("workers")["worker_id"]
    others = []
    while True:
        others.append(reader := SlowReader(server.port))
        if (reader.worker() == home) is same_worker:
            break
    reader.ask(NUMBER)
    CHANGES[change](writer)
    put(writer, OTHER, 3)
    assert reader.versions(NUMBER) in ({1}, set())
    for other in others:
        other.socket.close()
    writer.close()
