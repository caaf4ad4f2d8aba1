"""Settings of the server, each declared once: flag, environment name, file key, CONFIG name and help.

Precedence: flags, then environment (`PIONKV_<NAME>`), then a TOML file, then the defaults below.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENVIRONMENT_PREFIX = "PIONKV_"
DURABILITIES = ("none", "everysec", "always")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("console", "json")
TIER_SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "s3", "file")

_UNITS = {"": 1, "k": 1000, "kb": 1 << 10, "m": 1000**2, "mb": 1 << 20, "g": 1000**3, "gb": 1 << 30}
_UNITS |= {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "t": 1000**4,
    "tb": 1 << 40,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"([0-9]+)\s*([a-z]*)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


class ConfigError(ValueError):
    """A setting is unknown or its value is not usable; the text names the setting."""


def parse_size(text: str) -> int:
    """Read a byte count as Redis writes them: `512mb` is 512 x 1024 x 1024, `512m` is 512 x 1000 x 1000."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"'{text}' is not a size such as 512mb")
    return int(match[1]) * _UNITS[match[2]]


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"'{text}' is not one of {', '.join(names)}")
        return text

    return parse


def _within(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text.strip()) is None:
            raise ValueError(f"'{text}' is not a whole number within {low}..{high}")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"{value} is not within {low}..{high}")
        return value

    return parse


def _tier_address(text: str) -> str:
    scheme = text.partition("://")[0]
    if "://" not in text or scheme not in TIER_SCHEMES:
        known = ", ".join(f"{each}://" for each in TIER_SCHEMES)
        raise ValueError(f"the address begins with none of {known}")
    return text


def _tier_prefix(text: str) -> str:
    if not text or not text.isprintable() or set(text) & set("{}"):
        raise ValueError(f"'{text}' is empty or has braces")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < float("inf"):
        raise ValueError(f"'{text}' is not a number of seconds")
    return value


def _setting(
    default: Any,
    help: str,
    parse: Callable[[str], Any],
    *,
    redis: str | None = None,
    secret: bool = False,
    live: bool = False,
) -> Any:
    """A field of `Settings`; a `live` one can be changed by CONFIG SET."""
    return field(
        default=default,
        repr=not secret,
        metadata={"help": help, "parse": parse, "redis": redis, "secret": secret, "live": live},
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. Sizes are bytes, times are seconds."""

    host: str = _setting("127.0.0.1", "address to listen on", str, redis="bind")
    port: int = _setting(
        1974, "TCP port without TLS; 0 picks a free one, -1: none", _within(-1, 65535), redis="port"
    )
    protected_mode: str = _setting(
        "yes",
        "as long as the default user needs no password, serve this machine alone: yes or no",
        _one_of(("yes", "no")),
        live=True,
    )
    tls_port: int = _setting(-1, "TCP port with TLS; 0 picks a free one, -1: none", _within(-1, 65535))
    tls_cert_file: Path | None = _setting(
        None, "the server's certificate and those up to its root (PEM), for the HTTP ports, too", Path
    )
    tls_key_file: Path | None = _setting(None, "the certificate's private key (PEM, no password)", Path)
    tls_ca_cert_file: Path | None = _setting(
        None, "certificates that clients' certificates are checked with (PEM)", Path
    )
    tls_auth_clients: str = _setting(
        "yes",
        "whether TLS clients need a certificate: yes, no, or optional (checked where it is given)",
        _one_of(("yes", "no", "optional")),
    )
    binary_port: int = _setting(
        -1,
        "TCP port of the binary lane, by custom the port and 1; with TLS where tls_port is the only port; "
        "0 picks a free one, -1: none",
        _within(-1, 65535),
    )
    unix_socket: Path | None = _setting(
        None, "also listen on this Unix socket (mode 0700)", Path, redis="unixsocket"
    )
    data_dir: Path = _setting(
        Path("pionkv-data"), "directory of the catalog and the pages", Path, redis="dir"
    )
    max_bytes: int = _setting(
        8 << 30,
        "byte budget of all stored rows, e.g. 8gb; prefixes are evicted above it",
        parse_size,
        redis="maxmemory",
        live=True,
    )
    attend_bytes: int = _setting(
        1 << 30,
        "part of the byte budget for rows kept ready for attention, all workers together; at most a quarter "
        "of max-bytes; 0: none is kept, rows are decoded for each query",
        parse_size,
        live=True,
    )
    attend_cold: str = _setting(
        "load",
        "a query on rows that are not kept ready: load (makes them so) or refuse (COLDMISS)",
        _one_of(("load", "refuse")),
        live=True,
    )
    durability: str = _setting(
        "everysec",
        "when data reach the disk: none, everysec or always",
        _one_of(DURABILITIES),
        redis="appendfsync",
    )
    password: str | None = _setting(
        None,
        "password that clients must give (better set as PIONKV_PASSWORD)",
        str,
        redis="requirepass",
        secret=True,
        live=True,
    )
    max_clients: int = _setting(
        10_000, "connections served at once", _within(1, 1_000_000), redis="maxclients", live=True
    )
    max_bulk_bytes: int = _setting(
        512 << 20, "largest single argument, e.g. 512mb", parse_size, redis="proto-max-bulk-len"
    )
    workers: int = _setting(
        1, "processes that serve; one of more than one is started again when it dies", _within(1, 64)
    )
    threads: int = _setting(
        2, "threads that pack and unpack rows, per worker", _within(1, 64), redis="io-threads"
    )
    backlog: int = _setting(511, "connections waiting to be accepted", _within(1, 65535), redis="tcp-backlog")
    stop_seconds: float = _setting(
        10.0,
        "time that commands in flight get at a graceful stop",
        _seconds,
        redis="shutdown-timeout",
        live=True,
    )
    timeout: int = _setting(
        0, "seconds after which an idle connection is closed; 0: never", _within(0, 1 << 31), live=True
    )
    slowlog_log_slower_than: int = _setting(
        10_000,
        "microseconds from which on SLOWLOG lists a command; -1: none",
        _within(-1, 1 << 53),
        live=True,
    )
    slowlog_max_len: int = _setting(128, "slow commands that SLOWLOG keeps", _within(0, 1_000_000), live=True)
    latency_monitor_threshold: int = _setting(
        0, "milliseconds from which on LATENCY records a spike; 0: none", _within(0, 1 << 31), live=True
    )
    http_port: int = _setting(
        -1,
        "TCP port of the page that shows the server, and of its metrics; 0 picks one, -1: none",
        _within(-1, 65535),
    )
    metrics_port: int = _setting(
        -1, "TCP port of the metrics for Prometheus alone; 0 picks one, -1: none", _within(-1, 65535)
    )
    tier: str | None = _setting(
        None,
        "address of a tier that several servers share: redis://, rediss://, with +cluster, s3://, file://",
        _tier_address,
        secret=True,
    )
    tier_prefix: str = _setting("pionkv:", "what names of the tier begin with, without braces", _tier_prefix)
    tier_deadline: int = _setting(
        100, "milliseconds within which the tier must answer a small question", _within(1, 60_000)
    )
    tier_check: int = _setting(
        1000,
        "milliseconds for which a prefix is served before the tier is asked whether it has another version",
        _within(0, 3_600_000),
    )
    tier_queue_bytes: int = _setting(
        1 << 30, "bytes of prefixes that may wait to be written to the tier, per worker", parse_size
    )
    log_level: str = _setting(
        "info", "least severe message that is logged", _one_of(LOG_LEVELS), redis="loglevel"
    )
    log_format: str = _setting("console", "console or json, on standard error", _one_of(LOG_FORMATS))

    file: Path | None = None
    """Where some of them were read from; no setting itself."""

    @property
    def binary_over_tls(self) -> bool:
        """Whether the binary lane speaks TLS: where nothing else over TCP goes without."""
        return self.port < 0 <= self.tls_port

    def printable(self) -> dict[str, str]:
        """Every setting as text, secrets masked."""
        return {name: self.text_of(name) for name in SETTINGS}

    def text_of(self, name: str) -> str:
        """One setting as text. A secret reads `***` when it is set."""
        value = getattr(self, name)
        if value is None:
            return ""
        return "***" if SETTINGS[name].metadata["secret"] else str(value)


SETTINGS: Mapping[str, dataclasses.Field[Any]] = {
    item.name: item for item in dataclasses.fields(Settings) if "parse" in item.metadata
}


def load(
    flags: Mapping[str, str | None], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Merge flags over environment over file over defaults.

    Args:
        flags: Setting name to text; None means not given.
        environment: The process environment (`os.environ` in production).
        file: A TOML file with setting names as top-level keys, `-` and `_` alike.

    Raises:
        ConfigError: A name is unknown, a value is not usable, or the file cannot be read.
    """
    merged: dict[str, str] = {}
    if file is not None:
        merged.update(_read_file(file))
    for name in SETTINGS:
        if (text := environment.get(ENVIRONMENT_PREFIX + name.upper())) is not None:
            merged[name] = text
    merged.update({name: text for name, text in flags.items() if text is not None})
    values = {name: _parse(name, text) for name, text in merged.items()}
    return Settings(**values, file=None if file is None else file.absolute())


def changed(settings: Settings, texts: Mapping[str, str]) -> Settings:
    """The settings with other values for some of them; an empty password is none.

    Raises:
        ConfigError: A name is unknown or a value is not usable.
    """
    values = {name: _parse(name, text) for name, text in texts.items()}
    if values.get("password") == "":
        values["password"] = None
    return dataclasses.replace(settings, **values)


def _parse(name: str, text: str) -> Any:
    if name not in SETTINGS:
        raise ConfigError(f"unknown setting '{name}'")
    try:
        return SETTINGS[name].metadata["parse"](text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _read_file(file: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    return {key.replace("-", "_"): _text_of(value) for key, value in table.items()}


def _text_of(value: object) -> str:
    """A value of the file as a flag would say it."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
