"""What must not be in the sources: code made of data, and what a scanner takes for a danger."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "kernels", "storage", "server", "client")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "_pickle"}
CALLS = {"eval", "exec", "compile", "__import__"}


def dangers(text: str) -> set[str]:
    """Imports and calls in a source that turn data into code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & CALLS
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found |= {node.arg}
        elif (
            isinstance(node, ast.Attribute) and node.attr in ("loads", "load") and "yaml" in ast.unparse(node)
        ):
            found |= {"yaml"}
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_turns_data_into_code(folder: str) -> None:
    found = {path: dangers(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")}
    assert found and not {path: names for path, names in found.items() if names}


def test_the_reader_sees_them() -> None:
    text = "def f():\n    from pickle import loads\n    np.load(x, allow_pickle=True)\n    eval('1')\n"
    assert dangers(text) == {"pickle", "allow_pickle", "eval"}


def test_bandit_finds_nothing_of_medium_or_high_severity() -> None:
    command = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "-ll", *FOLDERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_error_of_a_module_is_raised_itself(folder: str) -> None:
    """It would gather the frames of every time, and all that these hold, until the process ends."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
        and any(isinstance(part, ast.Name) and part.id.isupper() for part in _raised(node.exc))
    ]
    assert not found


def _raised(node: ast.expr | None) -> list[ast.expr]:
    """What a `raise` may raise: of `a if b else c`, a and c."""
    if isinstance(node, ast.IfExp):
        return [*_raised(node.body), *_raised(node.orelse)]
    return [] if node is None else [node]
