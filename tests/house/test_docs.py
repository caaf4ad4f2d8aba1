"""Pages that are made from the code say what the code says."""

import re
import sys
from dataclasses import asdict
from pathlib import Path

from pionkv.client.pages import client_page
from pionkv.protocol.limits import DEFAULT_LIMITS, KIB, MIB
from pionkv.protocol.pages import command_page
from pionkv.protocol.table import COMMANDS
from pionkv.server.pages import metrics_page, settings_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path += [str(ROOT / "tests" / "benchmarks"), str(ROOT / "tests" / "faults")]

import faults_page  # noqa: E402
from tables import PAGE, charts, results_page, with_table  # noqa: E402


def test_the_command_page_is_the_command_table() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert page == command_page(COMMANDS.values()), "run: make docs"


def test_the_settings_page_is_the_settings() -> None:
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == settings_page(), "run: make docs"


def test_the_metrics_page_is_the_metrics() -> None:
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == metrics_page(), "run: make docs"


def test_the_page_of_the_client_is_its_docstrings() -> None:
    assert (DOCS / "client-interface.md").read_text(encoding="utf-8") == client_page(), "run: make docs"


def test_the_readme_has_the_formats_and_figures_of_the_code_and_the_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == with_table(text), "run: make docs"


def test_the_benchmark_page_shows_the_results() -> None:
    pages = {PAGE: results_page(), **charts()}
    assert {path: path.read_text(encoding="utf-8") for path in pages} == pages, "run: make docs"


def test_the_page_of_faults_has_the_figures_of_its_result() -> None:
    text = faults_page.PAGE.read_text(encoding="utf-8")
    assert text == faults_page.with_table(text), "run: make docs"


def test_the_site_has_every_page_once() -> None:
    config = (DOCS / "website" / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"[ :]([\w/-]+\.md)$", config, re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert not re.search(r"^(<{7}|={7}|>{7})", config, re.MULTILINE)


def test_the_limits_page_has_the_limits_of_the_wire() -> None:
    page = (DOCS / "limits.md").read_text(encoding="utf-8")
    for name, limit in asdict(DEFAULT_LIMITS).items():
        if name != "reply_depth":  # what a client accepts
            shown = f"{limit // MIB} MiB" if limit % MIB == 0 and "bytes" in name else f"{limit // KIB} KiB"
            assert f"{limit:,}" in page or ("bytes" in name and shown in page), (name, limit)
