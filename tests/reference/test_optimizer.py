"""Optimizer steps and clipping: hand-worked cases, float64 truth, stated orders."""

import numpy as np
import pytest

from onemodel_jax.reference.float64 import optimizer as truth
from onemodel_jax.reference.lanes import clipping, optimizer
from tests.support import assert_bits_equal

F = np.float32


def run_lerp(param, grads, **hyper):
    params, state = [np.asarray(param, F)], None
    state = optimizer.adamw_lerp_init(params)
    history = []
    for g in grads:
        params, state = optimizer.adamw_lerp_step(params, [F(g)], state, **hyper)
        history.append(params[0])
    return history, state


def test_adamw_lerp_hand_worked_steps():
    grads = [np.array([g]) for g in (1.0, -2.0, 0.5)]
    history, state = run_lerp([0.0], grads, learning_rate=0.1, weight_decay=0.0)
    deltas = np.diff([0.0, *(float(p[0]) for p in history)])
    wanted = [-0.099999999, 0.0366103525, 0.0136690662]
    np.testing.assert_allclose(deltas, wanted, rtol=0, atol=3e-8)
    assert float(history[-1][0]) == pytest.approx(-0.0497205803, abs=2e-8)
    assert state.step == 3
    assert_bits_equal(state.power_b2, np.float64(0.999 * 0.999 * 0.999))


def test_float64_adamw_hand_worked_steps():
    grads = [np.array([g]) for g in (1.0, -2.0, 0.5)]
    history = truth.adamw(np.zeros(1), grads, learning_rate=0.1, weight_decay=0.0)
    deltas = np.diff([0.0, *(float(p[0]) for p in history)])
    wanted = [-0.099999999, 0.0366103525, 0.0136690662]
    np.testing.assert_allclose(deltas, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("step", ["lerp", "adamw"])
def test_agrees_with_float64_over_twenty_steps(step):
    rng = np.random.default_rng(0)
    param = rng.standard_normal(40).astype(F)
    grads = [rng.standard_normal(40).astype(F) for _ in range(20)]
    hyper = {"learning_rate": 1e-2, "weight_decay": 0.1}
    if step == "lerp":
        got = run_lerp(param, grads, **hyper)[0][-1]
    else:
        params, state = [param], optimizer.adam_init([param])
        for g in grads:
            params, state = optimizer.adam_step(
                params, [g], state, decoupled=True, **hyper
            )
        got = params[0]
    want = truth.adamw(np.float64(param), [np.float64(g) for g in grads], **hyper)[-1]
    # Twenty steps of a handful of roundings on values of size one.
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_adamw_lerp_rounds_each_operation():
    rng = np.random.default_rng(1)
    p, g, m = rng.standard_normal((3, 50)).astype(F)
    v = np.abs(rng.standard_normal(50)).astype(F)
    state = optimizer.AdamWLerpState(1, np.float64(0.9), np.float64(0.999), [m], [v])
    (got,), after = optimizer.adamw_lerp_step(
        [p], [g], state, learning_rate=0.7, weight_decay=0.01
    )
    lr = float(F(0.7))
    step_size, root = F(lr / (1 - 0.9 * 0.9)), F(np.sqrt(1 - 0.999 * 0.999))
    for n in range(50):
        new_m = F(m[n] + F(F(1 - 0.9) * F(g[n] - m[n])))
        new_v = F(F(v[n] * F(0.999)) + F(F(1 - 0.999) * F(g[n] * g[n])))
        ratio = F(new_m / F(F(F(np.sqrt(new_v)) / root) + F(1e-8)))
        want = F(F(p[n] * F(1 - lr * 0.01)) - F(step_size * ratio))
        assert_bits_equal(got[n], want)
        assert_bits_equal(after.m[0][n], new_m)
        assert_bits_equal(after.v[0][n], new_v)


@pytest.mark.parametrize("decoupled", [False, True])
def test_library_adam_rounds_each_operation(decoupled):
    rng = np.random.default_rng(2)
    p, g, m = rng.standard_normal((3, 50)).astype(F)
    v = np.abs(rng.standard_normal(50)).astype(F)
    state = optimizer.AdamState(2, [m], [v], [v])
    hyper = {"learning_rate": 0.7, "weight_decay": 0.01, "decoupled": decoupled}
    (got,), after = optimizer.adam_step([p], [g], state, **hyper)
    lr = float(F(0.7))
    step_size = F(lr / (1 - 0.9 * (0.9 * 0.9)))
    root = F(np.sqrt(1 - 0.999 * (0.999 * 0.999)))
    for n in range(50):
        value = F(p[n] * F(1 - lr * 0.01)) if decoupled else p[n]
        grad = g[n] if decoupled else F(g[n] + F(F(0.01) * p[n]))
        new_m = F(F(F(0.9) * m[n]) + F(F(1 - 0.9) * grad))
        new_v = F(F(F(0.999) * v[n]) + F(F(F(1 - 0.999) * grad) * grad))
        below = F(F(F(np.sqrt(new_v)) / root) + F(1e-8))
        assert_bits_equal(got[n], F(value - F(F(step_size * new_m) / below)))
        assert_bits_equal(after.exp_avg[0][n], new_m)
        assert_bits_equal(after.exp_avg_sq[0][n], new_v)


def test_library_sgd_rounds_each_operation():
    rng = np.random.default_rng(3)
    p, g, b = rng.standard_normal((3, 50)).astype(F)
    state = optimizer.SgdState(2, [b], [True])
    hyper = {"learning_rate": 3e-3, "momentum": 0.9, "weight_decay": 0.01}
    (got,), after = optimizer.sgd_step([p], [g], state, nesterov=True, **hyper)
    for n in range(50):
        grad = F(g[n] + F(F(0.01) * p[n]))
        buffer = F(F(F(0.9) * b[n]) + F(F(1) * grad))
        grad = F(grad + F(F(0.9) * buffer))
        assert_bits_equal(got[n], F(p[n] - F(F(3e-3) * grad)))
        assert_bits_equal(after.momentum_buffer[0][n], buffer)


def test_tensors_not_flagged_do_not_decay():
    ones = [np.ones(2, F), np.ones(2, F)]
    still = [np.zeros(2, F)] * 2
    state = optimizer.adamw_lerp_init(ones)
    (first, second), _ = optimizer.adamw_lerp_step(
        ones, still, state, learning_rate=0.5, weight_decay=0.5, decayed=[True, False]
    )
    assert_bits_equal(first, np.full(2, 0.75, F))
    assert_bits_equal(second, ones[1])


def test_moments_decay_into_the_subnormals_and_are_kept():
    m, v = [np.full(1, 2.0**-126, F)], [np.full(1, 1.0, F)]
    state = optimizer.AdamWLerpState(5, np.float64(0.5), np.float64(0.9), m, v)
    _, after = optimizer.adamw_lerp_step(
        [np.ones(1, F)], [np.zeros(1, F)], state, learning_rate=1e-3
    )
    assert 0 < after.m[0][0] < 2.0**-126


def test_power_multiplies_by_binary_exponentiation():
    assert optimizer.power(0.9, 0) == 1.0
    square = 0.9 * 0.9
    assert optimizer.power(0.9, 5) == 0.9 * (square * square)
    assert optimizer.power(0.999, 257) == pytest.approx(1 - 0.22673122395835, abs=1e-14)


def test_adam_adds_decay_to_the_gradient_and_skips_missing_ones():
    params = [np.array([2.0], F), np.array([3.0], F)]
    state = optimizer.adam_init(params)
    new, after = optimizer.adam_step(
        params, [np.zeros(1, F), None], state, learning_rate=0.1, weight_decay=0.5
    )
    # g = 0 + 0.5 * 2 = 1, so the first step is -lr / (1 + eps).
    assert float(new[0][0]) == pytest.approx(1.9, abs=1e-6)
    assert_bits_equal(new[1], params[1])
    assert_bits_equal(after.exp_avg[1], np.zeros(1, F))
    assert after.step == 1


def test_amsgrad_keeps_the_largest_second_moment():
    params, hyper = [np.zeros(1, F)], {"learning_rate": 0.1, "amsgrad": True}
    state = optimizer.adam_init(params)
    for g in (10.0, 0.0, 0.0):
        params, state = optimizer.adam_step(params, [np.full(1, g, F)], state, **hyper)
    assert state.max_exp_avg_sq[0][0] == F(F(1 - 0.999) * F(10)) * F(10)
    assert state.exp_avg_sq[0][0] < state.max_exp_avg_sq[0][0]


def test_sgd_first_buffer_is_the_gradient_then_momentum_and_nesterov():
    params, state = [np.array([1.0], F)], optimizer.sgd_init([np.zeros(1, F)])
    hyper = {"learning_rate": 0.5, "momentum": 0.5}
    g = [np.array([1.0], F)]
    params, state = optimizer.sgd_step(params, g, state, dampening=0.25, **hyper)
    assert params[0][0] == 0.5 and state.momentum_buffer[0][0] == 1.0
    params, state = optimizer.sgd_step(params, g, state, dampening=0.25, **hyper)
    assert state.momentum_buffer[0][0] == 1.25 and params[0][0] == -0.125
    params, state = optimizer.sgd_step(params, g, state, nesterov=True, **hyper)
    assert state.momentum_buffer[0][0] == 1.625
    assert params[0][0] == -0.125 - 0.5 * (1 + 0.5 * 1.625)
    assert state.step == 3


def test_sgd_weight_decay_and_missing_gradient():
    params = [np.array([2.0], F), np.array([2.0], F)]
    state = optimizer.sgd_init(params)
    grads = [np.ones(1, F), None]
    new, state = optimizer.sgd_step(
        params, grads, state, learning_rate=0.5, weight_decay=0.5, momentum=0.5
    )
    assert new[0][0] == 1.0 and new[1][0] == 2.0
    assert state.initialized == [True, False]


@pytest.mark.parametrize("hyper", [{}, {"momentum": 0.9, "dampening": 0.1}])
def test_sgd_nesterov_needs_momentum_and_no_dampening(hyper):
    state = optimizer.sgd_init([np.zeros(1, F)])
    with pytest.raises(ValueError, match="sgd: nesterov: expected momentum > 0"):
        optimizer.sgd_step(
            [np.zeros(1, F)], [None], state, learning_rate=1, nesterov=True, **hyper
        )


def arrays(*values):
    return [np.array(v, F) for v in values]


def test_library_norm_does_not_overflow_and_clips_globally():
    grads, norm = clipping.clip_norm(arrays([1e20] * 60, [1e20] * 40), 1.0)
    assert norm == pytest.approx(1.00000002e21, rel=1e-6)
    for g in grads:
        np.testing.assert_allclose(g, 0.1, rtol=1e-6)


@pytest.mark.parametrize("clip", [clipping.clip_norm, clipping.clip_lanes])
@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_zero_gradients_stay_zero(clip, limit):
    grads, norm = clip(arrays([0, 0]), limit)
    assert_bits_equal(grads[0], np.zeros(2, F))
    assert norm == 0


@pytest.mark.parametrize("clip", [clipping.clip_norm, clipping.clip_lanes])
@pytest.mark.parametrize("values", [[np.inf, 1], [np.nan, 1]])
def test_a_norm_that_is_not_finite_scales_nothing(clip, values):
    grads, norm = clip(arrays(values, [3]), 1.0)
    assert not np.isfinite(norm)
    assert_bits_equal(grads[0], arrays(values)[0])
    assert_bits_equal(grads[1], arrays([3])[0])


@pytest.mark.parametrize("clip", [clipping.clip_norm, clipping.clip_lanes])
def test_no_gradients_have_norm_zero(clip):
    grads, norm = clip([], 1.0)
    assert grads == [] and norm == 0


def test_recognizer_clips_only_above_the_limit():
    grads, norm = clipping.clip_lanes(arrays([3, 4]), 5.0)
    assert norm == 5.0
    assert_bits_equal(grads[0], arrays([3, 4])[0])
    grads, norm = clipping.clip_lanes(arrays([3], [4]), 2.5)
    factor = F(2.5 / (5.0 + 1e-6))
    assert_bits_equal(grads[0], np.array([3], F) * factor)
    assert_bits_equal(grads[1], np.array([4], F) * factor)
    wide, wide_norm = truth.clip_by_norm([np.float64(g) for g in arrays([3], [4])], 2.5)
    assert wide_norm == norm
    np.testing.assert_allclose(np.concatenate(grads), np.concatenate(wide), rtol=2e-7)


def test_library_clips_at_the_limit_as_its_factor_is_below_one():
    # 5 / (5 + 1e-6) is below 1, unlike the recognizer's comparison of norms.
    grads, norm = clipping.clip_norm(arrays([3, 4]), 5.0)
    assert norm == 5.0
    assert_bits_equal(grads[0], arrays([3, 4])[0] * F(5 / (5 + 1e-6)))


def test_recognizer_norm_squares_in_float32_lanes_and_library_norm_in_float64():
    grads = arrays([2.0**13, *[0] * 15, 1])  # lane 0: 2^26 + 1 rounds to 2^26
    assert clipping.global_norm_lanes(grads) == 2.0**13
    assert clipping.global_norm(grads) == np.sqrt(2.0**26 + 1)
    assert clipping.global_norm(arrays([1, -7], [3]), infinity=True) == 7
    assert np.isnan(clipping.global_norm(arrays([np.nan, 1]), infinity=True))


def test_clip_value_clamps_and_keeps_nan():
    (got,) = clipping.clip_value(arrays([-3, -0.5, np.nan, 3, np.inf]), 1.0)
    assert_bits_equal(got, np.array([-1, -0.5, np.nan, 1, 1], F))
