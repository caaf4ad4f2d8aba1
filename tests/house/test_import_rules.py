"""The import rules of the house, checked by reading the sources."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "protocol": set(),
    "kernels": set(),
    "storage": {"kernels"},
    "server": {"protocol", "storage", "kernels"},
    "client": {"protocol", "kernels"},
}
FORBIDDEN_LIBRARIES = {
    "protocol": {"asyncio", "socket", "ssl", "selectors", "numpy", "mlx", "uvloop"},
    "kernels": {"asyncio", "socket", "redis", "uvloop", "lmdb"},
    "storage": {"asyncio", "socket", "redis", "hiredis", "uvloop", "mlx"},
    "server": {"mlx", "mlx_lm", "obstore", "redis"},
    "client": {"lmdb", "uvloop"},
}

MAY_USE = {"server/tier": {"redis", "obstore"}}
"""Folders that may use what the folder above them may not."""


def imported_modules(path: Path, root: Path = ROOT) -> set[str]:
    """Absolute dotted names of everything the file imports, at any depth of nesting."""
    package = ("pionkv", *path.relative_to(root).parts[:-1])
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            names.add(stem)
            if stem in {"pionkv", ""}:
                names.update(f"pionkv.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_folder_keeps_its_import_rules(folder: str) -> None:
    sources = sorted((ROOT / folder).rglob("*.py"))
    assert sources, f"{folder}/ holds no sources"
    broken = []
    for path in sources:
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[0] == "pionkv" and len(parts) > 1 and parts[1] not in MAY_IMPORT[folder] | {folder}:
                broken.append(f"{path.relative_to(ROOT)} imports {name}")
            allowed = MAY_USE.get(str(path.relative_to(ROOT).parent), set())
            if parts[0] in FORBIDDEN_LIBRARIES[folder] - allowed:
                broken.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not broken, broken


def test_the_rule_reader_sees_relative_and_nested_imports(tmp_path: Path) -> None:
    source = tmp_path / "storage" / "deep" / "x.py"
    source.parent.mkdir(parents=True)
    source.write_text("def f():\n    from ...server import app\n    from .. import y\n    import socket.x\n")
    assert imported_modules(source, tmp_path) == {"pionkv.server", "pionkv.storage", "socket.x"}
