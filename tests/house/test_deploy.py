"""What deploy/ ships fits the server: settings that exist, ports that agree, files that parse."""

from __future__ import annotations

import configparser
import plistlib
import re
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


def test_commands_have_the_flags_they_use() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd/pionkv.service")
    command = unit["Service"]["ExecStart"].split()
    agent = plistlib.loads((DEPLOY / "launchd/io.pionkv.server.plist").read_bytes())["ProgramArguments"]
    for words in (command, agent):
        assert words[1] == "serve"
        flags = {word for word in words if word.startswith("--")}
        assert flags <= {"--config", *(f"--{name.replace('_', '-')}" for name in SETTINGS)}
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().stop_seconds
