"""`pionkv warm` without a model named: that of the demonstration."""

import json
from pathlib import Path

import typer
from pionkv.client.verbs_warm import warm
from typer.testing import CliRunner


def test_the_model_of_the_demonstration(store_port: int, tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["The lamp is", [{"role": "user", "content": "Why?"}], [5, 6, 7]]))
    app = typer.Typer()
    app.command()(warm)
    result = CliRunner().invoke(app, [str(path), "--port", str(store_port), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["stored"] for row in rows] == [True] * 3
    assert rows[0]["prefilled"] > 0 and rows[2]["tokens"] == 3
