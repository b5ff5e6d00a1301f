"""Binary cross entropy against its definition, to many digits and by differences."""

import functools
import math

import jax
import numpy as np
import pytest

from onemodel_jax.losses import bce_with_logits
from onemodel_jax.reference.float64 import bce as definition
from onemodel_jax.reference.gradcheck import gradcheck
from tests.losses.bce_runs import compiled

mpmath = pytest.importorskip("mpmath")
F, D = np.float32, np.float64
DTYPES = [F, D]


def exact_values(x, t, p):
    """Loss and gradients by mpmath, from the definition."""
    x, t, p = (mpmath.mpf(float(v)) for v in (x, t, p))
    up, down = mpmath.log1p(mpmath.exp(x)), mpmath.log1p(mpmath.exp(-x))
    high, low = 1 / (1 + mpmath.exp(-x)), 1 / (1 + mpmath.exp(x))
    slope = (1 - t) * high - p * t * low
    return p * t * down + (1 - t) * up, slope, p * down - up, t * down


# Largest errors in ulp of loss and gradients (SPEC, "Binary cross entropy"). Where a
# difference cancels in binary64 the unit is that of its larger term.
BOUNDS = {F: 0.501, D: 4.6}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_error_against_the_true_value(dtype, weighted):
    rng = np.random.default_rng(6)
    size = 800
    x = rng.choice([-1, 1], size) * 10 ** rng.uniform(-8, 1.9, size)
    t = np.where(rng.random(size) < 0.5, rng.random(size).round(), rng.random(size))
    p = 10 ** rng.uniform(-4, 4, size) if weighted else np.ones(size)
    x, t, p = (v.astype(dtype) for v in (x, t, p))
    with jax.enable_x64(True):
        loss, grads = compiled(x, t, p, np.ones_like(x))
    results = np.stack([np.asarray(v) for v in (loss, *grads)], 1)
    worst = np.zeros(4)
    with mpmath.workprec(300):
        for row, *operands in zip(results, x, t, p, strict=True):
            for k, true in enumerate(exact_values(*operands)):
                unit = np.spacing(dtype(max(abs(true), floor(k, *operands))))
                error = abs(mpmath.mpf(float(row[k])) - true) / mpmath.mpf(float(unit))
                worst[k] = max(worst[k], float(error))
    assert (worst < BOUNDS[dtype]).all(), worst


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_that_cancels_is_right_to_the_last_place_of_its_terms(dtype):
    """sigmoid(x) - 1/2 is x/4 for small x; not right to its own last place."""
    x = (10.0 ** np.linspace(-13, -11, 50)).astype(dtype)
    half, one = np.full_like(x, 0.5), np.ones_like(x)
    with jax.enable_x64(True):
        _, grads = compiled(x, half, one, one)
    error = np.abs(np.asarray(grads[0], D) - x.astype(D) / 4)
    assert (error < BOUNDS[dtype] * np.spacing(dtype(0.25))).all()
    assert (error > np.spacing(x / 4)).any()


def floor(k, x, t, p):
    """The size of the terms of a difference; 0 where nothing cancels."""
    x, t, p = float(x), float(t), float(p)
    if k == 1 and t not in (0.0, 1.0):
        return (1 - t) / (1 + math.exp(-x))
    if k == 2 and p != 1:
        return max(p * np.logaddexp(0, -x), np.logaddexp(0, x))
    return 0.0


def test_a_right_and_sure_logit_keeps_its_digits():
    """Sigmoid minus target would be 0 from 17 on, log(1 - sigmoid) infinite."""
    x, t = F([40, -40, 87, -100]), F([1, 0, 1, 0])
    run = functools.partial(bce_with_logits, reduction="none")
    loss, pull = jax.vjp(run, x, t)
    size = np.exp(-np.abs(x.astype(D)))
    np.testing.assert_allclose(loss, size, rtol=1e-6, atol=1e-45)
    grad = np.asarray(pull(np.ones_like(x))[0], D)
    np.testing.assert_allclose(grad, size * [-1, 1, -1, 1], rtol=1e-6, atol=1e-45)


def test_values_and_gradients_are_those_of_the_definition():
    rng = np.random.default_rng(7)
    x, t, p = 4 * rng.standard_normal(50), rng.random(50), 3 * rng.random(50)
    with jax.enable_x64(True):
        loss, grads = compiled(x, t, p, np.ones(50))
    np.testing.assert_allclose(loss, definition.bce(x, t, p), rtol=1e-14, atol=1e-16)
    for got, want in zip(grads, definition.bce_gradients(x, t, p), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradcheck_in_all_three_arguments(reduction):
    rng = np.random.default_rng(8)
    x, t, p = 3 * rng.standard_normal((2, 3)), rng.random((2, 3)), rng.random(3) + 0.5
    with jax.enable_x64(True):

        def run(x, t, p):
            return bce_with_logits(x, t, pos_weight=p, reduction=reduction)

        report = gradcheck(jax.jit(run), (x, t, p))
    assert report, str(report)
