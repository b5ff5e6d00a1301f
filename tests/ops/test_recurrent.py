"""LSTM, one and both directions: bits, ragged lines, hand-worked values, errors."""

import jax
import numpy as np
import pytest

from onemodel_jax.ops import LstmParams, bilstm, lstm
from onemodel_jax.reference.lanes import recurrent as reference
from tests.ops.operands import (
    FILLS,
    KINDS,
    assert_zero_beyond,
    fill_beyond,
    sum_in_order,
)
from tests.ops.ways import every_way
from tests.support import assert_bits_equal

FIELDS = LstmParams._fields

# steps T, inputs D, hidden H, lengths: T, D, H and the gates are terms of dots.
SHAPES = [
    (33, 5, 3, (15, 0, 33, 1, 17, 2, 32, 16)),
    (0, 3, 2, (0, 0)),
    (1, 0, 1, (1,)),
    (2, 17, 16, (1, 2)),
    (3, 1152, 1, (3, 2)),
    (100, 2, 17, (100,)),
]
RAGGED = SHAPES[0]


def both_ways(x, ahead, back, lengths, dy, arithmetic="exact"):
    """Return y, dx and the six parameter gradients of a bidirectional layer."""

    def run(x, ahead, back):
        return bilstm(x, ahead, back, lengths=lengths, arithmetic=arithmetic)

    y, pullback = jax.vjp(run, x, ahead, back)
    return y, *pullback(dy)


def one_way(x, params, lengths, dy, reverse):
    def run(x, params):
        return lstm(x, *params, lengths=lengths, reverse=reverse)

    y, pullback = jax.vjp(run, x, params)
    return y, *pullback(dy)


compiled = jax.jit(both_ways, static_argnums=5)
compiled_one_way = jax.jit(one_way, static_argnums=4)


def draw(shape, kind, seed=0, directions=2):
    steps, inputs, hidden, lengths = shape
    rng = np.random.default_rng([seed, steps, inputs, hidden])
    gates = 4 * hidden
    x = KINDS[kind](rng, (len(lengths), steps, inputs))
    sizes = (gates, inputs), (gates, hidden), (gates,)
    params = [
        LstmParams(*(KINDS[kind](rng, s) for s in sizes)) for _ in range(directions)
    ]
    dy = KINDS[kind](rng, (len(lengths), steps, directions * hidden))
    return x, *params, np.array(lengths, np.int32), dy


def by_reference(x, ahead, back, lengths, dy):
    """Run every line alone, at its own length; add the gradients in order."""
    params = reference.LstmParams(*ahead), reference.LstmParams(*back)
    y, dx, grads = np.zeros(dy.shape, np.float32), np.zeros_like(x), []
    for n, length in enumerate(lengths):
        own, grad = x[n, :length], dy[n, :length]
        y[n, :length], tapes = reference.bilstm(own, *params)
        dx[n, :length], *rest = reference.bilstm_backward(grad, own, tapes, *params)
        grads.append(rest)
    return y, dx, *(_total([g[d] for g in grads]) for d in range(2))


def one_way_by_reference(x, params, lengths, dy, reverse):
    params = reference.LstmParams(*params)
    y, dx, grads = np.zeros(dy.shape, np.float32), np.zeros_like(x), []
    for n, length in enumerate(lengths):
        own, grad = x[n, :length], dy[n, :length]
        y[n, :length], tape = reference.lstm(own, params, reverse=reverse)
        dx[n, :length], rest = reference.lstm_backward(
            grad, own, tape, params, reverse=reverse
        )
        grads.append(rest)
    return y, dx, _total(grads)


def _total(grads):
    return LstmParams(*(sum_in_order(list(g)) for g in zip(*grads, strict=True)))


def check(got, want, message=""):
    assert len(got) == len(want)
    for name, g, w in zip(("y", "dx", "ahead", "back"), got, want, strict=False):
        if isinstance(w, tuple):
            for field, one, other in zip(FIELDS, g, w, strict=True):
                assert_bits_equal(one, other, f"{message} {name}.{field}")
        else:
            assert_bits_equal(g, w, f"{message} {name}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_equal_the_reference_run_line_by_line(shape, kind):
    operands = draw(shape, kind)
    want = by_reference(*operands)
    check(compiled(*operands), want)
    if kind not in ("huge", "special") and want[0].size:
        assert np.isfinite(want[0]).mean() > 0.2, "drowned"


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38])
def test_one_special_input_spoils_what_it_must_and_nothing_else(special):
    x, ahead, back, lengths, dy = draw(RAGGED, "ordinary", seed=3)
    x[0, 9, 1] = special
    dy[2, 30, 4] = special
    want = by_reference(x, ahead, back, lengths, dy)
    check(compiled(x, ahead, back, lengths, dy), want)
    assert np.isfinite(want[0][1:]).all() and np.isfinite(want[0][0, :9, :3]).all()
    assert np.isnan(want[0]).any() == np.isnan(special)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["ordinary", "subnormal", "huge"])
def test_one_direction_alone_has_the_bits_of_the_reference(kind, reverse):
    shape = (6, 3, 2, (6, 3, 5, 0))
    operands = draw(shape, kind, directions=1)
    got = compiled_one_way(*operands, reverse)
    check(got, one_way_by_reference(*operands, reverse))


@pytest.mark.parametrize("fill", FILLS)
def test_padding_is_neither_read_nor_written(fill):
    x, ahead, back, lengths, dy = draw(RAGGED, "huge", seed=1)
    want = by_reference(x, ahead, back, lengths, dy)
    x, dy = (fill_beyond(v, lengths, FILLS[fill]) for v in (x, dy))
    got = compiled(x, ahead, back, lengths, dy)
    check(got, want)
    for value in got[:2]:
        assert_zero_beyond(value, lengths)


@pytest.mark.parametrize("seed", [1, 2])
def test_order_of_the_lines_moves_them_and_changes_no_bit(seed):
    x, ahead, back, lengths, dy = draw(RAGGED, "ordinary")
    order = np.random.default_rng(seed).permutation(len(lengths))
    straight = compiled(x, ahead, back, lengths, dy)
    moved = compiled(x[order], ahead, back, lengths[order], dy[order])
    check(moved[:2], [np.asarray(v)[order] for v in straight[:2]])
    check(moved, by_reference(x[order], ahead, back, lengths[order], dy[order]))


def test_same_bits_in_every_way_of_running():
    x, ahead, back, _, dy = draw((3, 2, 1, (3, 3)), "subnormal", seed=2)
    alone = [
        by_reference(x[n : n + 1], ahead, back, [3], dy[n : n + 1]) for n in range(2)
    ]

    def one(line, ahead, back):
        x, dy = line
        y, pullback = jax.vjp(bilstm, x, ahead, back)
        return (y, *pullback(dy)), bilstm(x, ahead, back)

    for way, (got, plain) in every_way(one, (x, dy), (ahead, back)):
        for n in range(2):
            line = jax.tree_util.tree_map(lambda v, n=n: v[n], got)
            want = (alone[n][0][0], alone[n][1][0], *alone[n][2:])
            check(line, want, f"{way} {n}")
            assert_bits_equal(plain[n], want[0], f"{way}, without gradient")


HALVES = LstmParams(
    np.full((4, 1), 0.5, np.float32),
    np.full((4, 1), 0.5, np.float32),
    np.full(4, 0.5, np.float32),
)
AHEAD = 0.36960635293570576, 0.7172269517026472
BACK = 0.6578066755934626, 0.51438592253464


@pytest.mark.parametrize("fill", [0.0, 99.0, np.nan])
def test_both_directions_start_at_the_ends_of_the_line_not_of_the_padding(fill):
    """All weights 0.5, x = 1, 2: values worked out in double precision."""
    x = np.array([[[1], [2], [fill]]], np.float32)
    lengths = np.array([2], np.int32)
    dy = np.ones((1, 3, 2), np.float32)
    y, dx, *_ = compiled(x, HALVES, HALVES, lengths, dy)
    np.testing.assert_allclose(y[0, :2], np.transpose([AHEAD, BACK]), rtol=3e-7)
    assert_bits_equal(y[0, 2], np.zeros(2, np.float32))
    assert_bits_equal(dx[0, 2], np.zeros(1, np.float32))
    zero = np.zeros_like(x)
    zero[0, :2] = x[0, :2]
    check(
        compiled(x, HALVES, HALVES, lengths, dy),
        compiled(zero, HALVES, HALVES, lengths, dy),
    )


def test_fast_arithmetic_is_near_the_exact_one():
    operands = draw(RAGGED, "ordinary")
    fast, exact = compiled(*operands, "fast"), compiled(*operands)
    for got, want in zip(jax.tree.leaves(fast), jax.tree.leaves(exact), strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * scale)


X = np.zeros((2, 3, 4), np.float32)
P = LstmParams(*(np.zeros(s, np.float32) for s in ((8, 4), (8, 2), (8,))))
INTEGERS = np.zeros((8, 4), np.int32)
BAD = {
    "x of integers": (X.astype(np.int32), P, {}, TypeError, "x: expected float32"),
    "x of rank 1": (X[0, 0], P, {}, ValueError, "x: expected rank 2 or 3"),
    "w_ih of integers": (
        X,
        P._replace(w_ih=INTEGERS),
        {},
        TypeError,
        "w_ih: expected float32, got int32",
    ),
    "w_ih of other inputs": (
        X,
        P._replace(w_ih=P.w_ih[:, :3]),
        {},
        ValueError,
        r"w_ih: expected shape \[8,4\], got float32\[8,3\]",
    ),
    "w_hh of rank 1": (
        X,
        P._replace(w_hh=P.b),
        {},
        ValueError,
        "w_hh: expected rank 2",
    ),
    "w_hh of three gates": (
        X,
        P._replace(w_hh=P.w_hh[:6]),
        {},
        ValueError,
        r"w_hh: expected shape \[8,2\], got float32\[6,2\]",
    ),
    "bias": (X, P._replace(b=P.b[:4]), {}, ValueError, r"b: expected shape \[8\]"),
    "lengths of floats": (
        X,
        P,
        {"lengths": np.float32([1, 2])},
        TypeError,
        "lengths: expected int32",
    ),
    "one length for two lines": (
        X,
        P,
        {"lengths": np.int32([1])},
        ValueError,
        r"lengths: expected shape \[2\]",
    ),
    "arithmetic": (X, P, {"arithmetic": "slow"}, ValueError, "arithmetic: expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    x, params, options, error, text = BAD[case]
    with pytest.raises(error, match=f"^lstm: {text}"):
        lstm(x, *params, **options)
    with pytest.raises(error, match=f"^bilstm: {text}"):
        bilstm(x, params, params, **options)


def test_directions_of_different_sizes_are_refused():
    other = LstmParams(*(np.zeros(s, np.float32) for s in ((12, 4), (12, 3), (12,))))
    with pytest.raises(ValueError, match=r"^bilstm: w_ih: expected shape \[8,4\]"):
        bilstm(X, P, other)
