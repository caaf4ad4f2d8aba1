"""One worker of several: a process that the supervisor starts, and that ends with it.

    python -m pionkv.server.worker <control> <lifeline>

Both are inherited file handles: the control channel, and a pipe that ends when the supervisor does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import threading
from contextlib import closing
from pathlib import Path

import uvloop
from pionkv.storage import StorageError, Store

from . import control as channel
from . import logs
from .acl.users import UsersError
from .app import App, own_process, store_options
from .config import load
from .control import Control, Setup
from .counters import Counters
from .listening import EXIT_FAILURE
from .place import Place
from .tls import TlsError


async def _serve(end: socket.socket) -> None:
    control = await Control.open(end)
    message = await control.receive()
    if message is None:
        return
    setup = Setup(**message[1])
    settings = dataclasses.replace(
        load(setup.settings, {}), file=None if setup.file is None else Path(setup.file)
    )
    logs.configure(settings.log_level, settings.log_format, worker=setup.number)
    counters = Counters(setup.counters, settings.workers)
    place = Place(
        setup.number,
        settings.workers,
        setup.lives,
        setup.run_id,
        setup.started_at,
        counters,
        control.relay,
    )
    with closing(Store.open(settings.data_dir, store_options(settings, setup.number))) as store:
        app = App(settings, store, place, request_stop=lambda: control.send(channel.STOP))
        own_process(app)
        app.loop.add_signal_handler(signal.SIGTERM, app.stop)
        await app.accept(
            _sockets(setup.tcp),
            _sockets(setup.tls),
            _sockets(setup.binary),
            None if setup.unix is None else socket.socket(fileno=setup.unix),
        )
        control.send(channel.READY)
        obeying = asyncio.ensure_future(_obey(control, app))
        await app.serve()
        obeying.cancel()


def _sockets(handles: list[int]) -> list[socket.socket]:
    return [socket.socket(fileno=handle) for handle in handles]


async def _obey(control: Control, app: App) -> None:
    """Do what the supervisor and the other workers say."""
    while (message := await control.receive()) is not None:
        match message:
            case (channel.STOP,):
                app.stop()
            case (channel.HURRY,):
                app.hurry()
            case (channel.PUBLISH, name, text):
                app.service.channels.deliver(name, text)
            case (channel.CONFIGURE, texts):
                app.service.take_over(texts)
            case (channel.RESET_STATISTICS,):
                app.service.forget_statistics()
            case (channel.USERS,):
                app.look_at_users()
            case (channel.ASK, asker, number, question, args):
                app.service.asking.answer(asker, number, question, args)
            case (channel.ANSWER, asker, number, answer):
                app.service.asking.answered(asker, number, answer)
            case (channel.WATCHED, line):
                app.service.monitors.deliver(line)


def _end_with(lifeline: int) -> None:
    """End at once when the supervisor is gone, whatever the event loop is doing."""
    os.read(lifeline, 1)
    os._exit(EXIT_FAILURE)


def main(arguments: list[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    control, lifeline = map(int, arguments)
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(_serve(socket.socket(fileno=control)))
    except (StorageError, TlsError, UsersError, OSError) as error:
        print(f"pionkv: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
