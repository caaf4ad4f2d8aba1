"""The page of compared commands says what is there."""

from __future__ import annotations

import json

import pytest
import results
import table


def test_the_page_is_up_to_date() -> None:
    """`python tests/conformance/table.py` writes it."""
    assert table.PAGE.read_text(encoding="utf-8") == table.page()


def test_a_command_without_a_row_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(table, "COMMANDS", dict(table.COMMANDS) | {"V.NEW": table.COMMANDS["V.DROP"]})
    with pytest.raises(table.Unfinished, match="V.NEW"):
        table.page()


def test_a_test_that_does_not_exist_is_noticed(monkeypatch, tmp_path) -> None:
    changed = tmp_path / "compared.toml"
    text = table.DATA.read_text(encoding="utf-8")
    changed.write_text(text.replace("::test_owner", "::test_gone"), encoding="utf-8")
    monkeypatch.setattr(table, "DATA", changed)
    with pytest.raises(table.Unfinished, match="test_gone"):
        table.page()


def test_the_page_of_real_clients_shows_the_last_run() -> None:
    """`python tests/conformance` writes both."""
    record = json.loads(results.DATA.read_text(encoding="utf-8"))
    assert results.PAGE.read_text(encoding="utf-8") == results.page(record)
    assert all(row["passed"] is not False for row in record["rows"])
