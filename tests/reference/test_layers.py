"""Layers in lane order: truth against float64, stated orders on chosen operands."""

import numpy as np
import pytest

from onemodel_jax.reference.float64 import layers as truth
from onemodel_jax.reference.lanes.convolution import (
    conv_relu_pool,
    conv_relu_pool_backward,
    padded_width,
)
from onemodel_jax.reference.lanes.elementary import sigmoid, tanh
from onemodel_jax.reference.lanes.lanes import dot
from onemodel_jax.reference.lanes.linear import linear, linear_backward
from onemodel_jax.reference.lanes.recurrent import (
    LstmParams,
    bilstm,
    bilstm_backward,
    lstm,
    lstm_backward,
    lstm_gate_gradients,
)
from tests.support import assert_bits_equal

# float32 results over sums of about a hundred terms of size one: a few dozen ulps.
TOLERANCE = 2e-6


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def assert_close(got, want, message=""):
    """Compare a float32 result with float64 truth on the scale of the tensor."""
    scale = np.max(np.abs(want), initial=0.0) + 1e-30
    assert got.shape == want.shape, message
    assert np.max(np.abs(got - want), initial=0.0) <= TOLERANCE * scale, message


def wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def test_linear_agrees_with_float64():
    rng = np.random.default_rng(0)
    x, w, b, g = (
        normal(rng, 9, 37),
        normal(rng, 5, 37),
        normal(rng, 5),
        normal(rng, 9, 5),
    )
    assert_close(linear(x, w, b), truth.linear(*wide(x, w, b)))
    want = truth.linear_backward(*wide(g, x, w))
    for got, expected in zip(linear_backward(g, x, w), want, strict=True):
        assert_close(got, expected)


def test_linear_gradients_are_dots_over_time_and_over_outputs():
    rng = np.random.default_rng(1)
    x, w, g = normal(rng, 35, 3), normal(rng, 20, 3), normal(rng, 35, 20)
    grad_x, grad_w, grad_b = linear_backward(g, x, w)
    assert_bits_equal(grad_w[7, 2], dot(g[:, 7], x[:, 2]))
    assert_bits_equal(grad_b[7], dot(g[:, 7], np.ones(35)))
    assert_bits_equal(grad_x[4, 1], dot(g[4], w[:, 1]))


def test_linear_adds_the_bias_after_the_dot():
    x, w = np.ones((1, 2), np.float32), np.array([[2.0**24, 1]], np.float32)
    # The dot is a tie to 2^24; a bias inside the sum would give 2^24 + 2.
    assert linear(x, w, np.ones(1, np.float32))[0, 0] == 2.0**24


GEOMETRIES = [
    # (H, W, C), outputs, kernel, padding, pool
    ((6, 9, 1), 4, (3, 3), (1, 1), (2, 2)),
    ((5, 7, 3), 5, (3, 3), (1, 1), (2, 1)),
    ((4, 6, 2), 3, (2, 3), (0, 2), (1, 1)),
    ((7, 5, 2), 3, (3, 1), (1, 0), (3, 2)),
    ((2, 2, 1), 2, (4, 4), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("shape, outputs, kernel, padding, pool", GEOMETRIES)
def test_conv_relu_pool_agrees_with_float64(shape, outputs, kernel, padding, pool):
    rng = np.random.default_rng(2)
    x, b = normal(rng, *shape), normal(rng, outputs)
    w = np.zeros((outputs, padded_width(kernel, shape[2])), np.float32)
    real = kernel[0] * kernel[1] * shape[2]
    w[:, :real] = normal(rng, outputs, real)
    at = {"kernel": kernel, "padding": padding}
    y, tape = conv_relu_pool(x, w, b, pool=pool, **at)
    assert_close(y, truth.conv_relu_pool(*wide(x, w, b), pool=pool, **at))
    g = normal(rng, *y.shape)
    got = conv_relu_pool_backward(g, tape, w, **at)
    want = truth.conv_relu_pool_backward(*wide(g, x, w, b), pool=pool, **at)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    assert_bits_equal(got[1][:, real:], np.zeros_like(w[:, real:]))
    nothing, grad_w, grad_b = conv_relu_pool_backward(g, tape, w, need_dx=False, **at)
    assert nothing is None
    assert_bits_equal(grad_w, got[1])
    assert_bits_equal(grad_b, got[2])


def pointwise(x, pool):
    """Pool x itself: a 1x1 convolution with weight 1, bias 0."""
    weight = np.zeros((1, 16), np.float32)
    weight[0, 0] = 1
    geometry = {"kernel": (1, 1), "padding": (0, 0)}
    x = np.asarray(x, np.float32)[:, :, None]
    y, tape = conv_relu_pool(x, weight, np.zeros(1, np.float32), pool=pool, **geometry)
    grad = np.ones_like(y)
    return y[:, :, 0], tape, conv_relu_pool_backward(grad, tape, weight, **geometry)


def test_first_of_equal_maxima_wins_rows_then_columns():
    y, tape, (grad_x, _, _) = pointwise([[1, 2], [2, 2]], (2, 2))
    assert y[0, 0] == 2 and tape.winners[0, 0, 0] == 1
    assert_bits_equal(grad_x[:, :, 0], np.array([[0, 1], [0, 0]], np.float32))


def test_nothing_positive_has_no_winner_and_no_gradient():
    y, tape, (grad_x, grad_w, grad_b) = pointwise([[-1, 0], [-0.0, -3]], (2, 2))
    assert tape.winners[0, 0, 0] == -1
    assert_bits_equal(y, np.zeros((1, 1), np.float32))
    for grad in (grad_x, grad_w, grad_b):
        assert_bits_equal(grad, np.zeros_like(grad))


def test_nan_never_wins():
    for window in ([[np.nan, 1]], [[1, np.nan]]):
        y, _, _ = pointwise(window, (1, 2))
        assert y[0, 0] == 1
    y, tape, _ = pointwise([[np.nan, np.nan]], (1, 2))
    assert y[0, 0] == 0 and tape.winners[0, 0, 0] == -1


def test_trailing_partial_windows_are_dropped():
    y, _, (grad_x, _, _) = pointwise([[1, 2, 9], [3, 4, 9], [9, 9, 9]], (2, 2))
    assert_bits_equal(y, np.array([[4]], np.float32))
    assert grad_x.sum() == 1 and grad_x[1, 1, 0] == 1


def test_input_gradient_adds_taps_in_ascending_order_from_plus_zero():
    # One output channel, kernel 1x3 of weights 2^24, 1, 1: the middle input gets
    # (2^24 + 1) + 1 = 2^24 ascending, and 2^24 + 2 descending.
    weight = np.zeros((1, 16), np.float32)
    weight[0, :3] = 2.0**24, 1, 1
    at = {"kernel": (1, 3), "padding": (0, 1)}
    x = np.ones((1, 3, 1), np.float32)
    y, tape = conv_relu_pool(x, weight, np.zeros(1, np.float32), pool=(1, 1), **at)
    grad_x, _, _ = conv_relu_pool_backward(np.ones_like(y), tape, weight, **at)
    assert grad_x[0, 1, 0] == 2.0**24


def test_kernel_beyond_the_padded_input_is_refused():
    weight, bias = np.zeros((1, 16), np.float32), np.zeros(1, np.float32)
    at = {"kernel": (3, 3), "padding": (0, 0), "pool": (1, 1)}
    y, _ = conv_relu_pool(np.zeros((2, 5, 1)), weight, bias, **at)
    assert y.shape == (0, 3, 1)
    with pytest.raises(ValueError, match="conv_relu_pool: kernel: expected at most"):
        conv_relu_pool(np.zeros((1, 5, 1)), weight, bias, **at)
    with pytest.raises(ValueError, match="weight: expected rows of 32"):
        conv_relu_pool(np.zeros((5, 5, 2)), weight, bias, **at)


def lstm_params(rng, width, size):
    parts = normal(rng, 4 * size, width), normal(rng, 4 * size, size)
    return LstmParams(*(p / np.float32(4) for p in parts), normal(rng, 4 * size))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 19])
def test_lstm_agrees_with_float64(steps, reverse):
    rng = np.random.default_rng(3)
    params, x = lstm_params(rng, 7, 5), normal(rng, steps, 7)
    weights = truth.LstmWeights(*wide(*params))
    out, tape = lstm(x, params, reverse=reverse)
    (wide_x,) = wide(x)
    assert_close(out, truth.lstm(wide_x, weights, reverse=reverse))
    g = normal(rng, steps, 5)
    grad_x, grads = lstm_backward(g, x, tape, params, reverse=reverse)
    want_x, want = truth.lstm_backward(*wide(g, x), weights, reverse=reverse)
    assert_close(grad_x, want_x)
    for name in LstmParams._fields:
        assert_close(getattr(grads, name), getattr(want, name), name)


def test_bilstm_joins_two_directions_and_their_input_gradients():
    rng = np.random.default_rng(4)
    ahead, back = lstm_params(rng, 6, 3), lstm_params(rng, 6, 3)
    x, g = normal(rng, 11, 6), normal(rng, 11, 6)
    out, tapes = bilstm(x, ahead, back)
    first, first_tape = lstm(x, ahead)
    second, second_tape = lstm(x, back, reverse=True)
    assert_bits_equal(out, np.concatenate([first, second], axis=1))
    grad_x, grad_ahead, grad_back = bilstm_backward(g, x, tapes, ahead, back)
    part1, want_ahead = lstm_backward(g[:, :3], x, first_tape, ahead)
    part2, want_back = lstm_backward(g[:, 3:], x, second_tape, back, reverse=True)
    assert_close(grad_x, np.float64(part1) + np.float64(part2))
    for got, want in ((grad_ahead, want_ahead), (grad_back, want_back)):
        for name in LstmParams._fields:
            assert_bits_equal(getattr(got, name), getattr(want, name), name)


def test_bilstm_input_gradient_is_one_dot_over_both_directions_gates():
    # dz of 24 forward gates, then 24 reverse: the reverse ones start at lane 8.
    rng = np.random.default_rng(5)
    ahead, back = lstm_params(rng, 2, 6), lstm_params(rng, 2, 6)
    x, g = normal(rng, 1, 2), normal(rng, 1, 12)
    _, tapes = bilstm(x, ahead, back)
    grad_x, grad_ahead, grad_back = bilstm_backward(g, x, tapes, ahead, back)
    gates = np.concatenate([grad_ahead.b, grad_back.b])  # one step: db is dz
    weights = np.concatenate([ahead.w_ih, back.w_ih])
    assert_bits_equal(grad_x[0, 1], dot(gates, weights[:, 1]))


def test_lstm_has_the_bits_of_the_stated_steps():
    rng = np.random.default_rng(6)
    size, f32 = 3, np.float32
    params, x, g = lstm_params(rng, 20, size), normal(rng, 4, 20), normal(rng, 4, size)
    out, tape = lstm(x, params)
    hidden = cell = np.zeros(size, f32)
    for t in range(4):
        z = np.zeros(4 * size, f32)
        for n in range(4 * size):
            start = f32(dot(x[t], params.w_ih[n]) + params.b[n])
            z[n] = f32(start + dot(hidden, params.w_hh[n]))
        i, f, cand, o = sigmoid(z[:3]), sigmoid(z[3:6]), tanh(z[6:9]), sigmoid(z[9:])
        for j in range(size):
            cell[j] = f32(f32(f[j] * cell[j]) + f32(i[j] * cand[j]))
        hidden = o * tanh(cell)
        assert_bits_equal(out[t], hidden)
        cell = cell.copy()
    grad_z = lstm_gate_gradients(g, tape, params)
    next_cell = np.zeros(size, f32)
    for t in reversed(range(4)):
        (i, f, cand, o), tc = tape.gates[t], tape.tanh_cell[t]
        for j in range(size):
            after = grad_z[t + 1] if t < 3 else np.zeros(4 * size, f32)
            dh = f32(g[t, j] + dot(after, params.w_hh[:, j]))
            bracket = f32(1 - f32(tc[j] * tc[j]))
            dc = f32(next_cell[j] + f32(f32(dh * o[j]) * bracket))
            di, df, dg = dc * cand[j], dc * tape.cell_before[t, j], dc * i[j]
            do = f32(dh * tc[j])
            want = [
                di * f32(i[j] * f32(1 - i[j])),
                df * f32(f[j] * f32(1 - f[j])),
                dg * f32(1 - f32(cand[j] * cand[j])),
                do * f32(o[j] * f32(1 - o[j])),
            ]
            assert_bits_equal(grad_z[t, j::size], np.array(want, f32))
            next_cell[j] = dc * f[j]


FORWARD_H = [0.36960635293570576, 0.7172269517026472]
REVERSE_H = [0.6578066755934626, 0.51438592253464]


def test_lstm_hand_case_of_one_unit_in_both_directions():
    half = LstmParams(*(np.full(s, 0.5, np.float32) for s in [(4, 1), (4, 1), (4,)]))
    x = np.array([[1], [2]], np.float32)
    out, (ahead, back) = bilstm(x, half, half)
    # Five rounded operations a step on values below 2: a few float32 ulps.
    np.testing.assert_allclose(out[:, 0], FORWARD_H, rtol=0, atol=2e-7)
    np.testing.assert_allclose(out[:, 1], REVERSE_H, rtol=0, atol=2e-7)
    assert abs(ahead.cell[1, 0] - 1.2570864447768793) < 3e-7
    assert abs(back.cell[0, 0] - 1.2381274443295274) < 3e-7
    wide_half = truth.LstmWeights(*wide(*half))
    got = truth.lstm(np.float64(x), wide_half, reverse=True)[:, 0]
    np.testing.assert_allclose(got, REVERSE_H, rtol=1e-14)
    np.testing.assert_allclose(
        truth.lstm(np.float64(x), wide_half)[:, 0], FORWARD_H, rtol=1e-14
    )
