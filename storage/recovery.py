"""What the first process on a data directory sees to: did the machine crash, and what is left?

The file `running` names the boot and the durability under which the directory is open; the last process to
close it removes the file. Found with another boot's name, it says that the machine went down while the
directory was open.
"""

from __future__ import annotations

import os
from pathlib import Path

from .catalog import Writer
from .checkpoint import FILE, roll_back
from .directory import Directory
from .errors import DirectoryError
from .files import remove_durably, write_durably
from .keyspace.access import drop_values
from .options import Durability
from .page import page_path
from .quarantine import units_of
from .records import SessionRecord, StateRecord
from .units import drop_unit

_RUNNING = "running"
_GENERATIONS = 1 << 32


def recover(directory: Directory, durability: Durability, boot: str) -> bool:
    """Bring a directory that nobody has open into a usable state, and mark it as running.

    Args:
        directory: The data directory.
        durability: What the coming run promises.
        boot: Name of this boot.

    Returns:
        Whether the catalog was rolled back to a checkpoint.
    """
    rolled_back = False
    if (marker := read_marker(directory.path)) is not None:
        last_boot, last = marker
        if last_boot != boot and last is not Durability.ALWAYS:
            rolled_back = last is Durability.EVERYSEC and _roll_back(directory)
            if not rolled_back:
                _empty(directory)
    if durability is not Durability.EVERYSEC:
        # A checkpoint holds only while it is pinned, and only this durability pins.
        remove_durably(directory.path / FILE)
    write_durably(directory.path / _RUNNING, f"{boot} {durability.value}\n".encode())
    return rolled_back


def read_marker(path: Path) -> tuple[str, Durability] | None:
    """The boot and the durability under which a directory is open, or was when its last process ended."""
    try:
        boot, durability = (path / _RUNNING).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    return boot, Durability(durability)


def join(directory: Directory, durability: Durability) -> None:
    """Check that a directory that others have open is used as they use it.

    Raises:
        DirectoryError: They promise another durability.
    """
    marker = read_marker(directory.path)
    if marker is not None and marker[1] is not durability:
        reason = f"open with durability {marker[1].value}, asked for {durability.value}"
        raise DirectoryError(str(directory.path), reason)


def mark_closed(directory: Directory) -> None:
    """The last process has synced and closed: a crash from now on costs nothing."""
    remove_durably(directory.path / _RUNNING)


def settle(writer: Writer, pages: Path) -> int:
    """After a roll-back: let no generation repeat, and drop units whose page files went in the meantime.

    Returns:
        The number of units dropped.
    """
    writer.totals.generation_base += _GENERATIONS
    keys = (key for key, _ in writer.scan("pages"))
    numbers = (int.from_bytes(key, "big") for key in keys)
    gone = {number for number in numbers if not os.path.exists(page_path(pages, number))}
    if not gone:
        return 0
    drop_values(writer, gone)
    units = {
        session.unit
        for session in (SessionRecord.decode(raw) for _, raw in writer.scan("sessions"))
        if not gone.isdisjoint(session.pages)
    }
    uids = {key[:8] for key, raw in writer.scan("states") if StateRecord.decode(raw).page in gone}
    units |= units_of(writer, uids)
    for unit in units:
        record = writer.namespace(unit)
        if record is not None:
            drop_unit(writer, record)
    return len(units)


def _roll_back(directory: Directory) -> bool:
    data = directory.catalog / "data.mdb"
    if not data.exists() or not roll_back(directory.path, data):
        return False
    (directory.catalog / "lock.mdb").unlink(missing_ok=True)
    return True


def _empty(directory: Directory) -> None:
    for folder in (directory.catalog, directory.pages):
        for path in folder.iterdir():
            path.unlink()
