"""The stable reductions: each VJP is the transposed derivative, exactly."""

import functools

import jax.numpy as jnp
import pytest
from exact_ops import BUGS, plant

from onemodel_jax import numerics
from onemodel_jax.reference.exact.check import check_vjp

# The custom_vjp core behind each public function; inputs of the last three are ln q.
SUMS = {"block_sum": "_sum", "mean": "_mean", "var": "_var"}
CORES = {name: f"onemodel_jax.numerics.reduce:{core}" for name, core in SUMS.items()}
SHIFTED = ("softmax", "log_softmax", "logsumexp")
CORES |= {name: f"onemodel_jax.numerics.stable:_{name}" for name in SHIFTED}


def check(name, shape, **options):
    function = functools.partial(getattr(numerics, name), axis=-1)
    points = "logarithms" if name in SHIFTED else "fractions"
    function = functools.wraps(getattr(numerics, name))(function)
    return check_vjp(function, jnp.zeros(shape, jnp.float32), points=points, **options)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (1, 19)])
def test_the_vjp_is_the_transposed_derivative(name, shape):
    report = check(name, shape, trials=1)
    assert report.ok, str(report)


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("name", CORES)
def test_a_planted_bug_is_found(name, bug, monkeypatch):
    plant(monkeypatch, CORES[name], BUGS[bug])
    report = check(name, (4, 3), jacobian_limit=0, budget=1)
    assert set(report.failures) == BUGS[bug].laws, str(report)
