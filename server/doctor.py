"""`pionkv doctor`: examines a data directory, says in plain words what is wrong, repairs what is safe."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

WRONG, CANNOT = 1, 2
REPAIRS = 2
"""What a recovery brings to light is repaired in the second."""
STATES = {
    "stopped": "closed in good order",
    "killed": "not open; the last process was killed, which loses nothing",
    "running": "open in a server",
    "crashed": "not open; the machine went down while it was",
}


def doctor(
    data_dir: Annotated[Path, typer.Argument(help="The data directory.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what is safe; no server may have the directory open.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Examine a data directory, and repair it. Also beside a running server, which it does not disturb.

    Every record and every stored byte is read. Exit status: 0 nothing is wrong, or all was repaired; 1
    something is wrong; 2 the directory cannot be examined, or not repaired because a server has it open.
    """
    try:
        # In a process of its own: a damaged catalog can take whoever reads it down.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            report = pool.submit(examined, data_dir, repair).result()
    except BrokenProcessPool:
        report = {"path": str(data_dir), "error": "reading the catalog ends the process: it is damaged"}
    typer.echo(json.dumps(report, indent=2) if as_json else _text(report))
    raise typer.Exit(status_of(report))


def examined(path: Path, mend: bool) -> dict[str, Any]:
    """Examine a directory, and repair it if asked, then examine it again; all of it as JSON has it."""
    from pionkv.storage import StorageError
    from pionkv.storage.examine import examine, repair

    report: dict[str, Any] = {"path": str(path.absolute())}
    try:
        found = left = examine(path)
        for _ in range(REPAIRS if mend else 0):
            if left.findings:
                repair(left)
                left = examine(path)
    except StorageError as error:
        return report | {"error": str(error)}
    remaining = {(finding.kind, finding.subject) for finding in left.findings}
    first = {(finding.kind, finding.subject) for finding in found.findings}
    everything = [
        *found.findings,
        *(finding for finding in left.findings if (finding.kind, finding.subject) not in first),
    ]
    findings = [
        {
            "kind": finding.kind.value,
            "subject": finding.subject,
            "text": finding.text,
            "repair": finding.repair,
            "repaired": (finding.kind, finding.subject) not in remaining,
        }
        for finding in everything
    ]
    return report | {"state": found.state.value, "counts": dict(left.counts), "findings": findings}


def status_of(report: dict[str, Any]) -> int:
    """The exit status that a report makes."""
    if "error" in report:
        return CANNOT
    return WRONG if any(not finding["repaired"] for finding in report["findings"]) else 0


def _text(report: dict[str, Any]) -> str:
    lines = [report["path"]]
    if "error" in report:
        return "\n".join([*lines, f"cannot be examined or repaired: {report['error']}"])
    lines.append(STATES[report["state"]])
    lines += [f"  {name}: {count}" for name, count in report["counts"].items()]
    for finding in report["findings"]:
        lines.append(f"{finding['kind']}: {finding['subject']}: {finding['text']}")
        if finding["repaired"]:
            lines.append("  repaired")
        elif finding["repair"]:
            lines.append(f"  --repair {finding['repair']}")
        else:
            lines.append("  nothing safe can be done about it")
    wrong = sum(not finding["repaired"] for finding in report["findings"])
    lines.append(f"{wrong} wrong" if wrong else "nothing is wrong")
    return "\n".join(lines)
