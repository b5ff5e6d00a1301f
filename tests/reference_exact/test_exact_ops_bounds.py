"""Measured errors of every op's outputs and gradients stay under running bounds."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_ops import EXEMPT, exported, ints
from exact_ops_running import bounded, use_of_bound

from onemodel_jax import losses, numerics, ops
from onemodel_jax.losses import bce_with_logits, ctc_loss
from onemodel_jax.models import crnn
from onemodel_jax.numerics.lanes import emulated_only
from onemodel_jax.ops import LstmParams, bilstm, conv_relu_pool, linear, lstm
from onemodel_jax.reference import bounds
from onemodel_jax.reference.bounds import UNIT, Bounded, gamma, lane_dot_bound
from onemodel_jax.reference.float64.bce import bce, bce_gradients
from onemodel_jax.reference.float64.ctc import ctc

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def direction(width, hidden):
    shapes = (4 * hidden, width), (4 * hidden, hidden), (4 * hidden,)
    return LstmParams(*(np.float32(0.25) * normal(*shape) for shape in shapes))


# op -> (function, arguments, kind of real numbers)
CALLS = {
    "linear": (
        functools.partial(linear, lengths=ints(18, 7)),
        [normal(2, 18, 37), normal(5, 37), normal(5)],
        Fraction,
    ),
    "conv_relu_pool": (
        functools.partial(conv_relu_pool, pool=(2, 2), widths=ints(7, 4)),
        [normal(2, 4, 7, 3), normal(3, 32), normal(3)],
        Fraction,
    ),
    "lstm": (
        functools.partial(lstm, lengths=ints(4, 2), reverse=True),
        [normal(2, 4, 17), *direction(17, 3)],
        float,
    ),
    "bilstm": (
        functools.partial(bilstm, lengths=ints(3, 2)),
        [normal(2, 3, 17), direction(17, 2), direction(17, 2)],
        float,
    ),
}

BINARY64 = {"bce_with_logits", "ctc_loss"}
"""Computed in binary64 and rounded once: bounded by that rounding, below."""


def measured(function, arguments):
    """Outputs, one cotangent each, and gradients of the compiled function."""

    def both(ct, *args):
        y, pull = jax.vjp(function, *args)
        return y, pull(ct)

    shape = jax.eval_shape(function, *arguments).shape
    ct = normal(*shape)
    with emulated_only():  # the same bits, sooner compiled
        y, grads = jax.jit(both)(ct, *arguments)
    return y, ct, jax.tree_util.tree_leaves(grads)


def test_every_op_and_loss_has_a_bound_here():
    covered = set(CALLS) | BINARY64 | set(EXEMPT)
    assert exported(ops) | exported(losses) == covered


@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_gradients_stay_under_their_running_bounds(name):
    function, arguments, number = CALLS[name]
    y, ct, grads = measured(function, arguments)
    (out,), want = bounded(function, arguments, [ct], number)
    uses = [use_of_bound(y, out)]
    uses += [use_of_bound(g, w) for g, w in zip(grads, want, strict=True)]
    # Rounding happened, and the bounds are not idle.
    assert all(0.005 < use <= 1 for use in uses), uses
    for tensor in (out, *want):
        scale = max(abs(float(v)) for v, _ in tensor.flat)
        assert max(e for _, e in tensor.flat) < 2e-5 * scale


def test_operands_rounded_to_eight_bits_break_the_bounds():
    """The bounds are tight enough to see a product of bfloat16 operands."""
    function, arguments, number = CALLS["linear"]
    coarse = [
        jnp.asarray(a).astype(jnp.bfloat16).astype(jnp.float32) for a in arguments
    ]
    y, ct, grads = measured(function, coarse)
    (out,), want = bounded(function, arguments, [ct], number)
    for got, bound in zip([y, *grads[:2]], [out, *want[:2]], strict=True):
        with pytest.raises(AssertionError, match="bound"):
            use_of_bound(got, bound)


def test_every_gradient_of_the_recognizer_stays_under_its_running_bound():
    config = crnn.CrnnConfig(
        height=4,
        channels=(1, 2),
        pools=((2, 2), (2, 1)),
        hidden=1,
        num_layers=1,
        num_classes=3,
    )
    params = crnn.init(config, 5)
    images, widths = normal(2, 4, 4, 1), ints(4, 2)
    function = lambda p: crnn.apply(config, p, images, widths)  # noqa: E731
    y, ct, grads = measured(function, [params])
    (out,), want = bounded(function, [params], [ct], float)
    assert use_of_bound(y, out) > 0 and len(want) == 12
    assert all(use_of_bound(g, w) > 0 for g, w in zip(grads, want, strict=True))


@pytest.mark.parametrize("terms", [0, 1, 15, 16, 17, 100, 1152])
def test_a_lane_dot_stays_under_its_closed_bound(terms):
    x, y = normal(terms), normal(terms)
    got = Fraction(float(numerics.dot(jnp.asarray(x), jnp.asarray(y))))
    products = [
        Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)
    ]
    magnitude = float(sum(map(abs, products)))
    bound = lane_dot_bound(terms, magnitude)
    assert abs(float(got - sum(products))) <= bound
    lanes = -(-terms // 16)
    first_order = (lanes + 4) * UNIT * magnitude if terms else 0.0
    assert first_order <= bound <= first_order * (1 + 1e-5) + 1e-40


def test_the_closed_bound_is_nearly_reached():
    """One term of 1, then terms that each just fail to count: n - 1 half units lost."""
    terms = 16 * 40
    x = np.full(terms, UNIT * (1 - 2.0**-20), np.float32)
    x[0] = 1.0
    x[np.arange(terms) % 16 != 0] = 0.0
    ones = jnp.ones(terms, jnp.float32)
    got = float(numerics.dot(jnp.asarray(x), ones))
    off = abs(got - float(np.sum(x, dtype=np.float64)))
    assert got == 1.0
    assert 0.8 * lane_dot_bound(terms, float(np.sum(x))) < off
    assert off <= lane_dot_bound(terms, float(np.sum(x, dtype=np.float64)))


def test_gamma_is_the_classical_constant():
    assert gamma(0) == 0.0
    assert gamma(4) == pytest.approx(4 * UNIT, rel=1e-6) and gamma(4) > 4 * UNIT


def test_operations_of_exact_zeros_and_ones_add_nothing():
    x, zero, one = Bounded(0.3, 1e-9), Bounded(0), Bounded(1)
    assert bounds.add(x, zero) == x == bounds.add(zero, x)
    assert bounds.mul(x, one) == x == bounds.mul(one, x)
    assert bounds.mul(x, zero) == zero
    assert bounds.add(x, x).error > 2e-9 and bounds.mul(x, x).error > 6e-10


def test_sums_and_products_of_floats_stay_under_their_bounds():
    for a, b in zip(normal(200), normal(200), strict=True):
        pair = [Bounded(Fraction(float(v))) for v in (a, b)]
        for got, want in ((a + b, bounds.add(*pair)), (a * b, bounds.mul(*pair))):
            off = abs(Fraction(float(got)) - want.value)
            assert off <= want.error <= 1.001 * UNIT * abs(want.value) + 1e-45


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_elementary_functions_stay_under_their_bounds(name):
    x = np.concatenate([normal(300), 20 * normal(100)])
    got = np.asarray(getattr(numerics, name)(jnp.asarray(x)), np.float64)
    for value, result in zip(x, got, strict=True):
        want = getattr(bounds, name)(Bounded(float(value)))
        assert abs(result - want.value) <= want.error
        assert want.error <= 1.001 * UNIT * abs(want.value) + 1e-14


def test_ctc_is_within_one_binary32_rounding_of_binary64():
    logits, labels = normal(9, 7), [3, 3, 1, 6]
    array = jnp.array(labels, jnp.int32)
    value_and_grad = jax.jit(jax.value_and_grad(lambda z: ctc_loss(z, array)))
    loss, got = value_and_grad(jnp.asarray(logits))
    want, grad = ctc(logits.astype(np.float64), labels)
    assert abs(float(loss) - want) <= UNIT * abs(want) + 2.0**-44
    off = np.abs(np.asarray(got, np.float64) - grad)
    assert (off <= UNIT * np.abs(grad) + 2.0**-44).all()


def test_bce_is_within_one_binary32_rounding_of_binary64():
    x, t, p = 5 * normal(300), np.float32(RNG.random(300)), np.abs(normal(300))

    def run(x, t, p):
        return bce_with_logits(x, t, pos_weight=p, reduction="none")

    def both(ct, *args):
        loss, pull = jax.vjp(run, *args)
        return loss, *pull(ct)

    got = jax.jit(both)(np.ones(300, np.float32), x, t, p)
    wide = [v.astype(np.float64) for v in (x, t, p)]
    for result, want in zip(got, (bce(*wide), *bce_gradients(*wide)), strict=True):
        off = np.abs(np.asarray(result, np.float64) - want)
        assert (off <= UNIT * np.abs(want) + 2.0**-44).all()
