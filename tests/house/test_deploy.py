"""What deploy/ ships fits the server: settings that exist, ports that agree, files that parse."""

from __future__ import annotations

import configparser
import plistlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from pionkv.server.config import SETTINGS, Settings, load

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXTS = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".json")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = {name.lower() for name in re.findall(r"\bPIONKV_([A-Z_]+)\b", text)}
    assert named <= set(SETTINGS), path


def test_the_image_listens_where_the_others_look() -> None:
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    environment = dict(re.findall(r"(PIONKV_[A-Z_]+)=(\S+)", image))
    settings = load({}, environment)
    assert settings.host == "0.0.0.0" and settings.log_format == "json"
    exposed = {int(port) for port in re.search(r"EXPOSE ([\d ]+)", image)[1].split()}
    assert exposed == {settings.port, settings.metrics_port}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert compose["services"]["pionkv"]["ports"] == [f"{settings.port}:{settings.port}"]
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": [f"pionkv:{settings.metrics_port}"]}]
    for source in compose["configs"].values():
        if "file" in source:
            assert (DEPLOY / source["file"]).is_file()
        elif "content" in source:
            assert yaml.safe_load(source["content"])["apiVersion"] == 1
    service, workload = yaml.safe_load_all((DEPLOY / "kubernetes/pionkv.yaml").read_text(encoding="utf-8"))
    assert {port["port"] for port in service["spec"]["ports"]} == exposed
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert {port["containerPort"] for port in container["ports"]} == exposed
    given = {item["name"].removeprefix("PIONKV_").lower(): item.get("value") for item in container["env"]}
    assert load({name: text for name, text in given.items() if text}, {}).workers == 4


def test_the_servers_of_a_tier_name_its_shards() -> None:
    compose = yaml.safe_load((DEPLOY / "compose-tier.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    shards = [name for name in services if name.startswith("shard-")]
    assert len(shards) == 3
    servers = [service for service in services.values() if "build" in service]
    assert len(servers) == 2 and len({service["ports"][0] for service in servers}) == 2
    for service in servers:
        given = {name.removeprefix("PIONKV_").lower(): text for name, text in service["environment"].items()}
        address = load({"tier": given["tier"]}, {}).tier
        assert address is not None and all(f"{shard}:6379" in address for shard in shards)
        assert "cluster" in service["depends_on"]
    for shard in shards:
        script = services[shard]["command"][-1]
        assert "--cluster-enabled yes" in script and services[shard]["hostname"] == shard
        # A cluster that prefers names and has none says `?` to whoever asks where a slot is.
        assert ("endpoint-type hostname" in script) == ("--cluster-announce-hostname" in script)


def test_the_shards_of_kubernetes_are_those_that_make_the_cluster() -> None:
    text = (DEPLOY / "kubernetes/pionkv-tier.yaml").read_text(encoding="utf-8")
    service, shards, job = yaml.safe_load_all(text)
    assert [each["kind"] for each in (service, shards, job)] == ["Service", "StatefulSet", "Job"]
    assert service["metadata"]["name"] == shards["spec"]["serviceName"] and shards["spec"]["replicas"] == 3
    script = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "for number in 0 1 2" in script and "valkey-$number.valkey" in script
    address = re.search(r"tier=(\S+)", text)[1]
    assert load({"tier": address}, {}).tier == address
    for pod in (shards["spec"]["template"]["spec"], job["spec"]["template"]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert (
                container["securityContext"]["readOnlyRootFilesystem"] and "limits" in container["resources"]
            )


def test_commands_have_the_flags_they_use() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd/pionkv.service")
    command = unit["Service"]["ExecStart"].split()
    agent = plistlib.loads((DEPLOY / "launchd/io.pionkv.server.plist").read_bytes())["ProgramArguments"]
    formula = (DEPLOY / "homebrew/pionkv.rb").read_text(encoding="utf-8")
    brewed = re.findall(r'"([^"]+)"', re.search(r"run \[opt_bin/(.*)\]", formula)[1])
    for words in (command, agent, brewed):
        assert words[1] == "serve"
        flags = {word for word in words if word.startswith("--")}
        assert flags <= {"--config", *(f"--{name.replace('_', '-')}" for name in SETTINGS)}
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().stop_seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd checks its own units")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """But for the program, which is not installed here."""
    text = (DEPLOY / "systemd/pionkv.service").read_text(encoding="utf-8")
    unit = tmp_path / "pionkv.service"
    unit.write_text(text.replace("/opt/pionkv/bin/pionkv", "/bin/echo"), encoding="utf-8")
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")
