"""The linear layer: forward and backward bits, padding, ways of running, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.ops import linear
from onemodel_jax.reference.lanes import linear as reference
from tests.ops.operands import (
    FILLS,
    KINDS,
    assert_zero_beyond,
    fill_beyond,
    ordinary,
    stack_alone,
    sum_in_order,
)
from tests.ops.ways import every_way
from tests.support import assert_bits_equal

# rows T, inputs D, outputs O, lengths: each is the number of terms of one dot.
SHAPES = [
    (100, 17, 5, (0, 1, 2, 15, 16, 17, 33, 100)),
    (0, 3, 2, (0, 0)),
    (1, 0, 16, (1, 0)),
    (2, 1, 15, (1, 2)),
    (15, 2, 33, (15, 3)),
    (17, 16, 1, (17, 16)),
    (3, 100, 0, (3,)),
    (2, 1152, 3, (2, 1)),
    (1152, 2, 100, (1152, 1)),
]
RAGGED = SHAPES[0]


def value_and_grads(x, weight, bias, lengths, dy, **options):
    def run(x, weight, bias):
        return linear(x, weight, bias, lengths=lengths, **options)

    y, pullback = jax.vjp(run, x, weight, bias)
    return (y, *pullback(dy))


compiled = jax.jit(value_and_grads)
NAMES = "y", "dx", "dW", "db"


def draw(shape, kind, seed=0):
    steps, inputs, outputs, lengths = shape
    rng = np.random.default_rng([seed, steps, inputs, outputs])
    sizes = (len(lengths), steps, inputs), (outputs, inputs), (outputs,)
    x, weight, bias = (KINDS[kind](rng, s) for s in sizes)
    dy = KINDS[kind](rng, (len(lengths), steps, outputs))
    return x, weight, bias, np.array(lengths, np.int32), dy


def by_reference(x, weight, bias, lengths, dy):
    """Run every line alone, at its own length, and add the gradients in order."""
    y, dx, dw, db = np.zeros(dy.shape, np.float32), np.zeros_like(x), [], []
    for n, length in enumerate(lengths):
        own, grad = x[n, :length], dy[n, :length]
        y[n, :length] = reference.linear(own, weight, bias)
        dx[n, :length], *rest = reference.linear_backward(grad, own, weight)
        dw.append(rest[0])
        db.append(rest[1])
    return y, dx, sum_in_order(dw), sum_in_order(db)


def check(got, want, message=""):
    for name, g, w in zip(NAMES, got, want, strict=True):
        assert_bits_equal(g, w, f"{message} {name}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_equal_the_reference_run_line_by_line(shape, kind):
    operands = draw(shape, kind)
    want = by_reference(*operands)
    check(compiled(*operands), want)
    everything = np.concatenate([w.ravel() for w in want])
    assert not everything.size or np.isfinite(everything).mean() > 0.2, "drowned"


@pytest.mark.parametrize("fill", FILLS)
def test_padding_is_neither_read_nor_written(fill):
    x, weight, bias, lengths, dy = draw(RAGGED, "special", seed=1)
    want = by_reference(x, weight, bias, lengths, dy)
    x, dy = (fill_beyond(v, lengths, FILLS[fill]) for v in (x, dy))
    got = compiled(x, weight, bias, lengths, dy)
    check(got, want)
    for value in got[:2]:
        assert_zero_beyond(value, lengths)


@pytest.mark.parametrize("seed", [1, 2])
def test_order_of_the_lines_moves_rows_and_changes_no_bit_of_them(seed):
    operands = draw(RAGGED, "huge")
    order = np.random.default_rng(seed).permutation(len(operands[3]))
    moved = tuple(v[order] if n in (0, 3, 4) else v for n, v in enumerate(operands))
    got = compiled(*moved)
    check(got, by_reference(*moved))
    check(
        got[:2] + compiled(*operands)[2:],
        tuple(v[order] if n < 2 else v for n, v in enumerate(compiled(*operands))),
    )


def test_same_bits_in_every_way_of_running():
    x, weight, bias, lengths, dy = draw((5, 18, 3, (5, 5, 5)), "subnormal")
    want = stack_alone(lambda n: by_reference(x[n], weight, bias, [5], dy[n]), 3)

    def one(line, weight, bias):
        x, dy = line
        y, pullback = jax.vjp(linear, x, weight, bias)
        return (y, *pullback(dy), linear(x, weight, bias))

    for way, got in every_way(one, (x, dy), (weight, bias)):
        check(got[:4], want, way)
        assert_bits_equal(got[4], want[0], f"{way}, without gradient")
    check(
        compiled(x, weight, bias, lengths, dy),
        by_reference(x, weight, bias, lengths, dy),
        "in a batch",
    )


@pytest.mark.parametrize("lead", [(), (4,), (2, 3, 4)])
def test_leading_axes_are_lines_of_rows(lead):
    rng = np.random.default_rng(3)
    x, weight, bias = (ordinary(rng, s) for s in ((*lead, 6), (5, 6), (5,)))
    dy = ordinary(rng, (*lead, 5))
    y, pullback = jax.vjp(linear, x, weight, bias)
    rows = lead[-1] if lead else 1
    lines = x.reshape(-1, rows, 6), dy.reshape(-1, rows, 5)
    lengths = [rows] * len(lines[0])
    want = by_reference(lines[0], weight, bias, lengths, lines[1])
    shapes = dy.shape, x.shape, weight.shape, bias.shape
    check((y, *pullback(dy)), [w.reshape(s) for w, s in zip(want, shapes, strict=True)])


def test_batch_of_no_lines_has_zero_gradients():
    x = np.zeros((0, 4, 3), np.float32)
    y, dx, dw, db = value_and_grads(
        x,
        np.ones((2, 3), np.float32),
        np.ones(2, np.float32),
        None,
        np.zeros((0, 4, 2), np.float32),
    )
    assert y.shape == (0, 4, 2) and dx.shape == x.shape
    assert_bits_equal(dw, np.zeros((2, 3), np.float32))
    assert_bits_equal(db, np.zeros(2, np.float32))


def test_hand_worked():
    x = np.array([[1, 2], [3, 4]], np.float32)
    weight, bias = np.array([[10, 1], [0, -1]], np.float32), np.float32([100, 0.5])
    dy = np.array([[1, 0], [2, 1]], np.float32)
    got = value_and_grads(x[None], weight, bias, None, dy[None])
    want = (
        [[[112, -1.5], [134, -3.5]]],
        [[[10, 1], [20, 1]]],
        [[7, 10], [3, 4]],
        [3, 1],
    )
    check(got, [np.array(w, np.float32) for w in want])


def test_fast_arithmetic_is_near_the_exact_one():
    operands = draw((15, 2, 33, (15, 3)), "ordinary")
    fast = jax.jit(lambda *v: value_and_grads(*v, arithmetic="fast"))(*operands)
    for name, got, want in zip(NAMES, fast, compiled(*operands), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=name)


X, W, B = (
    np.zeros((2, 4, 3), np.float32),
    np.zeros((5, 3), np.float32),
    np.float32([0] * 5),
)
BAD = {
    "x of integers": ((X.astype(int), W, B), {}, TypeError, "x: expected float32, got"),
    "weight of bytes": (
        (X, W.astype(np.int8), B),
        {},
        TypeError,
        r"weight: expected float32, got int8",
    ),
    "bias of integers": (
        (X, W, B.astype(np.int32)),
        {},
        TypeError,
        r"bias: expected float32, got int32",
    ),
    "scalar": ((X[0, 0, 0], W, B), {}, ValueError, r"x: expected rank of at least 1"),
    "weight of rank 1": ((X, W[0], B), {}, ValueError, r"weight: expected rank 2, got"),
    "inputs differ": (
        (X, W[:, :2], B),
        {},
        ValueError,
        r"weight: expected shape \[\*,3\], got f.*5,2",
    ),
    "outputs differ": (
        (X, W, B[:4]),
        {},
        ValueError,
        r"bias: expected shape \[5\], got float32\[4\]",
    ),
    "lengths of floats": (
        (X, W, B),
        {"lengths": np.float32([1, 2])},
        TypeError,
        "lengths: expected int32",
    ),
    "too many lengths": (
        (X, W, B),
        {"lengths": np.int32([1, 2, 3])},
        ValueError,
        r"lengths: expected shape",
    ),
    "arithmetic": (
        (X, W, B),
        {"arithmetic": "quick"},
        ValueError,
        "arithmetic: expected one of",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    operands, options, error, text = BAD[case]
    with pytest.raises(error, match=f"^linear: {text}"):
        linear(*operands, **options)


def test_integer_python_lists_are_not_silently_promoted():
    with pytest.raises(TypeError, match="^linear: x: expected float32"):
        linear(jnp.arange(3), W, B)
