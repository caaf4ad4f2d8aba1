"""The pages of settings and of metrics of the documentation, written from their declarations."""

from __future__ import annotations

from .config import ENVIRONMENT_PREFIX, SETTINGS
from .web.families import GROUPS

INTRODUCTION = f"""# Settings

Made from `server/config.py` by `make docs`.

Every setting can be given in three ways, the first of which wins:

| way | how `max-bytes` is written |
|---|---|
| flag | `pionkv serve --max-bytes 8gb` |
| environment | `{ENVIRONMENT_PREFIX}MAX_BYTES=8gb` |
| file | `max-bytes = "8gb"` in a TOML file that `--config` names |

`pionkv serve --print-config` prints what is in force and ends. A name that is not known, or a value that
cannot be used, ends the start with a line that says which. Sizes are bytes, or have a unit as in Redis:
`512mb` is 512 × 1024 × 1024 bytes, `512m` 512 × 1000 × 1000.

`CONFIG GET` knows every setting by the name below, and by Redis' name where there is one. `CONFIG SET`
changes those that are marked *live* in all workers, until the server stops. A password is shown as `***`.
"""

METRICS_INTRODUCTION = """# Metrics

Made from `server/web/families.py` by `make docs`.

Under `/metrics` of `--http-port` and of `--metrics-port`, in the format of Prometheus
([how](observability.md#metrics)). Numbers are those of all workers together, at most a tenth of a second
old, but for the loop lag, which is that of the worker that answers. Counters begin at 0 when the server
starts. The metrics of the tier are there with `--tier` only.
"""

HEADINGS = ("setting", "default", "live", "Redis' name", "what it is")


def settings_page() -> str:
    """All settings as one Markdown page, in the order of their declaration."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, SETTINGS)]
    return INTRODUCTION + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(name: str) -> tuple[str, ...]:
    item = SETTINGS[name]
    redis = item.metadata["redis"]
    return (
        f"`{name.replace('_', '-')}`",
        "" if item.default is None else f"`{item.default}`",
        "live" if item.metadata["live"] else "",
        f"`{redis}`" if redis else "",
        item.metadata["help"],
    )


def metrics_page() -> str:
    """All metrics as one Markdown page, a table for each group."""
    parts = [METRICS_INTRODUCTION]
    for title, families in GROUPS.items():
        parts.append(f"\n## {title}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n")
        for name, family in families.items():
            labels = ", ".join(f"`{label}`" for label in family.labels)
            parts.append(f"| `{family.exported(name)}` | {family.kind} | {labels} | {family.help} |\n")
    return "".join(parts)
