"""gradcheck accepts right gradients, names wrong ones, and refuses float32."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.reference.gradcheck import gradcheck

RNG = np.random.default_rng(0)


def scaled_gradient(factor):
    """sin, with a gradient that is wrong by ``factor``."""

    @jax.custom_vjp
    def function(x):
        return jnp.sin(x)

    def forward(x):
        return jnp.sin(x), x

    def backward(x, grad):
        return (factor * grad * jnp.cos(x),)

    function.defvjp(forward, backward)
    return function


def test_a_right_gradient_passes():
    x = RNG.standard_normal((2, 3))
    report = gradcheck(scaled_gradient(1.0), [x])
    assert report and report.failures == 0 and report.entries == 36
    assert report.error < 1e-8
    assert str(report).startswith("passed; worst: d result[")


@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.99, 1.01])
def test_a_wrong_gradient_fails(factor):
    report = gradcheck(scaled_gradient(factor), [np.array([0.3, 0.1])])
    assert not report and report.failures == 2 and report.entries == 4


def test_the_report_names_the_worst_entry():
    @jax.custom_vjp
    def function(tree, scale):
        return {"y": scale * tree["w"] ** 2}

    def forward(tree, scale):
        return function(tree, scale), (tree, scale)

    def backward(residuals, grad):
        tree, scale = residuals
        slope = 2 * scale * tree["w"] * grad["y"]
        slope = slope.at[1].add(0.5 * grad["y"][1])
        return {"w": slope, "b": tree["b"] * 0}, jnp.sum(grad["y"] * tree["w"] ** 2)

    function.defvjp(forward, backward)
    tree = {"w": np.array([1.0, 2.0, 3.0]), "b": np.zeros(2)}
    report = gradcheck(function, (tree, np.array(3.0)))
    assert not report and report.failures == 1 and report.entries == 3 * 6
    assert report.input == "arguments[0]['w'][1]" and report.output == "result['y'][1]"
    assert report.analytic == 12.5 and report.numeric == pytest.approx(12, abs=1e-6)
    assert "1 of 18 wrong; worst: d result['y'][1] / d arguments[0]['w'][1]" in str(
        report
    )


class Pair(NamedTuple):
    table: np.ndarray
    index: np.ndarray


def test_integers_and_booleans_are_passed_on():
    def function(pair, mask):
        rows = jnp.where(mask[:, None], pair.table[pair.index], 0.0)
        return rows**2, jnp.argmax(pair.table), [jnp.sum(rows)]

    pair = Pair(RNG.standard_normal((4, 2)), np.array([3, 1, 3]))
    report = gradcheck(function, [pair, np.array([True, False, True])])
    assert report and report.entries == (6 + 1) * 8


def test_a_gradient_that_is_nan_fails():
    nowhere = scaled_gradient(jnp.nan)
    report = gradcheck(nowhere, [np.array(0.5)])
    assert not report and np.isnan(report.analytic)
    assert report.input == "arguments[0]" and report.output == "result"


def test_a_missing_factor_in_a_cross_term_is_found():
    def function(x, y):
        return x @ y

    x, y = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 2))
    assert gradcheck(function, [x, y])
    wrong = jax.custom_vjp(function)
    wrong.defvjp(
        lambda x, y: (x @ y, (x, y)), lambda r, g: (g @ r[1].T, r[0].T @ g * 0.5)
    )
    report = gradcheck(wrong, [x, y])
    assert not report and report.input.startswith("arguments[1]")


REDUCTIONS = {
    "block_sum": numerics.block_sum,
    "mean": numerics.mean,
    "var": lambda x: numerics.var(x, axis=1, correction=1),
    "softmax": numerics.softmax,
    "log_softmax": numerics.log_softmax,
    "logsumexp": numerics.logsumexp,
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_hand_written_vjps_of_the_reductions(name):
    x = RNG.standard_normal((2, 4))
    report = gradcheck(REDUCTIONS[name], [x], atol=1e-8, rtol=1e-6)
    assert report, str(report)


def test_the_users_arrays_and_flag_are_left_alone():
    x = np.array([1.0, 2.0])
    before = jax.config.jax_enable_x64
    assert gradcheck(jnp.sin, [x])
    assert x.tolist() == [1.0, 2.0] and jax.config.jax_enable_x64 == before


def test_float32_is_refused_and_named():
    expected = r"^gradcheck: arguments\[1\]\['w'\]: expected float64, got float32"
    with pytest.raises(TypeError, match=expected):
        gradcheck(lambda x, t: x, [np.ones(2), {"w": np.ones(2, np.float32)}])
    with pytest.raises(
        TypeError, match="^gradcheck: result: expected float64, got flo"
    ):
        gradcheck(lambda x: x.astype(np.float32), [np.ones(2)])
    with pytest.raises(TypeError, match="expected float64, got complex128"):
        gradcheck(lambda x: x, [np.ones(2, complex)])
    with pytest.raises(TypeError, match=r"arguments\[0\]: expected an array, got str"):
        gradcheck(lambda x: x, ["text"])


def test_bad_options_and_nothing_to_check_are_refused():
    for bad in ({"eps": 0.0}, {"eps": np.inf}, {"atol": -1.0}, {"rtol": np.nan}):
        name = next(iter(bad))
        with pytest.raises(ValueError, match=f"^gradcheck: {name}: expected a"):
            gradcheck(jnp.sin, [np.ones(1)], **bad)
    for name in ("eps", "atol", "rtol"):
        with pytest.raises(TypeError, match=f"^gradcheck: {name}: .* got str$"):
            gradcheck(jnp.sin, [np.ones(1)], **{name: "a"})
    with pytest.raises(TypeError, match="^gradcheck: arguments: expected a list or"):
        gradcheck(jnp.sin, np.ones(1))
    with pytest.raises(TypeError, match="^gradcheck: function: .* got int$"):
        gradcheck(3, [np.ones(1)])
    for nothing in ([np.array([1])], [np.zeros(0)], []):
        with pytest.raises(
            ValueError, match="^gradcheck: arguments: expected at least"
        ):
            gradcheck(lambda *a: jnp.float64(1), nothing)
    with pytest.raises(ValueError, match="^gradcheck: result: expected at least one"):
        gradcheck(lambda x: x.astype(int), [np.ones(1)])
