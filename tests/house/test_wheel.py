"""The wheel and the sdist hold what they should, and a server runs from an installed wheel alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import redis
from server_process import ServerProcess

ROOT = Path(__file__).parents[2]
FOLDERS = ("protocol", "kernels", "storage", "server", "client")
TOP = ("pyproject.toml", "README.md", "LICENSE")
LEFT_BY_RUNS = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from it; the sources stay as they are."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for name in TOP:
        shutil.copy(ROOT / name, source)
    for name in (*FOLDERS, "tests", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=LEFT_BY_RUNS)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "absent from the `packages`" not in done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """The `bin` of an environment with the wheel and the libraries of this one, but not these sources."""
    environment = built / "environment"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=120)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, timeout=120)
    # A path file within the other environment, such as that of an editable install, is not followed.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def files_of(folder: str) -> set[str]:
    """The files of a folder of the sources, as paths from the top."""
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def test_both_hold_every_file_of_the_packages_and_no_test(built: Path) -> None:
    wanted = set().union(*(files_of(folder) for folder in FOLDERS))
    for kind in ("py.typed", "kernels/gpu/metal.inc", "server/web/static/app.js", "client/demo/handbook.txt"):
        assert any(name.endswith(kind) for name in wanted), kind
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert in_wheel == {f"pionkv/{name}" for name in wanted}
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in in_sdist if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert in_sdist - made == wanted | set(TOP)


def test_metadata(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_string(archive.read(name).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["Name"] == "pionkv" and metadata["Version"] == project["version"]
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    needs = metadata.get_all("Requires-Dist")
    assert 'mlx[cpu]>=0.30; sys_platform == "linux" and extra == "mlx"' in needs
    assert 'mlx>=0.30; sys_platform == "darwin" and extra == "mlx"' in needs
    assert 'mlx[cpu]>=0.30; sys_platform == "linux" and extra == "cpu"' in needs
    assert 'mlx>=0.30; sys_platform == "darwin" and extra == "metal"' in needs
    assert not any(need.startswith("mlx") for need in needs if "extra ==" not in need)
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_a_server_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = installed / "pionkv"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert run(script, "--version") == f"pionkv {version}\n"
    assert "--data-dir" in run(script, "serve", "--help")
    where = "import json, pionkv.server as s, pionkv.client as c; print(json.dumps([s.__file__, c.__file__]))"
    for file in json.loads(run(installed / "python", "-c", where)):
        assert file.startswith(str(installed.parent)), file
    server = ServerProcess(tmp_path / "data", "--http-port", "0", program=(str(script), "serve"))
    server.start()
    try:
        with redis.Redis(port=server.port) as client:
            assert client.set("key", "value") and client.get("key") == b"value"
            client.execute_command("KV.PREFIX.REGISTER", "doc", 32, "int8")
            client.execute_command("V.STOREBATCH", "doc_pk", 0, 0, 2, bytes(256))
            assert client.execute_command("V.FETCH", "doc_pk", 0, "RANGE", 0, 2) == bytes(256)
            page = f"http://127.0.0.1:{client.info('server')['http_port']}/"
        for name in ("", "app.js", "style.css", "metrics"):
            with urllib.request.urlopen(page + name, timeout=30) as answer:
                assert answer.status == 200 and answer.read()
        assert json.loads(run(script, "ls", "--port", str(server.port), "--json"))[0]["namespace"] == "doc"
    finally:
        server.close()
