"""Round trips of states and trees, byte for byte, and what the writer refuses."""

import hashlib
import json
import pickle
import struct
import tracemalloc
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax._tree import OptimizerState, TrainState
from onemodel_jax.checkpoint import (
    CheckpointError,
    dumps,
    load,
    loads,
    read_manifest,
    read_tensors,
    save,
    state_hash,
)
from tests.checkpoint.states import as_template, crnn_state, target_state
from tests.support import random_bits, run_python

HARD = np.uint32([0, 1 << 31, 1, 0x807FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001])
HARD = np.append(HARD, np.uint32([0xFFC12345, 0x7F7FFFFF, 0x3F800000]))


def words(x):
    """The bytes of an array, which tell every NaN from every other."""
    return np.ascontiguousarray(np.asarray(x)).tobytes()


def assert_same_words(got, want):
    got_leaves, got_tree = jax.tree_util.tree_flatten(got)
    want_leaves, want_tree = jax.tree_util.tree_flatten(want)
    assert got_tree == want_tree
    for g, w in zip(got_leaves, want_leaves, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        assert words(g) == words(w)


STATES = {
    "target": target_state(),
    "crnn": crnn_state(1, 3, True),
    "crnn-model": crnn_state(2, 5, False),
    "hard": [jnp.array(HARD.view(np.float32)), HARD.view(np.int32)],
    "tree": {"a": [np.float32(2), {"b": np.arange(3)}], "c": (np.int32([1]),)},
    "array": np.float32([1, 2]),
    "nothing": {},
    "model of nothing": TrainState(OrderedDict(), OrderedDict(), None),
    "many dimensions": np.zeros((1,) * 32, np.float32),
    "names": {"é": np.float32([1]), "e\u0301": np.float32([2]), '"\n😀': np.int32([3])},
}


@pytest.mark.parametrize("name", STATES)
def test_state_returns_with_every_bit(name, tmp_path):
    state, extra = STATES[name], {"samples": 2**63 - 1, "low": -(2**63)}
    template = as_template(state)
    data = dumps(state, extra)
    save(tmp_path / "x.ckpt", state, extra)
    assert (tmp_path / "x.ckpt").read_bytes() == data
    assert state_hash(state, extra) == hashlib.sha256(data).hexdigest()
    for got, more in (loads(data, template), load(tmp_path / "x.ckpt", template)):
        assert_same_words(got, state)
        assert more == extra
        assert dumps(got, more) == data


def test_header_manifest_and_data_are_laid_out_as_specified():
    state = {"b": np.float32([1, 2]), "a": np.int64([3])}
    data = dumps(state, {"k": 1})
    manifest = (
        b'{"format":"onemodel-checkpoint","version":1,"model":['
        b'{"name":"a","dtype":"i64","shape":[1],"offset":0,"length":8},'
        b'{"name":"b","dtype":"f32","shape":[2],"offset":64,"length":8}],'
        b'"extra":[{"key":"k","value":1}]}'
    )
    start = -(-(64 + len(manifest)) // 64) * 64
    header = struct.pack("<8sII", b"ONEMCKPT", 1, 0)
    header += struct.pack("<6Q", 64, len(manifest), start, 72, start + 72, 0)
    region = struct.pack("<q56x2f", 3, 1, 2)
    assert data == (header + manifest).ljust(start, b"\0") + region


def test_learning_rate_and_step_come_from_the_file_and_settings_from_neither():
    old = target_state()
    other = target_state().optimizer
    other = OptimizerState(
        jnp.array(9), jnp.array(0.125), other.slots, other.kind, other.settings
    )
    template = TrainState(old.params, old.buffers, other)
    state, _ = loads(dumps(old), template)
    assert state.optimizer.step.dtype == jnp.int32
    assert (int(state.optimizer.step), float(state.optimizer.learning_rate)) == (3, 0.5)
    assert int(other.step) == 9 and float(other.learning_rate) == 0.125


@pytest.mark.parametrize("step", [0, 256, 16777216, 2**31 - 1])
def test_step_count_is_an_exact_integer(step):
    old = target_state()
    optimizer = OptimizerState(
        jnp.array(step, jnp.int32),
        old.optimizer.learning_rate,
        old.optimizer.slots,
        "adamw",
        old.optimizer.settings,
    )
    state = TrainState(old.params, old.buffers, optimizer)
    assert int(loads(dumps(state), state)[0].optimizer.step) == step


def test_a_file_with_optimizer_state_fills_a_model_alone():
    state = target_state()
    alone = TrainState(state.params, state.buffers, None)
    got, _ = loads(dumps(state), as_template(alone))
    assert_same_words(got, alone)
    with pytest.raises(CheckpointError, match="no optimizer state") as raised:
        loads(dumps(alone), state)
    assert raised.value.kind == "Mismatch"


def test_another_order_of_names_is_refused_even_where_shapes_agree():
    a, b = np.full((2, 2), 1, np.float32), np.full((2, 2), 2, np.float32)
    saved = TrainState(OrderedDict(a=a, b=b), OrderedDict(), None)
    other = TrainState(OrderedDict(b=b, a=a), OrderedDict(), None)
    with pytest.raises(CheckpointError) as raised:
        loads(dumps(saved), other)
    assert raised.value.kind == "Mismatch"


def test_bytes_of_a_plain_dict_do_not_depend_on_insertion_order():
    a, b = np.float32([1]), np.float32([2])
    assert dumps({"a": a, "b": b}) == dumps({"b": b, "a": a})


def test_extra_is_sorted_by_utf16_code_units():
    keys = ["b", "a", "\ufb01", "😀", "é", ""]
    text = dumps({}, {k: 1 for k in keys})[64:].rstrip(b"\0")
    listed = [item["key"] for item in json.loads(text)["extra"]]
    assert listed == ["", "a", "b", "é", "😀", "\ufb01"]


def test_degenerate_shapes_keep_rank_and_share_offsets():
    shapes = [(0,), (2, 0), (0, 3), (), (1,)]
    state = [np.full(s, 1.5, np.float32) for s in shapes] + [np.array(7, np.int64)]
    data = dumps(state)
    got, _ = loads(data, state)
    assert [g.shape for g in got] == [*shapes, ()]
    assert_same_words(got, state)
    model = read_manifest(data).model
    assert [t.offset for t in model] == [0, 0, 0, 0, 64, 128]
    assert [t.length for t in model] == [0, 0, 0, 4, 4, 8]
    assert words(got[3]).hex() == "0000c03f"


def test_a_trailing_empty_tensor_keeps_its_place():
    state = [np.float32([1]), np.zeros((0,), np.float32)]
    assert [t.offset for t in read_manifest(dumps(state)).model] == [0, 64]
    assert_same_words(loads(dumps(state), state)[0], state)


BASE = np.arange(6, dtype=np.float32).reshape(2, 3)
LAYOUTS = {
    "fortran": np.asfortranarray(BASE),
    "reversed": BASE[:, ::-1],
    "strided": np.arange(12, dtype=np.float32).reshape(4, 3)[::2],
    "broadcast": np.broadcast_to(np.float32([1, 2]), (4, 2)),
    "big-endian": BASE.astype(">f4"),
    "transposed": BASE.T,
    "read-only": np.frombuffer(BASE.tobytes(), np.float32),
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), np.float32, offset=1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_layout_does_not_reach_the_file(name):
    array = LAYOUTS[name]
    plain = np.ascontiguousarray(array, "<f4")
    data = dumps([array])
    assert data == dumps([plain])
    assert data.endswith(plain.tobytes())
    got = loads(data, [array])[0][0]
    assert got.dtype == np.float32
    assert words(got) == plain.tobytes()


def test_big_endian_nan_payload_survives():
    swapped = HARD.byteswap().view(">f4")
    assert dumps([swapped]) == dumps([HARD.view("<f4")])


@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_do_not_depend_on_the_64_bit_mode(x64):
    code = """
import numpy as np, jax, jax.numpy as jnp, hashlib
from onemodel_jax.checkpoint import dumps, loads
state = {"n": np.int64(2**40), "w": np.float32([1e-8, 1e-45]), "i": np.int32([2**30])}
got, _ = loads(dumps(state), state)
assert int(got["n"]) == 2**40 and got["n"].dtype == np.int64
assert got["w"].dtype == np.float32 and got["i"].dtype == np.int32
assert isinstance(got["w"], jax.Array) and isinstance(got["i"], jax.Array)
assert isinstance(got["n"], jax.Array) == jax.config.jax_enable_x64
print(hashlib.sha256(dumps(got)).hexdigest())
"""
    want = {
        "n": np.int64(2**40),
        "w": np.float32([1e-8, 1e-45]),
        "i": np.int32([2**30]),
    }
    assert run_python(code, x64=x64).strip() == state_hash(want)


def test_loaded_arrays_share_no_memory_with_the_caller():
    state = [np.arange(64, dtype=np.float32), np.arange(3)]
    data = bytearray(dumps(state))
    got, _ = loads(data, state)
    data[:] = bytes(len(data))
    assert_same_words(got, state)


def test_int64_leaves_of_a_file_are_writable_and_separate(tmp_path):
    state = [np.arange(3), np.arange(4)]
    save(tmp_path / "x", state)
    with jax.enable_x64(False):
        got, _ = load(tmp_path / "x", state)
    got[0][:] = 9
    assert words(got[1]) == words(state[1])


def test_donating_a_loaded_array_leaves_the_others_alone(tmp_path):
    state = [np.float32([i] * 4096) for i in range(3)]
    save(tmp_path / "x", state)
    got, _ = load(tmp_path / "x", [jnp.array(x) for x in state])
    jax.jit(lambda x: x + 100, donate_argnums=0)(got[1]).block_until_ready()
    assert_same_words((got[0], got[2]), (state[0], state[2]))


def test_loading_changes_neither_template_nor_data():
    state = crnn_state(3, 2, True)
    data = dumps(crnn_state(4, 2, True))
    before, copy = state_hash(state), bytes(data)
    loads(data, state)
    assert state_hash(state) == before and data == copy


def test_tensors_are_read_without_a_template(tmp_path):
    state = target_state()
    save(tmp_path / "x", state, {"samples": 5})
    manifest, arrays = read_tensors(tmp_path / "x")
    assert manifest == read_manifest(dumps(state, {"samples": 5}))
    assert manifest.extra == {"samples": 5}
    assert manifest.optimizer.kind == "adamw" and manifest.optimizer.step == 3
    names = ["w", "empty", "count", "cell.bias", "cell.draws"]
    assert [t.name for t in manifest.model] == names
    assert [t.name for t in manifest.tensors[5:]] == list(state.optimizer.slots)
    assert words(arrays[0]) == words(state.params["w"])


def test_manifest_in_another_valid_spelling_is_read():
    whole = dumps({"w": np.float32([1])}, {"é": 2})
    body = whole[64:].split(b"\0")[0]
    fields = json.loads(body)
    spelled = json.dumps(dict(reversed(fields.items())), indent=1, ensure_ascii=True)
    spelled = spelled.replace('"offset": 0', '"offset": -0').encode()
    start = -(-(64 + len(spelled)) // 64) * 64
    header = struct.pack("<8sII6Q", b"ONEMCKPT", 1, 0, 64, len(spelled), start, 64,
                         start + 64, 0)  # fmt: skip
    region = struct.pack("<f60x", 1)
    data = (header + spelled).ljust(start, b"\0") + region
    state, extra = loads(data, {"w": np.zeros(1, np.float32)})
    assert dumps(state, extra) == whole


REFUSED = [
    ({"w": np.float64([1])}, None, TypeError, r"tensor 'w': expected an array of"),
    ({"w": np.zeros(2, jnp.bfloat16)}, None, TypeError, r"got bfloat16\[2\]"),
    ({"w": np.float16([1])}, None, TypeError, r"got float16\[1\]"),
    ({"w": np.array([True])}, None, TypeError, r"got bool\[1\]"),
    ({"w": np.array(["a"])}, None, TypeError, r"got <U1\[1\]"),
    ({"w": jax.random.key(0)}, None, TypeError, r"tensor 'w'"),
    ({"w": 1.5}, None, TypeError, r"got float"),
    ({"w": "text"}, None, TypeError, r"got str"),
    ({"a": {"b": np.int32(1)}, "a.b": np.int32(2)}, None, ValueError, "distinct"),
    ({"\ud800": np.int32(1)}, None, ValueError, "lone surrogate"),
    (np.zeros((1,) * 33, np.int32), None, ValueError, "rank <= 32"),
    (np.broadcast_to(np.int32(0), (2**31, 1)), None, ValueError, "dimensions <="),
    ({}, {"k": 1.0}, TypeError, "extra 'k': expected an integer, got float"),
    ({}, {"k": True}, TypeError, "got bool"),
    ({}, {"k": np.bool_(1)}, TypeError, "extra 'k'"),
    ({}, {"k": 2**63}, ValueError, "signed 64-bit"),
    ({}, {1: 1}, TypeError, "extra key: expected a string, got int"),
    ({}, {"\udfff": 1}, ValueError, "lone surrogate"),
]


@pytest.mark.parametrize(("state", "extra", "error", "text"), REFUSED)
def test_writer_refuses_what_the_format_cannot_hold(state, extra, error, text):
    with pytest.raises(error, match=text):
        dumps(state, extra)


def optimizer_of(**changes):
    good = target_state().optimizer
    fields = dict(step=good.step, learning_rate=good.learning_rate, slots=good.slots)
    fields |= dict(kind=good.kind, settings=good.settings) | changes
    return TrainState(OrderedDict(), OrderedDict(), OptimizerState(**fields))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"step": np.int32(-1)}, ValueError, "step: expected 0 or more"),
        ({"step": np.int64(1)}, TypeError, "step: expected int32"),
        ({"step": np.int32([1])}, ValueError, "step"),
        (
            {"learning_rate": np.float64(1)},
            TypeError,
            "learning_rate: expected float32",
        ),
        ({"kind": 3}, TypeError, "optimizer kind: expected a string"),
        ({"settings": (("b1", 1.0), ("b1", 1.0))}, ValueError, "settings: .* distinct"),
        ({"settings": (("learning_rate", 1.0),)}, ValueError, "distinct"),
        ({"slots": OrderedDict(a=np.float64(1))}, TypeError, "tensor 'a'"),
    ],
)
def test_writer_refuses_a_malformed_optimizer_state(changes, error, text):
    with pytest.raises(error, match=text):
        dumps(optimizer_of(**changes))


def test_template_that_is_no_target_is_the_callers_error():
    with pytest.raises(TypeError, match="loads: tensor 'w'"):
        loads(dumps({}), {"w": np.float64(1)})
    with pytest.raises(TypeError, match="loads: tensor 'a'"):
        loads(dumps({}), optimizer_of(slots=OrderedDict(a=np.float64(1))))
    with pytest.raises(ValueError, match="no dot"):
        dumps(TrainState(OrderedDict({"a.b": np.int32(1)}), OrderedDict(), None))


@pytest.mark.parametrize("values", [(0.0, -0.0), (1.0, np.nextafter(1, 2))])
def test_settings_are_compared_by_bits(values):
    saved, wanted = (optimizer_of(settings=(("eps", v),)) for v in values)
    with pytest.raises(CheckpointError, match="setting 'eps'") as raised:
        loads(dumps(saved), wanted)
    assert raised.value.kind == "Mismatch"
    nan = optimizer_of(
        settings=(("eps", float("nan")),), learning_rate=np.float32("nan")
    )
    assert dumps(loads(dumps(nan), nan)[0]) == dumps(nan)


def test_error_survives_pickling_and_names_its_kind():

    error = pickle.loads(pickle.dumps(CheckpointError("BadTensor", "text")))
    assert error.kind == "BadTensor" and str(error) == "BadTensor: text"


def test_hash_does_not_depend_on_the_instruction_set():
    code = """
import numpy as np, jax.numpy as jnp
from onemodel_jax.checkpoint import state_hash
bits = np.random.default_rng(7).integers(0, 2**32, 1000, np.uint32)
print(state_hash([jnp.array(bits.view(np.float32)).reshape(10, 100).T]))
"""
    bits = np.random.default_rng(7).integers(0, 2**32, 1000, np.uint32)
    want = state_hash([bits.view(np.float32).reshape(10, 100).T])
    assert run_python(code, isa="SSE4_2").strip() == want


def test_random_states_return_with_every_bit():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shapes = [tuple(rng.integers(0, 5, rng.integers(0, 4))) for _ in range(6)]
        state = [random_bits(rng, shape) for shape in shapes]
        state.append(rng.integers(-(2**63), 2**63 - 1, (3,), np.int64))
        assert_same_words(loads(dumps(state), state)[0], state)


@pytest.mark.parametrize("order", ["C", "F"])
def test_saving_and_hashing_copy_at_most_one_tensor_at_a_time(tmp_path, order):
    state = [np.zeros((512, 1024), np.float32, order) for _ in range(8)]
    for call in (lambda: save(tmp_path / "x", state), lambda: state_hash(state)):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**18 + (2 * state[0].nbytes if order == "F" else 0)
