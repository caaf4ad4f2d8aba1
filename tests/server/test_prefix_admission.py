"""KV.PREFIX.MANIFEST and ADMIT: reuse is refused, not guessed. Each test names the requirements it shows."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from pionkv.storage.manifests import ORDER
from prefix_rows import DIM, ROW_BYTES, SCHEMA, expected, publish, rows, whole

IDS = np.arange(100, 108, dtype="<u4")
LAYER = f"fmt=fp16,dim={DIM}"
MANIFEST: dict[str, Any] = {
    "weights": "sha256:aa",
    "architecture": "llama",
    "layers": 2,
    "kv_heads": 4,
    "head_dim": 8,
    "head_map": [0, 0, 1, 1],
    "tokenizer": "sha256:bb",
    "template": "sha256:cc",
    "tokens": IDS.tobytes(),
    "positions": "absolute",
    "hidden_prefix": 0,
    "rope_stage": "post",
    "rope_base": 10000.0,
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "rope_pairing": "half",
    "adapter": "none",
    "dtype": "float16",
    "k_schema": [LAYER, LAYER],
    "v_schema": [LAYER, LAYER],
    "axes": {"k": "token", "v": "token"},
    "group": 32,
    "zero_point": "none",
    "scales": {"artifact": "uncalibrated 1.0", "shape": "tensor", "method": "none", "skipped_layers": [0]},
    "codebooks": "none",
    "artifact": "prefix-17",
    "artifact_label": "extracted",
    "calibration_excludes": True,
    "window": 4096,
    "states": "none",
    "kernels": "1",
    "host": "a",
    "versions": {"pionkv": "0.1.0"},
    "created": 1.5,
}
OTHER: dict[str, tuple[Any, str, str, str]] = {
    "weights": ("sha256:ab", "weights", "sha256:aa", "sha256:ab"),
    "architecture": ("qwen", "architecture", "llama", "qwen"),
    "layers": (3, "layers", "2", "3"),
    "kv_heads": (2, "kv_heads", "4", "2"),
    "head_dim": (16, "head_dim", "8", "16"),
    "head_map": ([0, 1, 0, 1], "head_map[1]", "0", "1"),
    "tokenizer": (None, "tokenizer", "sha256:bb", "nothing"),
    "template": ("sha256:cd", "template", "sha256:cc", "sha256:cd"),
    "tokens": (np.array([100, 101, 7], "<u4").tobytes(), "tokens[2]", "102", "7"),
    "positions": ("from 5", "positions", "absolute", "from 5"),
    "hidden_prefix": (3, "hidden_prefix", "0", "3"),
    "rope_stage": ("pre", "rope_stage", "post", "pre"),
    "rope_base": (500000.0, "rope_base", "10000.0", "500000.0"),
    "rope_scaling": ({"type": "linear", "factor": 4.0}, "rope_scaling.factor", "2.0", "4.0"),
    "rope_pairing": ("interleaved", "rope_pairing", "half", "interleaved"),
    "adapter": ("lora-1", "adapter", "none", "lora-1"),
    "dtype": ("bfloat16", "dtype", "float16", "bfloat16"),
    "k_schema": ([LAYER, f"fmt=int8,dim={DIM}"], "k_schema[1]", LAYER, f"fmt=int8,dim={DIM}"),
    "v_schema": ([LAYER, "fmt=fp16,dim=64"], "v_schema[1]", LAYER, "fmt=fp16,dim=64"),
    "axes": ({"k": "channel", "v": "token"}, "axes.k", "token", "channel"),
    "group": (64, "group", "32", "64"),
    "zero_point": ("unclamped", "zero_point", "none", "unclamped"),
    "scales": (
        {"artifact": "set-3", "shape": "tensor", "method": "dataset", "skipped_layers": [0]},
        "scales.artifact",
        "uncalibrated 1.0",
        "set-3",
    ),
    "codebooks": ("cb-1", "codebooks", "none", "cb-1"),
    "artifact": ("prefix-18", "artifact", "prefix-17", "prefix-18"),
    "artifact_label": ("calibrated", "artifact_label", "extracted", "calibrated"),
    "calibration_excludes": (False, "calibration_excludes", "True", "False"),
    "window": (1024, "window", "4096", "1024"),
    "states": ("ssm", "states", "none", "ssm"),
    "kernels": ("2", "kernels", "1", "2"),
}


def admit(wire, name="n", **changes):
    asked = {key: value for key, value in (MANIFEST | changes).items() if value is not None}
    return wire.command("KV.PREFIX.ADMIT", name, msgpack.packb(asked))


@pytest.fixture
def stored(wire):
    """A prefix with a whole manifest; its generation."""
    manifest = msgpack.packb(MANIFEST)
    return publish(wire, "n", 1, 0, 8, "TOKENS", IDS.tobytes(), "MANIFEST", manifest)[1]


def test_the_list_of_identity_fields_is_whole() -> None:
    """R34: every field of the list is stored here, and made to differ below."""
    assert set(ORDER) == set(OTHER) and set(ORDER) <= set(MANIFEST)


def test_the_same_manifest_is_admitted(stored, wire) -> None:
    """R37, R41: the receipt is bound to a generation; the manifest comes back as it was stored."""
    assert admit(wire) == [b"n", stored, 8]
    assert msgpack.unpackb(wire.command("KV.PREFIX.MANIFEST", "n")) == MANIFEST
    publish(wire, "n", 2, 8, 9)
    assert whole(wire, "n", 8, "AT", stored).code == "STALE"


@pytest.mark.parametrize("field", OTHER)
def test_the_first_field_that_differs_is_named(field, stored, wire) -> None:
    """R34, R35, R36, R38, R39, R42, R60, R61, R62: a full compare, not a hash."""
    value, where, ours, theirs = OTHER[field]
    assert str(admit(wire, **{field: value})) == f"INCOMPATIBLE {where}: stored {ours}, asked {theirs}"


@pytest.mark.parametrize("field", OTHER)
def test_fields_are_compared_in_their_order(field, stored, wire) -> None:
    """R35: of several that differ the first is named."""
    changes = {name: OTHER[name][0] for name in ORDER[ORDER.index(field) :]}
    assert str(admit(wire, **changes)).startswith(f"INCOMPATIBLE {OTHER[field][1]}: ")


def test_provenance_is_recorded_only(stored, wire) -> None:
    """R36."""
    assert admit(wire, host="b", versions={"pionkv": "9"}, created=None, quality={"bleu": 1}) == [
        b"n",
        stored,
        8,
    ]


def test_a_field_nobody_knows_must_be_the_same(stored, wire) -> None:
    """R36: what is not listed as provenance is identity."""
    assert str(admit(wire, attention_sinks=4)) == "INCOMPATIBLE attention_sinks: stored nothing, asked 4"
    wire.command("KV.PREFIX.MANIFEST", "n", "SET", msgpack.packb(MANIFEST | {"attention_sinks": 4}))
    assert admit(wire, attention_sinks=4)[2] == 8
    assert str(admit(wire)) == "INCOMPATIBLE attention_sinks: stored 4, asked nothing"


def test_what_the_store_knows_is_compared_with_what_it_has(wire) -> None:
    """R34, R36: whatever its manifest claims."""
    lie = MANIFEST | {"layers": 99, "k_schema": ["fmt=int8,dim=1"]}
    publish(wire, "n", 1, 0, 8, "TOKENS", IDS.tobytes(), "MANIFEST", msgpack.packb(lie))
    assert admit(wire)[2] == 8
    assert str(admit(wire, layers=99)) == "INCOMPATIBLE layers: stored 2, asked 99"


@pytest.mark.parametrize("ids, tokens", [(IDS, 8), (IDS[:3], 3), (np.append(IDS, 1), 8)])
def test_tokens_in_common_are_admitted(ids, tokens, stored, wire) -> None:
    """R38: as many rows as the token ids are the same, of a longer or a shorter prompt."""
    assert admit(wire, tokens=ids.astype("<u4").tobytes()) == [b"n", stored, tokens]


def test_without_a_manifest_nothing_is_admitted(wire) -> None:
    """R36: not known is not equal."""
    publish(wire, "n", 1, 0, 8)
    assert str(admit(wire)) == f"INCOMPATIBLE manifest: stored nothing, asked {len(MANIFEST)} fields"
    assert wire.command("KV.PREFIX.MANIFEST", "n") is None
    assert admit(wire, "nobody").message == "namespace not found"
    wire.command("KV.PREFIX.REGISTER", "empty", DIM, "fp16")
    text = "KV.PREFIX.ADMIT: the layers of the namespace do not hold the same rows"
    assert admit(wire, "empty").message == text


def test_a_fork_takes_the_manifest_along(stored, wire) -> None:
    """R37: with the tokens of its own rows."""
    generation = wire.command("KV.PREFIX.FORK", "n", "child", 4)
    assert admit(wire, "child") == [b"child", generation, 4]
    assert str(admit(wire, "child", adapter="x")) == "INCOMPATIBLE adapter: stored none, asked x"


CHANGES = {
    "begin": ("KV.PREFIX.BEGIN", "n", *SCHEMA),
    "replace": ("KV.PREFIX.BEGIN", "n", *SCHEMA, "FROM", "n", 0),
    "store": ("V.STOREBATCH", "n_pk", 0, 8, 1, bytes(ROW_BYTES), "FMT", "RAW"),
    "overwrite": ("V.STOREBATCH", "n_pk", 0, 0, 1, bytes(ROW_BYTES), "FMT", "RAW"),
    "large": ("V.STOREBATCH", "n_pk", 0, 8, 3000, rows(1, 0, "k", 0, 3000), "FMT", "F16"),
    "truncate": ("KV.PREFIX.TRUNCATE", "n", 1),
    "reorder": ("V.REORDER", "n_pk", "other_pk", "1,0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_immutable_artifact_is_changed_in_a_fork_only(name, stored, wire) -> None:
    """R40."""
    publish(wire, "other", 2, 0, 8)
    wire.command("KV.PREFIX.MANIFEST", "n", "SET", msgpack.packb(MANIFEST | {"immutable": True}))
    command = CHANGES[name]
    text = f"{command[0]}: the namespace is immutable (fork it and change the fork)"
    assert wire.command(*command).message == text
    assert whole(wire, "n", 8) == expected((1, 0, 8))
    wire.command("KV.PREFIX.FORK", "n", "child")
    publish(wire, "child", 2, 8, 9)
    publish(wire, "third", 3, 4, 5, "FROM", "n", 4)
    assert whole(wire, "child", 9) == expected((1, 0, 8), (2, 8, 9))
    assert whole(wire, "third", 5) == expected((1, 0, 4), (3, 4, 5))
    assert wire.command("KV.PREFIX.DROP", "n") == 1
    assert publish(wire, "n", 2, 0, 1)[2] == 1
