"""Every relative link, anchor and path that the documentation names leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
MACHINE = re.compile(r"/\w[\w./-]*/(?:\.venv|site-packages)/|/(?:home|root|Users)/\w")
SOURCE = re.compile(r"`((?:protocol|kernels|storage|server|client|tests|deploy|docs)/[\w./-]+)`")


def prose(page: Path) -> str:
    """A page without code."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site's builder make it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {anchor(heading) for heading in HEADING.findall(text)}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists() or (fragment and fragment not in anchors(aim)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sources_that_are_named_exist(page: Path) -> None:
    named = SOURCE.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_can_be_reached_from_the_first() -> None:
    seen: set[Path] = set()
    ahead = [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        targets = (target.partition("#")[0] for target in LINK.findall(prose(page)))
        ahead += {
            aim
            for target in targets
            if target.endswith(".md") and (aim := (page.parent / target).resolve()) not in seen
        }
    assert set(PAGES[1:]) <= seen


def test_nothing_names_the_machine_it_was_made_on() -> None:
    kinds = {".md", ".svg", ".json", ".yml"}
    files = [path for path in (ROOT / "README.md", *DOCS.rglob("*")) if path.suffix in kinds]
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    assert len(files) > 40
    assert [name for name, text in texts.items() if MACHINE.search(text)] == []


def test_the_site_lists_every_page() -> None:
    site = (DOCS / "website" / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", site, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES[1:])


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A b-c: `D` (e)\n[x](#a-b-c-d-e) [y](#z) [z](gone.md) `[no](link)` [out](https://x.y/)\n"
    )
    assert broken(page) == ["#z", "gone.md"]
