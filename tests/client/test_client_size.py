"""The capacity calculator: known models, every format, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from pionkv.client.verbs_size import size
from pionkv.kernels import FORMATS, smallest_spec
from typer.testing import CliRunner, Result


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(size)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ledger(
    layers: int, kv_heads: int, head_dim: int, tokens: int, *more: object
) -> dict[str, dict[str, Any]]:
    shape = ("--layers", layers, "--kv-heads", kv_heads, "--head-dim", head_dim, "--tokens", tokens)
    done = run(*shape, *more, "--json")
    assert done.exit_code == 0, done.output
    return {row["term"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "shape, total",
    [
        ((32, 8, 128, 2048), 268_435_456),  # Mistral 7B
        ((32, 8, 128, 32_768), 4_294_967_296),
        ((32, 8, 128, 8192), 1_073_741_824),  # Llama 3.1 8B
    ],
)
def test_models_that_are_known(shape: tuple[int, int, int, int], total: int) -> None:
    found = ledger(*shape)
    assert found["total"]["bytes"] == found["total in fp16"]["bytes"] == total
    assert found["all k"]["bytes"] == found["all v"]["bytes"] == total // 2
    assert found["fp16 / stored"]["bytes"] == 1


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str) -> None:
    small = smallest_spec(name)
    head = small.head_dim or small.dim
    found = ledger(3, small.dim // head, head, 7, "--format", name, "--rope", small.rope)
    assert found["one row of k"]["bytes"] == small.row_bytes
    assert found["total"]["bytes"] == 2 * 3 * 7 * small.row_bytes
    assert (
        found["total"]["codes"] + found["total"]["scales"] + found["total"]["full_precision"]
        == found["total"]["bytes"]
    )
    assert found["total in fp16"]["bytes"] == 2 * 3 * 7 * small.dim * 2


def test_groups_have_a_tail() -> None:
    """R71: 109 MiB of codes, scales and a tail of 128 tokens."""
    found = ledger(32, 8, 128, 4096, "--format", "kivi2")
    assert found["total"]["bytes"] == 109 * 2**20
    assert found["total"]["full_precision"] == 2 * 32 * 128 * 1024 * 2


def test_sides_of_two_formats_and_a_table() -> None:
    found = ledger(2, 4, 64, 10, "--format", "fp16", "--values", "int8")
    assert found["all v"]["bytes"] < found["all k"]["bytes"] == 2 * 10 * 512
    assert found["total"]["bytes"] == found["all k"]["bytes"] + found["all v"]["bytes"]
    shape = ("--layers", 1, "--kv-heads", 1, "--head-dim", 64, "--tokens", 1)
    assert "full precision" in run(*shape).stdout


def test_what_cannot_be_is_said() -> None:
    shape = ("--layers", 1, "--kv-heads", 1, "--head-dim", 63, "--tokens", 1)
    for more in (("--format", "nosuch"), ("--format", "mlx4g32"), ("--tokens", 0)):
        done = run(*shape, *more)
        assert done.exit_code == 2 and done.output
