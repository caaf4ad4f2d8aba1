"""Schemas: what they say of each layer, how they differ, and their stored form."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pionkv.kernels import LayerSpec
from pionkv.kernels.errors import FormatError
from pionkv.storage import LayerLimit, Schema

specs = st.sampled_from(
    [LayerSpec("fp16", 64), LayerSpec("mlx4g32", 64), LayerSpec("int8", 100), LayerSpec("fp32", 1)]
)


def test_a_uniform_schema_has_any_layer():
    schema = Schema.uniform(LayerSpec("fp16", 128))
    assert schema.is_uniform and schema.num_layers is None
    assert schema.layer(1_000_000) == LayerSpec("fp16", 128)
    assert schema.row_bytes(3) == 256


def test_a_per_layer_schema_has_its_layers_and_no_other():
    schema = Schema.per_layer([LayerSpec("fp16", 64), LayerSpec("mlx4g32", 64)])
    assert schema.num_layers == 2
    assert [schema.row_bytes(layer) for layer in range(2)] == [128, 40]
    for layer in (-1, 2):
        with pytest.raises(LayerLimit) as caught:
            schema.layer(layer)
        assert (caught.value.layer, caught.value.limit) == (layer, 2)
        with pytest.raises(LayerLimit):
            schema.row_bytes(layer)


def test_a_bad_spec_is_refused_wherever_it_is():
    with pytest.raises(FormatError, match="mlx4g32"):
        Schema.per_layer([LayerSpec("fp16", 64)] * 5 + [LayerSpec("mlx4g32", 33)])
    with pytest.raises(ValueError, match="at least one layer"):
        Schema.per_layer([])


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        (Schema.uniform(LayerSpec("fp16", 64)), Schema.uniform(LayerSpec("fp16", 64)), None),
        (
            Schema.uniform(LayerSpec("fp16", 64)),
            Schema.uniform(LayerSpec("int8", 64)),
            ("format", "fp16", "int8"),
        ),
        (Schema.uniform(LayerSpec("fp16", 64)), Schema.uniform(LayerSpec("fp16", 96)), ("dim", "64", "96")),
        (
            Schema.uniform(LayerSpec("fp16", 64)),
            Schema.per_layer([LayerSpec("fp16", 64)] * 3),
            ("layers", "any number", "3"),
        ),
        (
            Schema.per_layer([LayerSpec("fp16", 64)] * 2),
            Schema.per_layer([LayerSpec("fp16", 64)] * 3),
            ("layers", "2", "3"),
        ),
        (
            Schema.per_layer([LayerSpec("fp16", 64)] * 3),
            Schema.per_layer([LayerSpec("fp16", 64)] * 2 + [LayerSpec("fp16", 32)]),
            ("layer 2 dim", "64", "32"),
        ),
    ],
)
def test_the_first_difference_is_named(ours, theirs, difference):
    assert ours.differs(theirs) == difference
    assert (ours == theirs) is (difference is None)


@given(st.lists(specs, min_size=1, max_size=40), st.booleans())
def test_the_stored_form_comes_back(layers, uniform):
    schema = Schema.uniform(layers[0]) if uniform else Schema.per_layer(layers)
    again = Schema.decode(schema.encode())
    assert again == schema and hash(again) == hash(schema)
    assert again.num_layers == schema.num_layers
    count = 3 if uniform else len(layers)
    assert [again.layer(i) for i in range(count)] == [schema.layer(i) for i in range(count)]


@pytest.mark.parametrize(
    "encoded", [b"", b"\0", b"\2" + bytes(15), b"\1" + bytes(14), bytes([1, 255]) + bytes(14)]
)
def test_other_bytes_are_no_schema(encoded):
    with pytest.raises(ValueError):
        Schema.decode(encoded)


def test_the_digest_is_that_of_the_original():
    value = 2166136261
    for dim, tag in ((64, 2), (64, 7)):
        for byte in struct.pack("<IBI", dim, tag, 0):
            value = (value ^ byte) * 16777619 % 2**32
    assert Schema.per_layer([LayerSpec("fp16", 64), LayerSpec("mlx4g32", 64)]).digest == value


def test_heads_of_another_size_are_another_digest():
    def digest(head):
        return Schema.per_layer([LayerSpec("qserve4", 128, 0, head)]).digest

    assert digest(64) != digest(128)
