"""Model containers: binary16 rounding, layout by hand, hostile input, templates."""

import json
import struct
import tracemalloc
from collections import OrderedDict
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.checkpoint import (
    CheckpointError,
    dumps,
    dumps_model,
    load_model,
    read_model_manifest,
    save_model,
)
from tests.checkpoint.make_hostile import frame
from tests.checkpoint.states import as_template, crnn_state
from tests.support import random_bits

CONFIG = {"hidden": 192, "pools": [[2, 2], (2, 1)], "bidirectional": True, "blank": "∅"}
HEAD = dict(architecture="crnn", config=CONFIG, charset="0123456789é😀")


def params(values, **more):
    return OrderedDict(w=jnp.array(np.float32(values)), **more)


def half_bits(x):
    """binary16 of a finite number, nearest even, by rationals; None on overflow."""
    value = abs(Fraction(float(x)))
    sign = 0x8000 if np.signbit(x) else 0
    exponent = -14
    while value >= Fraction(2) ** (exponent + 1) and exponent < 16:
        exponent += 1
    units = round(value / Fraction(2) ** (exponent - 10))
    bits = units + ((exponent + 14) << 10)
    return None if bits >= 0x7C00 else sign | bits


def test_weights_are_rounded_to_nearest_even_and_widened_exactly():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 15, 4000)).astype("f4")
    ties = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25, 2**-24, 65519])
    x = np.concatenate([x, ties, -ties, np.float32([0, -0.0, 2**-14, 65504])])
    want = [half_bits(v) for v in x]
    keep = np.array([w is not None for w in want])
    bits = np.uint16([w for w in want if w is not None])
    model = load_model(dumps_model(params(x[keep]), **HEAD))
    got = np.asarray(model.params["w"])
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.astype("f2").view("u2"), bits)
    np.testing.assert_array_equal(
        got.view("u4"), bits.view("f2").astype("f4").view("u4")
    )


@pytest.mark.parametrize("value", [65520.0, -65520.0, 3e38])
def test_weight_that_overflows_is_refused_by_name(value):
    state = OrderedDict(cell=params([[1, value]]))
    with pytest.raises(ValueError, match=r"tensor 'cell.w' at \[0, 1\].*binary16"):
        dumps_model(state, **HEAD)


def test_infinities_and_nans_stay_what_they_are():
    model = load_model(dumps_model(params([np.inf, -np.inf, np.nan]), **HEAD))
    assert np.asarray(model.params["w"]).tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(model.params["w"][2])


def container(change=lambda fields: None, region=None, tail=b""):
    """A container assembled by hand: one weight of two elements, one int32."""
    tensors = [
        dict(name="cell.w", dtype="f16", shape=[2], offset=0, length=4),
        dict(name="n", dtype="i32", shape=[], offset=64, length=4),
    ]
    fields = {"format": "onemodel-model", "version": 1, "architecture": "crnn"}
    fields |= {"config": {"a": [1, [True]], "b": "é"}, "charset": "01"}
    fields["tensors"] = tensors
    change(fields)
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + tail
    if region is None:
        region = struct.pack("<2e60xi", 1.5, -2.0, 7)
    return frame(text, region, magic=b"ONEMODEL")


def test_container_is_laid_out_as_specified():
    state = OrderedDict(cell=params([1.5, -2]), n=np.int32(7))
    head = dict(architecture="crnn", config={"b": "é", "a": (1, [True])}, charset="01")
    assert dumps_model(state, **head) == container()
    model = load_model(container())
    assert model[:3] == ("crnn", {"a": [1, [True]], "b": "é"}, "01")
    assert list(model.params) == ["cell", "n"]
    assert model.params["cell"]["w"].tolist() == [1.5, -2.0]
    assert model.params["n"].dtype == jnp.int32


def at(*path, value):
    def change(fields):
        for key in path[:-1]:
            fields = fields[key]
        fields[path[-1]] = value

    return container(change)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = {
    "BadHeader-checkpoint": dumps({}),
    "BadHeader-cut": container()[:-1],
    "BadManifest-format": at("format", value="onemodel-checkpoint"),
    "BadManifest-version": at("version", value=2),
    "BadManifest-charset": at("charset", value=["0", "1"]),
    "BadManifest-architecture": at("architecture", value=None),
    "BadManifest-config": at("config", value=[]),
    "BadManifest-config-fraction": at("config", "a", value=0.5),
    "BadManifest-config-null": at("config", "a", value=None),
    "BadManifest-config-range": at("config", "a", value=2**63),
    "BadManifest-config-depth": at("config", "a", value=nested(31)),
    "BadManifest-config-deep": at("config", "a", value=nested(500)),
    "BadManifest-config-size": at("config", "a", value=[0] * 65536),
    "BadManifest-no-config": container(lambda f: f.pop("config")),
    "BadManifest-unknown": at("extra", value=[]),
    "BadManifest-duplicate": at("tensors", 1, "name", value="cell.w"),
    "BadManifest-group": at("tensors", 1, "name", value="cell"),
    "BadManifest-below": at("tensors", 1, "name", value="cell.w.x"),
    "BadManifest-tail": container(tail=b"x"),
    "BadTensor-length": at("tensors", 0, "length", value=8),
    "BadTensor-offset": at("tensors", 1, "offset", value=4),
    "BadTensor-padding": container(region=struct.pack("<2e59xBi", 1, 1, 1, 7)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_container_is_refused(name, tmp_path):
    (tmp_path / "x.onemodel").write_bytes(HOSTILE[name])
    for source in (HOSTILE[name], tmp_path / "x.onemodel"):
        with pytest.raises(CheckpointError) as raised:
            load_model(source)
        assert raised.value.kind == name.split("-")[0], str(raised.value)


def test_config_of_the_deepest_allowed_nesting_returns():
    config = {"a": nested(30)}
    data = dumps_model({}, architecture="x", config=config, charset="")
    assert read_model_manifest(data).config == config
    with pytest.raises(ValueError, match="depth <= 32"):
        dumps_model({}, architecture="x", config={"a": nested(31)}, charset="")


def test_repeated_brackets_in_a_config_cost_no_more_than_the_file():
    start = b'{"format":"onemodel-model","version":1,"architecture":"","config":{"a":['
    content = frame(start + b"[]," * 300_000, b"", magic=b"ONEMODEL")
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="more than 65536 values"):
        load_model(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(content)


def test_file_and_template_round_trip(tmp_path):
    rng = np.random.default_rng(1)
    state = crnn_state(1, 3, True)
    state = jax.tree_util.tree_map(
        lambda x: jnp.array(rng.standard_normal(x.shape), x.dtype), state
    )
    path = tmp_path / "crnn.onemodel"
    save_model(path, state, **HEAD)
    assert path.read_bytes() == dumps_model(state, **HEAD)
    manifest = read_model_manifest(path)
    assert manifest.config["pools"] == [[2, 2], [2, 1]]
    assert [t.dtype for t in manifest.tensors] == ["f16"] * 10 + ["i32"]
    template = as_template(state)
    got = load_model(path, like=template).params
    widened = np.asarray(state.params["linear"]["weight"]).astype("f2").astype("f4")
    assert np.asarray(got.params["linear"]["weight"]).tobytes() == widened.tobytes()
    assert got.optimizer is template.optimizer
    with pytest.raises(CheckpointError) as raised:
        load_model(path, like=crnn_state(1, 4, False))
    assert raised.value.kind == "Mismatch"
    with pytest.raises(TypeError, match="load_model: tensor 'w'"):
        load_model(path, like={"w": np.float16([1])})


def test_float16_and_int64_leaves_keep_their_bits():
    half = random_bits(np.random.default_rng(2), (50,), np.float16)
    state = OrderedDict(h=half, n=np.int64(2**40), f=np.float32([0.1]))
    manifest = read_model_manifest(dumps_model(state, **HEAD))
    assert [t.dtype for t in manifest.tensors] == ["f16", "i64", "f16"]
    got = load_model(dumps_model(state, **HEAD)).params
    finite = np.isfinite(half)
    again = np.asarray(got["h"]).astype("f2")
    np.testing.assert_array_equal(again.view("u2")[finite], half.view("u2")[finite])
    assert got["n"].dtype == np.int64 and int(got["n"]) == 2**40


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"architecture": 1}, TypeError, "architecture: expected a string"),
        ({"charset": ["a"]}, TypeError, "charset: expected a string"),
        ({"charset": "\ud800"}, ValueError, "charset: .* lone surrogate"),
        ({"config": [1]}, TypeError, "config: expected a mapping"),
        ({"config": {"a": 0.5}}, TypeError, "config.a: .*got float"),
        ({"config": {"a": [None]}}, TypeError, r"config.a\[0\]"),
        ({"config": {"a": 2**63}}, ValueError, "config.a: .*64-bit"),
        ({"config": {1: 1}}, TypeError, "config key: expected a string"),
        ({"config": {"a": "\ud800"}}, ValueError, "config.a"),
        ({"config": {"a": list(range(70000))}}, ValueError, "65536"),
    ],
)
def test_head_that_cannot_be_written_is_refused(change, error, text):
    with pytest.raises(error, match=text):
        dumps_model({}, **(HEAD | change))


def test_leaf_that_cannot_be_written_is_refused():
    with pytest.raises(TypeError, match="tensor 'w'"):
        dumps_model({"w": np.float64([1])}, **HEAD)
    with pytest.raises(TypeError, match="tensor 'w'"):
        dumps_model({"w": 3}, **HEAD)


def test_numpy_integers_and_booleans_are_config_values():
    config = {"n": np.int32(3), "b": np.bool_(True)}
    data = dumps_model({}, architecture="", config=config, charset="")
    assert read_model_manifest(data).config == {"b": True, "n": 3}
