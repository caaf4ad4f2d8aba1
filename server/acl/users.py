"""The users of a data directory: kept in a file that all its processes read.

The file has a line for each user, as ACL LIST shows them. Whoever changes users holds a lock meanwhile; the
other processes notice when they next look, at least once a second. Without the file there is one user,
`default`, who may do everything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .selector import RuleError
from .user import DEFAULT, User

FILE = "users.acl"
MODE = 0o600
EVERYTHING_ALLOWED = ("on", "allkeys", "allchannels", "allcommands")


class UsersError(Exception):
    """The file of users cannot be read or written; the text says why."""


class Users:
    """Who may connect.

    Args:
        directory: Where the file is.
        password: The password of the default user as long as there is no file; None: it needs none.
        on_removed: Called with each user that is no more, or is another tenant's.
        on_changed: Called when this process has changed the file.
        on_news: Called when this process knows of other users or rules than before.

    Raises:
        UsersError: The file cannot be read.
    """

    def __init__(
        self,
        directory: Path,
        password: str | None,
        on_removed: Callable[[User], None] = lambda user: None,
        on_changed: Callable[[], None] = lambda: None,
        on_news: Callable[[Users], None] = lambda users: None,
    ) -> None:
        self._path = directory / FILE
        self._on_removed = on_removed
        self._on_changed = on_changed
        self._on_news = on_news
        self._seen: tuple[int, int] | None = None
        self.default = User(name=DEFAULT)
        self.default.apply((*EVERYTHING_ALLOWED, "nopass"))
        self._users = {DEFAULT: self.default}
        if password is not None:
            self.default.apply(("resetpass", f">{password}"))
        self.look()

    def insist(self, password: str | None) -> None:
        """A server begins: the password it was given takes the place of the default user's in the file.

        Raises:
            UsersError: The file cannot be written.
        """
        if password is not None and self._path.exists():
            self.change(DEFAULT, ("resetpass", f">{password}"))

    def __iter__(self) -> Iterator[User]:
        return iter(sorted(self._users.values(), key=lambda user: user.name))

    def get(self, name: str) -> User | None:
        """The user of this name."""
        return self._users.get(name)

    def login(self, name: str, password: bytes) -> User | None:
        """The user of this name, if it may log in with this password."""
        user = self._users.get(name)
        return user if user is not None and user.accepts(password) else None

    def look(self) -> None:
        """Take over what other processes have changed. Raises `UsersError`."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsersError(f"{self._path}: {error.strerror}") from error
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp != self._seen:
            self._read()
            self._seen = stamp

    def change(self, name: str, rules: Sequence[str]) -> None:
        """Make or change a user, in all processes.

        Raises:
            RuleError: A rule is wrong; nothing changed.
            UsersError: The file cannot be written; nothing changed elsewhere.
        """
        with self._locked():
            user = self._users.get(name) or User(name=name)
            tenant = user.tenant
            user.apply(rules)
            self._users[name] = user
            self._write()
        self._on_changed()
        self._on_news(self)
        if user.tenant != tenant:
            self._on_removed(user)

    def remove(self, names: Sequence[str]) -> int:
        """Remove users in all processes; how many there were. Raises `UsersError`."""
        with self._locked():
            gone = [
                user for name in dict.fromkeys(names) if (user := self._users.pop(name, None)) is not None
            ]
            self._write()
        self._on_changed()
        self._on_news(self)
        for user in gone:
            self._on_removed(user)
        return len(gone)

    def quotas(self) -> dict[str, int]:
        """What tenants may have stored: the least that one of a tenant's users says."""
        found: dict[str, int] = {}
        for user in self._users.values():
            if user.max_bytes:
                found[user.tenant] = min(user.max_bytes, found.get(user.tenant, user.max_bytes))
        return found

    def _read(self) -> None:
        found: dict[str, User] = {DEFAULT: self.default}
        try:
            lines = self._path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        except OSError as error:
            raise UsersError(f"{self._path}: {error.strerror}") from error
        for number, line in enumerate(filter(None, lines), 1):
            try:
                user = _parse(line)
            except RuleError as error:
                raise UsersError(f"{self._path}, line {number}: {error}") from error
            found[user.name] = user
        gone = [user for name, user in self._users.items() if name not in found]
        for name, user in found.items():
            known = self._users.get(name)
            if known is not None and known is not user:
                gone += [known] if known.tenant != user.tenant else []
                known.become(user)
                found[name] = known
        self._users = found
        self._on_news(self)
        for user in gone:
            self._on_removed(user)

    def _write(self) -> None:
        text = "".join(f"{user.full_line()}\n" for user in self)
        partial = self._path.with_suffix(".tmp")
        try:
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
            with open(file, "w", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(self._path)
            found = self._path.stat()
        except OSError as error:
            raise UsersError(f"{self._path}: {error.strerror}") from error
        self._seen = (found.st_ino, found.st_mtime_ns)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all processes, and with the newest users."""
        try:
            file = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, MODE)
        except OSError as error:
            raise UsersError(f"{self._path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.look()
            yield
        finally:
            os.close(file)


def _parse(line: str) -> User:
    """A user from its line. Raises `RuleError`."""
    words = line.split(" ")
    if len(words) < 2 or words[0] != "user":
        raise RuleError("want: user <name> <rule> ...")
    user = User(name=words[1])
    user.apply(words[2:])
    return user
