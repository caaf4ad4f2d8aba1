"""CONFIG REWRITE: the settings that CONFIG SET has changed, written into the file they were read from."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

from .config import SETTINGS, ConfigError, Settings, load

_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^#\n]*?)"""


def rewrite(settings: Settings) -> list[str]:
    """Bring the file up to date; the settings that were written.

    Lines of other settings, comments and order stay. Only what can be changed while the server runs is
    written, and no password: that of the default user is kept with the users.

    Raises:
        ConfigError: There is no file, or it cannot be read or written; it is as it was.
    """
    file = settings.file
    if file is None:
        raise ConfigError("The server is running without a config file")
    stored = load({}, {}, file)
    changed = [
        name
        for name, item in SETTINGS.items()
        if item.metadata["live"]
        and not item.metadata["secret"]
        and getattr(settings, name) != getattr(stored, name)
    ]
    try:
        before = file.read_text(encoding="utf-8")
        text = before
        for name in changed:
            text = _with(text, name, getattr(settings, name))
        _check(before, text, {name: getattr(settings, name) for name in changed})
        _replace(file, text)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    return changed


def _with(text: str, name: str, value: str | int | float) -> str:
    """The text with another value for a setting: in its line, or in a new one at the end."""
    key = re.escape(name).replace("_", "[-_]")
    line = re.compile(rf"^([ \t]*{key}[ \t]*=[ \t]*){_VALUE}([ \t]*(?:#.*)?)$", re.MULTILINE)
    shown = json.dumps(value)
    changed, count = line.subn(lambda found: f"{found[1]}{shown}{found[3]}", text)
    if count:
        return changed
    end = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{end}{name} = {shown}\n"


def _check(before: str, after: str, changes: dict[str, str | int | float]) -> None:
    """See that nothing but these settings has another value: TOML has more ways to write than lines."""

    def values(text: str) -> dict[str, object]:
        return {key.replace("-", "_"): value for key, value in tomllib.loads(text).items()}

    if values(after) != values(before) | changes:
        raise ConfigError("the file is written in a way that cannot be changed line by line")


def _replace(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        partial.touch(mode=file.stat().st_mode & 0o777)
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
