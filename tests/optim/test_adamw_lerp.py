"""AdamW in lerp form: bits of 30 steps, resuming, documented formula, errors."""

import dataclasses
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax._tree import TrainState
from onemodel_jax.checkpoint import dumps, loads
from onemodel_jax.optim import adamw_lerp
from onemodel_jax.reference.float64.optimizer import adamw
from onemodel_jax.reference.lanes.optimizer import adamw_lerp_init, adamw_lerp_step
from tests.support import assert_bits_equal, assert_trees_bits_equal

# What one gradient element does over the steps, step by step.
BEHAVIOURS = {
    "ordinary": lambda rng, t: rng.standard_normal(),
    "once, then zero": lambda rng, t: 1.0 if t == 0 else 0.0,
    "tiny once, then minus zero": lambda rng, t: 3e-38 if t == 0 else -0.0,
    "subnormal once, then zero": lambda rng, t: 1e-41 if t < 2 else 0.0,
    "always zero": lambda rng, t: 0.0,
    "1e-23": lambda rng, t: 1e-23,
    "squares are subnormal": lambda rng, t: 2e-21 * rng.standard_normal(),
    "moments are subnormal": lambda rng, t: 1e-18 * rng.standard_normal(),
    "gradients are subnormal": lambda rng, t: 1e-40 * rng.standard_normal(),
    "squares overflow": lambda rng, t: 1e20 * rng.standard_normal(),
    "infinite once": lambda rng, t: np.inf if t == 3 else 1e-3,
    "NaN once": lambda rng, t: np.nan if t == 5 else 1e-3,
    "alternating": lambda rng, t: (-1.0) ** t * 1e-3,
    "largest": lambda rng, t: 3e38,
}
STEPS = 30


def parameters():
    """A matrix (decays), a vector (does not), and a tensor of rank 3 (decays)."""
    rng = np.random.default_rng(0)
    count = len(BEHAVIOURS)
    matrix = rng.standard_normal((2, count)).astype(np.float32)
    matrix[1] = np.float32([0.0, -0.0, 1e-40, -1e-45, 3e38, 1e-38, 1.0] * 2)
    cube = rng.standard_normal((1, 1, count)).astype(np.float32)
    inner = OrderedDict(vector=np.float32(rng.standard_normal(count)))
    return OrderedDict(z=matrix, inner=inner, a=cube)


def gradients(t):
    rng = np.random.default_rng([1, t])
    row = np.array([f(rng, t) for f in BEHAVIOURS.values()], np.float32)
    inner = OrderedDict(vector=row)
    return OrderedDict(z=np.stack([row, row]), inner=inner, a=row[None, None])


HYPER = {
    "default": {"learning_rate": 2e-3},
    "no decay, no first moment": {
        "learning_rate": 0.3,
        "b1": 0.0,
        "weight_decay": 0.0,
        "eps": 1e-5,
    },
    "large decay, subnormal eps": {
        "learning_rate": 1.0,
        "weight_decay": 2.5,
        "b2": 0.9,
        "eps": 1e-42,
    },
}


@pytest.mark.parametrize("name", HYPER)
def test_thirty_steps_have_the_bits_of_the_reference(name):
    hyper = HYPER[name]
    optimizer = adamw_lerp(**hyper)
    params = parameters()
    state = optimizer.init(params)
    step = jax.jit(optimizer.step)
    flat = jax.tree_util.tree_leaves(params)
    want_state = adamw_lerp_init(flat)
    decayed = [True, False, True]
    for t in range(STEPS):
        params, state = step(params, gradients(t), state)
        grads = jax.tree_util.tree_leaves(gradients(t))
        flat, want_state = adamw_lerp_step(
            flat, grads, want_state, decayed=decayed, **hyper
        )
        for i, got in enumerate(jax.tree_util.tree_leaves(params)):
            assert_bits_equal(got, flat[i], f"step {t} parameter {i}")
            for slot, moments in (("exp_avg", "m"), ("exp_avg_sq", "v")):
                want = getattr(want_state, moments)[i]
                assert_bits_equal(state.slots[f"{slot}.{i}"], want, f"{t} {slot}.{i}")
        assert power(state, "b1") == want_state.power_b1
        assert power(state, "b2") == want_state.power_b2
    assert int(state.step) == STEPS
    if name == "default":
        moments = [np.abs(m).ravel() for m in (*want_state.m, *want_state.v)]
        everything = np.concatenate(moments)
        assert ((everything > 0) & (everything < 2.0**-126)).sum() >= 12


@pytest.mark.parametrize("share", [0.0, 0.001, 1.0])
def test_a_large_tensor_has_the_bits_of_the_reference(share):
    """Large enough for a guarded chain: no, few and only hard elements."""
    rng = np.random.default_rng(0)
    flat = rng.standard_normal(20_001).astype(np.float32)
    hard = np.flatnonzero(rng.random(flat.size) < share)
    params = OrderedDict(w=flat[None])
    optimizer = adamw_lerp(2e-3)
    state = optimizer.init(params)
    want, want_state = [flat[None]], adamw_lerp_init([flat[None]])
    step = jax.jit(optimizer.step)
    for t in range(6):
        grad = rng.standard_normal(flat.size).astype(np.float32)
        row = gradients(t)["z"][0]
        grad[hard] = row[np.arange(hard.size) % row.size]
        params, state = step(params, OrderedDict(w=grad[None]), state)
        want, want_state = adamw_lerp_step(
            want, [grad[None]], want_state, decayed=[True], learning_rate=2e-3
        )
        assert_bits_equal(params["w"], want[0], f"step {t}")
        assert_bits_equal(state.slots["exp_avg.0"], want_state.m[0], f"step {t} m")
        assert_bits_equal(state.slots["exp_avg_sq.0"], want_state.v[0], f"step {t} v")


def power(state, name):
    words = np.asarray(state.slots[f"{name}_power"])
    assert words.dtype == np.int32
    return words.view(np.float64)[0]


def scalar(value, rank=1):
    return OrderedDict(p=np.full((1,) * rank, value, np.float32))


def run(optimizer, params, grads, state=None):
    """Return every p and the state, after one step for each gradient."""
    state = optimizer.init(params) if state is None else state
    step, seen = jax.jit(optimizer.step), []
    for g in grads:
        params, state = step(params, scalar(g, params["p"].ndim), state)
        seen.append(float(params["p"].ravel()[0]))
    return seen, params, state


def test_resumed_after_two_steps_goes_on_bit_for_bit():
    optimizer = adamw_lerp(0.1)
    seen, params, state = run(optimizer, scalar(0.0), [1.0, -2.0, 0.5])
    deltas = np.diff([0.0, *seen])
    # Real-number values; each step rounds p and a handful of operations.
    want = [-0.099999999, 0.0366103525, 0.0136690662]
    np.testing.assert_allclose(deltas, want, rtol=0, atol=3e-8)
    _, two, before = run(optimizer, scalar(0.0), [1.0, -2.0])
    saved = dumps(TrainState(two, OrderedDict(), before))
    like = TrainState(scalar(9.0), OrderedDict(), optimizer.init(scalar(9.0)))
    loaded, _ = loads(saved, like)
    _, resumed, after = run(optimizer, loaded.params, [0.5], loaded.optimizer)
    assert_trees_bits_equal((resumed, after), (params, state))


@pytest.mark.parametrize("step", [256, 2**24, 2**24 + 1])
def test_the_step_count_is_an_integer_without_a_ceiling(step):
    optimizer = adamw_lerp(0.1)
    state = optimizer.init(scalar(0.0))
    state = dataclasses.replace(state, step=jnp.int32(step))
    _, params, after = run(optimizer, scalar(0.0), [1.0], state)
    assert after.step.dtype == jnp.int32 and int(after.step) == step + 1
    saved = dumps(TrainState(params, OrderedDict(), after))
    loaded, _ = loads(saved, TrainState(params, OrderedDict(), after))
    assert int(loaded.optimizer.step) == step + 1


def test_running_powers_after_257_steps():
    optimizer = adamw_lerp(0.1)
    _, _, state = run(optimizer, scalar(0.0), [0.5] * 257)
    want = np.cumprod(np.full(257, 0.999))[-1]
    assert power(state, "b2") == want
    assert 1 - want == pytest.approx(0.22673122395835, abs=1e-13)


@pytest.mark.parametrize(("rank", "want"), [(2, 0.99), (1, 1.0)])
def test_decay_is_decoupled_and_touches_matrices_only(rank, want):
    optimizer = adamw_lerp(0.1, weight_decay=0.1)
    seen, _, _ = run(optimizer, scalar(1.0, rank), [0.0])
    assert seen[0] == float(np.float32(want))


def test_the_choice_of_what_decays_is_a_setting():
    optimizer = adamw_lerp(0.1, weight_decay=0.1, decays=lambda p: True)
    assert run(optimizer, scalar(1.0), [0.0])[0] == [float(np.float32(0.99))]


def test_eps_is_added_after_the_bias_correction():
    optimizer = adamw_lerp(1.0, eps=1e-3, weight_decay=0.0)
    seen, _, _ = run(optimizer, scalar(0.0), [1e-3])
    assert seen[0] == pytest.approx(-0.5, abs=1e-7)


@pytest.mark.parametrize("eps", [0.0, 1e-46])
def test_eps_that_is_zero_in_binary32_is_refused(eps):
    """A zero gradient would give 0/0."""
    with pytest.raises(ValueError, match="^adamw_lerp: eps: expected above 0 in"):
        adamw_lerp(0.1, eps=eps)


def test_agrees_with_the_formula_in_double_precision():
    rng = np.random.default_rng(2)
    grads = rng.standard_normal(20).astype(np.float32)
    optimizer = adamw_lerp(2e-3, weight_decay=0.1)
    seen, _, _ = run(optimizer, scalar(0.7, 2), grads)
    want = adamw(
        np.float64(np.float32(0.7)),
        list(grads.astype(np.float64)),
        learning_rate=float(np.float32(2e-3)),
        weight_decay=0.1,
    )
    # 20 steps of half an ulp of 0.7, and of relative 1e-6 of the rate.
    np.testing.assert_allclose(seen, want, rtol=0, atol=20 * (3e-8 + 2e-9))


def test_a_schedule_gives_each_step_its_rate_and_the_state_keeps_it():
    def rate(step):
        return jnp.where(step < 2, jnp.float32(0.1), jnp.float32(0.01))

    optimizer = adamw_lerp(rate, weight_decay=0.0)
    params = scalar(0.0)
    state = optimizer.init(params)
    assert float(state.learning_rate) == pytest.approx(0.1)
    flat, want_state = [params["p"]], adamw_lerp_init([params["p"]])
    step = jax.jit(optimizer.step)
    for t in range(4):
        params, state = step(params, scalar(1.0), state)
        lr = np.float32(0.1 if t < 2 else 0.01)
        flat, want_state = adamw_lerp_step(
            flat, [np.ones(1, np.float32)], want_state, learning_rate=lr, weight_decay=0
        )
        assert_bits_equal(params["p"], flat[0], f"step {t}")
        assert_bits_equal(state.learning_rate, lr)


def test_the_rate_in_the_state_decides_without_a_schedule():
    optimizer = adamw_lerp(0.1, weight_decay=0.0)
    state = dataclasses.replace(
        optimizer.init(scalar(0.0)), learning_rate=jnp.float32(0.25)
    )
    seen, _, after = run(optimizer, scalar(0.0), [1.0], state)
    assert seen[0] == pytest.approx(-0.25, abs=1e-7)
    assert float(after.learning_rate) == 0.25


def test_eager_and_compiled_steps_have_the_same_bits():
    optimizer = adamw_lerp(2e-3)
    params = OrderedDict(w=parameters()["z"])
    grads = OrderedDict(w=gradients(0)["z"])
    state = optimizer.init(params)
    eager = optimizer.step(params, grads, state)
    assert_trees_bits_equal(eager, jax.jit(optimizer.step)(params, grads, state))


def test_fast_arithmetic_is_near_the_exact_one():
    params, grads = (
        OrderedDict(w=np.float32([[1, 2]])),
        OrderedDict(w=np.float32([[0.1, -3]])),
    )
    results = []
    for arithmetic in ("exact", "fast"):
        optimizer = adamw_lerp(0.1, arithmetic=arithmetic)
        step = jax.jit(optimizer.step)
        results.append(step(params, grads, optimizer.init(params))[0]["w"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


BAD = {
    "b1": ({"b1": 1.0}, r"b1: expected 0.0 <= value < 1.0, got 1.0"),
    "b2": ({"b2": -0.1}, r"b2: expected 0.0 <= value < 1.0, got -0.1"),
    "eps": ({"eps": -1e-8}, "eps: expected 0.0 <= value < inf, got -1e-08"),
    "weight_decay": ({"weight_decay": float("nan")}, "weight_decay: .* got nan"),
    "a huge integer": ({"eps": 10**400}, "eps: .* got an integer beyond binary64"),
    "arithmetic": ({"arithmetic": "none"}, "arithmetic: expected one of 'exact'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_hyper_parameters_are_refused(case):
    options, text = BAD[case]
    with pytest.raises(ValueError, match=f"^adamw_lerp: {text}"):
        adamw_lerp(0.1, **options)


@pytest.mark.parametrize("bad", ["0.5", None, [0.5], 1j, np.zeros(2)])
@pytest.mark.parametrize("name", ["b1", "b2", "eps", "weight_decay"])
def test_a_hyper_parameter_that_is_no_number_is_refused(name, bad):
    with pytest.raises(TypeError, match=f"^adamw_lerp: {name}: expected 0.0 <= value"):
        adamw_lerp(0.1, **{name: bad})


def test_a_rate_that_is_infinite_in_binary32_is_refused():
    largest = float(np.finfo(np.float32).max)
    state = adamw_lerp(largest + 2.0**102).init(scalar(0.0))
    assert_bits_equal(state.learning_rate, np.float32(largest))
    text = "^adamw_lerp: learning_rate: expected finite in float32, got "
    for rate in (largest + 2.0**103, 1e300):
        with pytest.raises(ValueError, match=text):
            adamw_lerp(rate).init(scalar(0.0))


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_bad_learning_rates_are_refused(rate):
    with pytest.raises(ValueError, match="^adamw_lerp: learning_rate: expected 0.0 <="):
        adamw_lerp(rate).init(scalar(0.0))


def test_gradients_of_another_tree_shape_or_type_are_refused():
    optimizer = adamw_lerp(0.1)
    params = OrderedDict(a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))
    state = optimizer.init(params)
    reordered = OrderedDict(b=params["b"], a=params["a"])
    with pytest.raises(ValueError, match="^adamw_lerp: grads: expected the tree of"):
        optimizer.step(params, reordered, state)
    for bad, error in ((np.zeros(3, np.float32), ValueError), (np.zeros(2), TypeError)):
        grads = OrderedDict(a=params["a"], b=bad)
        text = r"^adamw_lerp: grads\['b'\]: expected float32\[2\], got float..\[.\]$"
        with pytest.raises(error, match=text):
            optimizer.step(params, grads, state)


@pytest.mark.parametrize("arithmetic", ["exact", "fast"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_parameters_of_another_type_are_refused_never_promoted(dtype, arithmetic):
    optimizer = adamw_lerp(0.1, arithmetic=arithmetic)
    state = optimizer.init(scalar(1.0))
    with jax.enable_x64(True):
        bad = OrderedDict(p=jnp.ones(1, dtype))
    text = rf"^adamw_lerp: params\['p'\]: expected float32, got {dtype}\[1\]$"
    with pytest.raises(TypeError, match=text):
        optimizer.init(bad)
    for grads in (bad, scalar(1.0)):
        with pytest.raises(TypeError, match=text):
            optimizer.step(bad, grads, state)


BAD_STATES = {
    "no state": (lambda s: {"step": 0}, TypeError, "state: expected OptimizerState"),
    "a step of int64": (
        lambda s: dataclasses.replace(s, step=np.int64(0)),
        TypeError,
        r"state.step: expected int32\[\], got int64\[\]",
    ),
    "a rate that is a number": (
        lambda s: dataclasses.replace(s, learning_rate=0.1),
        TypeError,
        r"state.learning_rate: expected float32\[\], got float",
    ),
    "a slot of float64": (
        lambda s: with_slot(s, "exp_avg.0", np.zeros(1)),
        TypeError,
        r"state.slots\['exp_avg.0'\]: expected float32\[1\], got float64\[1\]",
    ),
    "a slot of another shape": (
        lambda s: with_slot(s, "exp_avg_sq.0", np.zeros(2, np.float32)),
        ValueError,
        r"state.slots\['exp_avg_sq.0'\]: expected float32\[1\], got float32\[2\]",
    ),
    "a slot too many": (
        lambda s: with_slot(s, "exp_avg.1", np.zeros(1, np.float32)),
        ValueError,
        "state.slots: expected 4 slots for these params, got 'exp_avg.1'",
    ),
    "a slot missing": (
        lambda s: with_slot(s, "b2_power", None),
        ValueError,
        r"state.slots\['b2_power'\]: expected int32\[2\], got no such slot",
    ),
}


def with_slot(state, name, value):
    slots = OrderedDict((k, v) for k, v in state.slots.items() if k != name)
    if value is not None:
        slots[name] = value
    return dataclasses.replace(state, slots=slots)


@pytest.mark.parametrize("case", BAD_STATES)
def test_a_state_that_does_not_fit_is_refused(case):
    change, error, text = BAD_STATES[case]
    optimizer = adamw_lerp(0.1)
    state = change(optimizer.init(scalar(0.0)))
    with pytest.raises(error, match=f"^adamw_lerp: {text}"):
        optimizer.step(scalar(0.0), scalar(1.0), state)


@pytest.mark.parametrize(
    ("schedule", "error", "got"),
    [
        (lambda step: 0.1, TypeError, "float"),
        (lambda step: np.float64(0.1), TypeError, r"float64\[\]"),
        (lambda step: np.full(1, 0.1, np.float32), ValueError, r"float32\[1\]"),
    ],
)
def test_a_schedule_of_another_type_is_refused(schedule, error, got):
    text = rf"^adamw_lerp: learning_rate\(step\): expected float32\[\], got {got}$"
    state = adamw_lerp(0.1).init(scalar(0.0))
    optimizer = adamw_lerp(schedule)
    with pytest.raises(error, match=text):
        optimizer.init(scalar(0.0))
    with pytest.raises(error, match=text):
        optimizer.step(scalar(0.0), scalar(1.0), state)
