"""check_vjp: planted bugs, foreign functions, expectations, structure, refusals."""

import functools
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_vjps import ADDITIVE, ADJOINT, BUGS, EXAMPLES, with_vjp
from jax.test_util import check_grads

from onemodel_jax.reference.exact.carriers import rationals
from onemodel_jax.reference.exact.check import GRIDS, check_vjp, draw
from onemodel_jax.reference.exact.machine import Refused


def ok(*args, **options):
    report = check_vjp(*args, **options)
    assert report.ok, str(report)
    return report


@pytest.mark.parametrize("points", ["fractions", "field"])
def test_a_right_vjp_passes(points):
    report = ok(with_vjp(), *EXAMPLES, points=points)
    assert len(report.evidence) == 5 and not report.missing


@pytest.mark.parametrize("points", ["fractions", "field"])
@pytest.mark.parametrize("name", BUGS)
def test_every_planted_bug_is_found(name, points):
    planted, laws = BUGS[name]
    report = check_vjp(planted, *EXAMPLES, points=points)
    assert set(report.failures) == laws
    assert str(report).count("counterexample to") == len(laws)


@pytest.mark.parametrize(
    "name", ["weight decay inside", "clipped cotangent", "one gradient times 1 + 2^-23"]
)
def test_finite_differences_pass_three_of_the_bugs(name):
    check_grads(BUGS[name][0], EXAMPLES, order=1, modes=["rev"])


def test_a_report_reads_as_one_screen():
    report = str(check_vjp(BUGS["lost factor 2"][0], *EXAMPLES, trials=1))
    assert report.splitlines()[:7] == [
        "check_vjp with_vjp.<locals>.planted"
        "(float32[2,3], float32[3,2]) -> (float32[2,2]): FAILS",
        "  expectation: adjoint; points: 1 in Q",
        "  forward equals primal   holds (4 equalities)",
        "  adjoint                 FAILS",
        "  zero-preserving         holds (12 equalities)",
        "  additive                holds (12 equalities)",
        "  transposed Jacobian     FAILS",
    ]
    assert "  <derivative, cotangent> = 1/2\n  <tangent, pullback> = 1/4" in report


# Five functions that are not ours.


def test_relu_of_jax():
    ok(jax.nn.relu, jnp.zeros((2, 3)))


def test_softmax_and_log_softmax_of_jax_with_opaque_exp():
    for function in (jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp):
        report = ok(function, jnp.zeros((2, 3)), opaque=True)
        assert "exp is opaque" in report.notes


def test_softmax_core_on_positive_rationals():
    ok(lambda e: e / e.sum(-1, keepdims=True), jnp.zeros((2, 3)), low=0.5)


def test_a_clipping_gradient_by_custom_vjp_is_a_declared_non_derivative():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def clip_gradient(low, high, x):
        return x

    clip_gradient.defvjp(
        lambda low, high, x: (x, None),
        lambda low, high, _, g: (jnp.clip(g, low, high),),
    )
    call = functools.partial(
        check_vjp, clip_gradient, -1.0, 1.0, jnp.zeros(3), nondiff_argnums=(0, 1)
    )
    assert set(call().failures) == {ADJOINT, ADDITIVE}
    report = call(expectation="zero-preserving")
    assert report.ok and set(report.evidence) == {
        "forward equals primal",
        "zero-preserving",
    }


def test_a_linear_layer_and_a_loss_over_pytrees():
    def loss(params, batch):
        hidden = jnp.maximum(batch["x"] @ params["w"] + params["b"], 0.0)
        error = hidden - batch["y"]
        return {"loss": jnp.mean(error**2), "hidden": hidden}

    params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
    batch = {"x": jnp.zeros((2, 3)), "y": jnp.zeros((2, 2))}
    report = ok(loss, params, batch, jacobian_limit=40)
    assert report.signature.startswith("(float32[2], float32[3,2]")


def layer_norm(x, gamma, beta):
    centered = x - x.mean(-1, keepdims=True)
    variance = jnp.mean(centered**2, -1, keepdims=True)
    return gamma * centered * jax.lax.rsqrt(variance + 1e-5) + beta


NORM = (jnp.zeros((2, 3)), jnp.zeros(3), jnp.zeros(3))


def test_layer_norm_by_rsqrt_needs_true_roots_which_the_field_has():
    """JAX's rule for rsqrt is -r / (2 x), right only where r * r * x = 1."""
    report = ok(layer_norm, *NORM, opaque=True, points="field")
    assert "sqrt is a square root mod p" in report.notes
    assert ADJOINT in check_vjp(layer_norm, *NORM, opaque=True).failures


def test_layer_norm_by_sqrt_passes_on_fractions():
    def by_sqrt(x):
        centered = x - x.mean(-1, keepdims=True)
        variance = jnp.mean(centered**2, -1, keepdims=True)
        return centered / jnp.sqrt(variance + 1e-5)

    report = ok(by_sqrt, NORM[0], opaque=True)
    assert any("need not be its argument" in note for note in report.notes)


# Expectations.


def straight_through():
    @jax.custom_vjp
    def quantize(x):
        return jnp.round(x * 4) / 4

    quantize.defvjp(lambda x: (quantize(x), None), lambda _, g: (g,))
    return quantize


def test_straight_through_is_adjoint_to_the_identity_and_not_to_its_derivative():
    assert ADJOINT in check_vjp(straight_through(), jnp.zeros(3)).failures
    ok(straight_through(), jnp.zeros(3), expectation=lambda x, dx: dx[0])


def test_gradient_reversal_is_adjoint_to_minus_the_identity():
    @jax.custom_vjp
    def reverse(x):
        return x

    reverse.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    ok(reverse, jnp.zeros(3), expectation=lambda x, dx: -dx[0])
    wrong = check_vjp(reverse, jnp.zeros(3), expectation=lambda x, dx: dx[0])
    assert ADJOINT in wrong.failures


def test_stop_gradient_is_a_constant():
    ok(lambda x: jax.lax.stop_gradient(x) * x, jnp.zeros(3))


# Structure of arguments.


def test_integer_arguments_are_environment_and_none_cotangents_are_zeros():
    @jax.custom_vjp
    def pick(table, rows, unused):
        return table[rows]

    def backward(residuals, g):
        shape, rows = residuals
        return jnp.zeros(shape).at[rows].add(g), None, None

    pick.defvjp(lambda t, r, u: (t[r], (t.shape, r)), backward)
    ok(pick, jnp.zeros((4, 2)), jnp.array([1, 1, 3]), jnp.zeros(2))


def test_a_none_cotangent_for_a_used_argument_is_found():
    @jax.custom_vjp
    def times(x, y):
        return x * y

    times.defvjp(lambda x, y: (x * y, y), lambda y, g: (g * y, None))
    report = check_vjp(times, jnp.zeros(2), jnp.zeros(2))
    assert "derivative" in report.evidence["transposed Jacobian"].counterexample


def test_boolean_masks_keys_and_integer_outputs():
    def masked(x, mask, key):
        keep = jax.random.bernoulli(key, 0.5, x.shape) & mask
        return jnp.where(keep, 2 * x, 0.0), jnp.argmax(x), keep

    mask = jnp.array([True, True, False, True])
    ok(masked, jnp.zeros(4), mask, jax.random.key(3))
    ok(masked, jnp.zeros(4), mask, jax.random.PRNGKey(3))


def test_the_second_output_of_two_is_checked_with_its_own_cotangent():
    @jax.custom_vjp
    def both(x):
        return x * x, x**3

    def backward(x, g):
        extra = jnp.where(g[1] == 0, 7.0, 0.0)
        return (2 * x * g[0] + 3 * x * x * g[1] + extra,)

    both.defvjp(lambda x: (both(x), x), backward)
    assert "zero-preserving" in check_vjp(both, jnp.zeros(())).failures


# Control flow.


def test_scans_are_unrolled_forwards_and_in_reverse():
    def cell(carry, x):
        carry = carry * x + 1
        return carry, carry * carry

    for reverse in (False, True):

        def run(c, xs, reverse=reverse):
            return jax.lax.scan(cell, c, xs, reverse=reverse)

        ok(run, jnp.zeros(()), jnp.zeros(3))
    ok(lambda c, xs: jax.lax.scan(cell, c, xs), jnp.zeros(2), jnp.zeros((0, 2)))


def test_while_loops_run_where_a_custom_vjp_makes_them_differentiable():
    def power(x, n):
        return jax.lax.while_loop(
            lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] * x), (n, jnp.ones_like(x))
        )[1]

    f = jax.custom_vjp(power)
    f.defvjp(
        lambda x, n: (power(x, n), (x, n)),
        lambda r, g: (g * r[1] * power(r[0], r[1] - 1), None),
    )
    ok(f, jnp.zeros(2), 3)


def test_conditionals_take_the_branch_of_the_point():
    def f(x):
        return jax.lax.cond(x.sum() > 0, lambda v: v * v, lambda v: -v, x)

    ok(f, jnp.zeros(3), trials=6)
    ok(lambda i, x: jax.lax.switch(i, [jnp.sin, lambda v: v * v], x), 1, jnp.zeros(2))


def test_custom_jvps_jit_vmap_and_checkpoint():
    @jax.custom_jvp
    def square(x):
        return x * x

    square.defjvp(lambda x, dx: (x[0] * x[0], 2 * x[0] * dx[0]))
    ok(jax.jit(jax.vmap(jax.checkpoint(square))), jnp.zeros(3))
    wrong = jax.custom_jvp(lambda x: x * x)
    wrong.defjvp(lambda x, dx: (x[0] * x[0], x[0] * dx[0]))
    assert ADJOINT in check_vjp(wrong, jnp.zeros(3)).failures


# Refusals.


def test_an_unknown_primitive_is_refused_by_name():
    with pytest.raises(Refused, match="primitive erf has no exact meaning"):
        check_vjp(jax.lax.erf, jnp.zeros(2), opaque=True)


def test_transcendental_primitives_are_refused_unless_opaque():
    with pytest.raises(Refused, match="primitive exp is transcendental"):
        check_vjp(jnp.exp, jnp.zeros(2))
    ok(jnp.exp, jnp.zeros(2), opaque=True)


def test_a_domain_without_points_is_an_error_and_a_better_interval_is_not():
    with pytest.raises(ValueError, match="points in the domain"):
        check_vjp(jnp.log, jnp.zeros(2), opaque=True, high=-1.0)
    ok(jnp.log, jnp.zeros(2), opaque=True, low=0.5)


def test_points_lie_in_the_interval_and_are_distinct_as_far_as_they_go():
    for points, grid in GRIDS.items():
        carrier = rationals()
        got = draw(carrier, (50,), Random(0), (0.25, 0.5), grid)
        assert all(0.25 <= e <= 0.5 and (e * grid).denominator == 1 for e in got)
        assert len(set(got)) == 50, points
    few = draw(rationals(), (9,), Random(0), (0.0, 1 / 4096), GRIDS["fractions"])
    assert len(set(few)) == 2
    with pytest.raises(ValueError, match="low, high: expected 1/4096 apart"):
        check_vjp(jnp.negative, jnp.zeros(2), low=1e-9, high=2e-9)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="check_vjp: expectation: expected one of"):
        check_vjp(jnp.negative, jnp.zeros(2), expectation="right")
    with pytest.raises(ValueError, match="check_vjp: points: expected one of"):
        check_vjp(jnp.negative, jnp.zeros(2), points="floats")
    with pytest.raises(ValueError, match="trials: expected at least 1, got 0"):
        check_vjp(jnp.negative, jnp.zeros(2), trials=0)
    with pytest.raises(TypeError, match="expected a floating array, got none"):
        check_vjp(jnp.negative, jnp.zeros(2, int))
    with pytest.raises(TypeError, match="expected a floating result, got none"):
        check_vjp(jnp.argmax, jnp.zeros(2))
    with pytest.raises(TypeError, match="fn: expected a function, got int"):
        check_vjp(3, np.zeros(2))
