"""Convolution, ReLU and pooling: bits, winners, ragged widths, ways, errors."""

import itertools

import jax
import numpy as np
import pytest

from onemodel_jax.ops import conv_relu_pool
from onemodel_jax.reference.lanes import convolution as reference
from tests.ops.operands import (
    FILLS,
    KINDS,
    TINY,
    assert_zero_beyond,
    fill_beyond,
    stack_alone,
    sum_in_order,
)
from tests.ops.ways import every_way
from tests.support import assert_bits_equal

NAMES = "y", "dx", "dW", "db"
K3 = {"kernel": (3, 3), "padding": (1, 1)}

# name: (H, W, C, O), widths, options. Taps times channels are the terms of a dot, so
# are the outputs, and so are the positions of a line.
CASES = {
    "first block": ((6, 9, 1, 4), (9, 6, 1), {**K3, "pool": (2, 2)}),
    "partial windows": ((5, 7, 3, 5), (7, 4), {**K3, "pool": (2, 2)}),
    "no channels": ((4, 4, 0, 2), (4,), {"kernel": (1, 1), "padding": (0, 0)}),
    "2 taps, padded": (
        (3, 6, 1, 2),
        (6, 1, 0),
        {"kernel": (1, 2), "padding": (0, 1), "pool": (1, 2)},
    ),
    "1 tap, 16 channels": (
        (4, 5, 16, 17),
        (5, 4, 0),
        {"kernel": (1, 1), "padding": (0, 0), "pool": (1, 1)},
    ),
    "15 taps": ((3, 5, 1, 1), (5, 2), {"kernel": (3, 5), "padding": (2, 4)}),
    "17 taps": (
        (4, 18, 1, 33),
        (18, 17),
        {"kernel": (1, 17), "padding": (0, 8), "pool": (2, 1)},
    ),
    "100 taps": ((4, 5, 25, 2), (5, 3), {"kernel": (2, 2), "padding": (1, 1)}),
    "1152 taps": ((2, 3, 128, 2), (3, 2), {**K3, "pool": (2, 1)}),
    "no output": ((2, 3, 1, 2), (3,), {**K3, "pool": (3, 1)}),
    "kernel one too large": ((2, 3, 1, 2), (3,), {"kernel": (3, 1), "padding": (0, 0)}),
}


def value_and_grads(x, weight, bias, widths, dy, options):
    def run(x, weight, bias):
        return conv_relu_pool(x, weight, bias, widths=widths, **dict(options))

    y, pullback = jax.vjp(run, x, weight, bias)
    return (y, *pullback(dy))


compiled = jax.jit(value_and_grads, static_argnums=5)


def frozen(options):
    return tuple(sorted(options.items()))


def out_size(size, axis, options):
    padding = options.get("padding", (1, 1))[axis]
    inner = size + 2 * padding - options["kernel"][axis] + 1
    return max(inner, 0) // options.get("pool", (1, 1))[axis]


def draw(name, kind, seed=0):
    (height, width, channels, outputs), widths, options = CASES[name]
    rng = np.random.default_rng([seed, height, width, channels, outputs])
    columns = reference.padded_width(options["kernel"], channels)
    real = options["kernel"][0] * options["kernel"][1] * channels
    x = KINDS[kind](rng, (len(widths), height, width, channels))
    weight = np.zeros((outputs, columns), np.float32)
    weight[:, :real] = KINDS[kind](rng, (outputs, real))
    bias = KINDS[kind](rng, (outputs,))
    sizes = out_size(height, 0, options), out_size(width, 1, options)
    dy = KINDS[kind](rng, (len(widths), *sizes, outputs))
    return x, weight, bias, np.array(widths, np.int32), dy


def by_reference(x, weight, bias, widths, dy, options):
    """Run every line alone, cut to its own width; add the gradients in order."""
    geometry = {k: options[k] for k in ("kernel", "padding")}
    pool = options.get("pool", (1, 1))
    y, dx, dw, db = np.zeros(dy.shape, np.float32), np.zeros_like(x), [], []
    for n, width in enumerate(widths):
        if width + 2 * geometry["padding"][1] - geometry["kernel"][1] + 1 < 0:
            dw.append(np.zeros_like(weight))
            db.append(np.zeros_like(bias))
            continue
        own, tape = reference.conv_relu_pool(
            x[n, :, :width], weight, bias, pool=pool, **geometry
        )
        out = own.shape[1]
        y[n, :, :out] = own
        grads = reference.conv_relu_pool_backward(
            dy[n, :, :out], tape, weight, **geometry
        )
        dx[n, :, :width] = grads[0]
        dw.append(grads[1])
        db.append(grads[2])
    return y, dx, sum_in_order(dw), sum_in_order(db)


def check(got, want, message=""):
    for name, g, w in zip(NAMES, got, want, strict=True):
        assert_bits_equal(g, w, f"{message} {name}")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_equal_the_reference_run_line_by_line(name, kind):
    options = CASES[name][2]
    operands = draw(name, kind)
    want = by_reference(*operands, options)
    check(compiled(*operands, frozen(options)), want)
    everything = np.concatenate([w.ravel() for w in want])
    assert np.isfinite(everything).mean() > 0.2, "drowned"


@pytest.mark.parametrize("fill", FILLS)
def test_padding_columns_are_neither_read_nor_written(fill):
    options = CASES["first block"][2]
    x, weight, bias, widths, dy = draw("first block", "special", seed=1)
    want = by_reference(x, weight, bias, widths, dy, options)
    out = [out_size(width, 1, options) for width in widths]
    x = fill_beyond(x, widths, FILLS[fill], axis=2)
    dy = fill_beyond(dy, out, FILLS[fill], axis=2)
    got = compiled(x, weight, bias, widths, dy, frozen(options))
    check(got, want)
    for value, lengths in zip(got[:2], (out, widths), strict=True):
        assert_zero_beyond(value, lengths, axis=2)


def test_order_of_the_lines_moves_them_and_changes_no_bit():
    options = frozen(CASES["first block"][2])
    x, weight, bias, widths, dy = draw("first block", "huge")
    order = [2, 0, 1]
    straight = compiled(x, weight, bias, widths, dy, options)
    moved = compiled(x[order], weight, bias, widths[order], dy[order], options)
    for name, g, w in zip(NAMES[:2], moved, straight, strict=False):
        assert_bits_equal(g, np.asarray(w)[order], name)


def test_same_bits_in_every_way_of_running():
    options = CASES["2 taps, padded"][2]
    x, weight, bias, _, dy = draw("2 taps, padded", "subnormal", seed=2)
    want = stack_alone(
        lambda n: by_reference(x[n], weight, bias, [6], dy[n], options), 3
    )

    def one(line, weight, bias):
        x, dy = line
        run = lambda *v: conv_relu_pool(*v, **options)  # noqa: E731
        y, pullback = jax.vjp(run, x, weight, bias)
        return (y, *pullback(dy), run(x, weight, bias))

    for way, got in every_way(one, (x, dy), (weight, bias)):
        check(got[:4], want, way)
        assert_bits_equal(got[4], want[0], f"{way}, without gradient")


def test_input_gradient_can_be_left_out():
    """The first block's: dx is zero, all else has the same bits."""
    options = CASES["first block"][2]
    operands = draw("first block", "ordinary")
    want = by_reference(*operands, options)
    got = compiled(*operands, frozen({**options, "input_grad": False}))
    check(got, (want[0], np.zeros_like(want[1]), *want[2:]))


def identity_weight():
    weight = np.zeros((1, 16), np.float32)
    weight[0, 0] = 1
    return weight


def pooled_rows(windows):
    """Pool each row of windows (N, 2, 2) alone; return values and winner masks."""
    windows = np.asarray(windows, np.float32)
    x = windows.reshape(-1, 2, 2, 1)
    y, dx, _, _ = value_and_grads(
        x,
        identity_weight(),
        np.zeros(1, np.float32),
        np.full(len(x), 2, np.int32),
        np.ones((len(x), 1, 1, 1), np.float32),
        {"kernel": (1, 1), "padding": (0, 0), "pool": (2, 2)},
    )
    return np.asarray(y).reshape(-1), np.asarray(dx).reshape(-1, 4)


def test_every_window_of_special_values_follows_the_rule():
    """Strictly greater from 0: NaN never wins, the first of equal maxima does."""
    values = [np.nan, -np.inf, -1.0, -0.0, 0.0, TINY, 1.0, np.inf]
    windows = np.array(list(itertools.product(values, repeat=4)), np.float32)
    got, winners = pooled_rows(windows.reshape(-1, 2, 2))
    best = np.zeros(len(windows), np.float32)
    winner = np.full(len(windows), -1)
    for k in range(4):
        better = windows[:, k] > best
        best = np.where(better, windows[:, k], best)
        winner = np.where(better, k, winner)
    assert_bits_equal(got, best)
    want = (winner[:, None] == np.arange(4)).astype(np.float32)
    assert_bits_equal(winners, want)


def test_nan_is_passed_over_wherever_it_sits():
    nan, inf = np.nan, np.inf
    windows = [[1, nan, 3, 2], [nan, 1, 3, 2], [1, 3, 2, nan], [nan] * 4, [-inf] * 4]
    got, winners = pooled_rows(np.reshape(windows, (5, 2, 2)))
    assert_bits_equal(got, np.float32([3, 3, 3, 0, 0]))
    want = np.zeros((5, 4), np.float32)
    want[[0, 1, 2], [2, 2, 1]] = 1
    assert_bits_equal(winners, want)


def test_trailing_partial_windows_are_dropped():
    x = np.array([[1, -1, 0], [-1, 2, 1], [0, 2, -2]], np.float32)[..., None]
    run = lambda x: conv_relu_pool(  # noqa: E731
        x,
        identity_weight(),
        np.zeros(1, np.float32),
        kernel=(1, 1),
        padding=(0, 0),
        pool=(2, 2),
    )
    y, pullback = jax.vjp(run, x)
    assert_bits_equal(y, np.full((1, 1, 1), 2, np.float32))
    want = np.zeros((3, 3, 1), np.float32)
    want[1, 1] = 5
    assert_bits_equal(pullback(np.full((1, 1, 1), 5, np.float32))[0], want)


def test_hand_worked_gradients_of_a_row():
    """x = 1..6, kernel 1 1 1: the cotangent of ones counts the windows."""
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6, 1)
    weight = np.zeros((1, 16), np.float32)
    weight[0, :3] = 1
    options = {"kernel": (1, 3), "padding": (0, 0)}
    got = value_and_grads(
        x,
        weight,
        np.zeros(1, np.float32),
        None,
        np.ones((1, 1, 4, 1), np.float32),
        options,
    )
    dw = np.zeros((1, 16), np.float32)
    dw[0, :3] = 10, 14, 18
    want = [6, 9, 12, 15], [1, 2, 3, 3, 2, 1]
    y, dx = (np.array(w, np.float32).reshape(1, 1, -1, 1) for w in want)
    check(got, (y, dx, dw, np.float32([4])))


def test_fast_arithmetic_is_near_the_exact_one():
    options = CASES["partial windows"][2]
    operands = draw("partial windows", "ordinary")
    fast = compiled(*operands, frozen({**options, "arithmetic": "fast"}))
    exact = compiled(*operands, frozen(options))
    for name, got, want in zip(NAMES, fast, exact, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=name)


X, W = np.zeros((2, 4, 5, 2), np.float32), np.zeros((3, 32), np.float32)
B = np.zeros(3, np.float32)
BAD = {
    "x of doubles": ((X.astype(int), W, B), {}, TypeError, "x: expected float32"),
    "weight of integers": (
        (X, W.astype(np.int32), B),
        {},
        TypeError,
        "weight: expected float32, got int32",
    ),
    "bias of integers": (
        (X, W, B.astype(np.int32)),
        {},
        TypeError,
        "bias: expected float32, got int32",
    ),
    "x of rank 2": ((X[0, 0], W, B), {}, ValueError, "x: expected rank 3 or 4"),
    "weight of rank 3": ((X, W[None], B), {}, ValueError, "weight: expected rank 2"),
    "weight unpadded": (
        (X, W[:, :18], B),
        {},
        ValueError,
        r"weight: expected shape \[\*,32\], got float32\[3,18\]",
    ),
    "bias": ((X, W, B[:2]), {}, ValueError, r"bias: expected shape \[3\], got"),
    "widths of floats": (
        (X, W, B),
        {"widths": np.float32([1, 2])},
        TypeError,
        "widths: expected int32",
    ),
    "too few widths": (
        (X, W, B),
        {"widths": np.int32([1])},
        ValueError,
        r"widths: expected shape \[2\]",
    ),
    "kernel of one number": (
        (X, W, B),
        {"kernel": 3},
        ValueError,
        "kernel: expected two integers of at least 1, got 3",
    ),
    "kernel of zero": (
        (X, W, B),
        {"kernel": (0, 3)},
        ValueError,
        "kernel: expected two integers of at least 1",
    ),
    "negative padding": (
        (X, W, B),
        {"padding": (-1, 0)},
        ValueError,
        "padding: expected two integers of at least 0",
    ),
    "padding as large as the kernel": (
        (X, W, B),
        {"padding": (3, 0)},
        ValueError,
        r"padding: expected less than the kernel \(3, 3\), got \(3, 0\)",
    ),
    "pool of zero": (
        (X, W, B),
        {"pool": (1, 0)},
        ValueError,
        "pool: expected two integers of at least 1",
    ),
    "pool of a float": (
        (X, W, B),
        {"pool": (1, 2.0)},
        ValueError,
        "pool: expected two integers of at least 1",
    ),
    "input smaller than the kernel": (
        (X[:, :1], W, B),
        {"padding": (0, 1)},
        ValueError,
        r"x: expected at least the kernel \(3, 3\) with its padding",
    ),
    "arithmetic": ((X, W, B), {"arithmetic": 0}, ValueError, "arithmetic: expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    operands, options, error, text = BAD[case]
    with pytest.raises(error, match=f"^conv_relu_pool: {text}"):
        conv_relu_pool(*operands, **options)
