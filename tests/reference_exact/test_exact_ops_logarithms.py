"""Numbers r + ln(q) / n: equality and order, exact exp and log, quiet NaN, refusals."""

import math
from fractions import Fraction
from itertools import product
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.reference.exact.carriers import Special, Undefined, special_of
from onemodel_jax.reference.exact.check import check_vjp
from onemodel_jax.reference.exact.lift import Lifted
from onemodel_jax.reference.exact.logarithms import Log, logarithms
from onemodel_jax.reference.exact.machine import Machine, Refused
from onemodel_jax.reference.exact.opaque import duals

C = logarithms()
INF, NAN = C.number(Special(math.inf)), C.number(Special(math.nan))
MINUS_INF = C.neg(INF)


def ln(q, root=1):
    return Log(Fraction(0), Fraction(q), root)


def samples(count=12):
    rng = Random(0)
    plain = [C.number(Fraction(rng.randint(-9, 9), 4)) for _ in range(count)]
    logs = [C.sample(rng) for _ in range(count)]
    return plain + logs + [C.add(a, b) for a, b in zip(plain, logs, strict=True)]


def test_addition_and_negation_are_those_of_the_reals():
    for a, b in product(samples(), repeat=2):
        total = C.add(a, b)
        assert total == C.add(b, a)
        assert total.near == pytest.approx(a.near + b.near, abs=1e-12)
        assert C.add(total, C.neg(b)) == a


def test_a_logarithm_times_a_fraction_is_a_root_of_a_power():
    third = C.mul(C.number(Fraction(2, 3)), ln(5))
    assert third == ln(25, 3) and repr(third) == "ln(25)/3"
    assert C.mul(C.number(3), third) == ln(25) and third != ln(25)
    assert C.add(third, C.mul(third, C.number(Fraction(1, 2)))) == ln(5)
    assert hash(C.mul(C.number(3), third)) == hash(ln(25))


@pytest.mark.parametrize(
    "call",
    [
        lambda: C.mul(ln(2), ln(3)),
        lambda: C.mul(ln(2), C.number(4097)),
        lambda: C.mul(ln(2), C.number(Fraction(1, 4097))),
        lambda: C.opaque("exp", C.number(1)),
        lambda: C.opaque("exp", ln(2, 2)),
        lambda: C.opaque("log", ln(2)),
        lambda: C.opaque("sin", ln(2)),
        lambda: C.inverse(ln(2)),
        lambda: C.inverse(C.zero),
        lambda: C.sign(C.add(C.number(Fraction(math.log(2))), ln(Fraction(1, 2)))),
    ],
)
def test_what_leaves_these_numbers_is_undefined(call):
    with pytest.raises(Undefined):
        call()


def test_signs_are_those_of_the_reals():
    for a in samples():
        assert C.sign(a) == (a.near > 1e-9) - (a.near < -1e-9)
    assert C.sign(ln(1)) == 0 and C.sign(ln(Fraction(10**30 + 1, 10**30))) == 1
    assert (C.sign(INF), C.sign(MINUS_INF)) == (1, -1)


def test_exp_and_log_are_exact_inverses():
    q = Fraction(7, 3)
    assert C.opaque("exp", ln(q)) == C.number(q)
    assert C.opaque("log", C.number(q)) == ln(q)
    assert C.opaque("sigmoid", ln(q)) == C.number(Fraction(7, 10))
    assert C.opaque("tanh", ln(q)) == C.number(Fraction(49 - 9, 49 + 9))


def test_infinities_and_nan_are_quiet():
    assert C.opaque("log", C.zero) == MINUS_INF and C.opaque("log", INF) == INF
    assert C.opaque("exp", MINUS_INF) == C.zero and C.opaque("exp", INF) == INF
    assert C.inverse(INF) == C.zero
    assert C.add(INF, ln(2)) == INF and C.mul(MINUS_INF, ln(Fraction(1, 2))) == INF
    nans = [
        C.add(INF, MINUS_INF),
        C.mul(INF, C.zero),
        C.opaque("log", C.number(-1)),
        C.inverse(NAN),
        C.opaque("exp", NAN),
        C.add(NAN, C.one),
    ]
    assert all(x.is_special and math.isnan(x.rational) for x in nans)
    assert special_of(INF) == Special(math.inf) and special_of(ln(2)) is None


def test_equal_infinities_compare_equal_over_duals():
    m = Machine(duals(C))
    a, b = np.empty(1, object), np.empty(1, object)
    a[0], b[0] = (MINUS_INF, C.one), (MINUS_INF, C.zero)
    assert m.compare(a, b)[0] == 0


@pytest.mark.parametrize(
    "function", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp]
)
def test_functions_of_the_log_domain_are_exact_there(function):
    call = dict(opaque=True, points="logarithms")
    report = check_vjp(function, jnp.zeros((2, 3)), **call)
    assert report.ok and not report.missing, str(report)
    assert "exp is exact: inputs are logarithms of fractions" in report.notes


def test_softmax_of_logarithms_is_a_ratio_of_fractions():
    m = Machine(C, opaque=True)
    lifted = Lifted(jax.nn.softmax, [jnp.zeros(3)])
    x = np.empty(3, object)
    x[:] = [ln(1), ln(2), ln(5)]
    got = lifted.primal(m, [x])[0]
    assert list(got) == [C.number(Fraction(n, 8)) for n in (1, 2, 5)]


def test_a_wrong_rule_of_the_log_domain_is_found():
    wrong = jax.custom_vjp(lambda x: jax.nn.logsumexp(x))
    wrong.defvjp(
        lambda x: (jax.nn.logsumexp(x), x), lambda x, g: (g * jnp.exp(x - x.max()),)
    )
    report = check_vjp(wrong, jnp.zeros(3), opaque=True, points="logarithms")
    assert "adjoint" in report.failures and "additive" not in report.failures


def test_a_product_of_logarithms_has_no_points():
    with pytest.raises(ValueError, match="expected an interval with points"):
        check_vjp(lambda x: x[0] * x[1], jnp.zeros(2), points="logarithms")


def test_words_of_a_number_join_to_the_number_and_to_no_other():
    def through_words(x, flip):
        words = jax.lax.bitcast_convert_type(x, jnp.uint32)
        return jax.lax.bitcast_convert_type(
            words[..., ::-1] if flip else words, x.dtype
        )

    def mixed(x):
        words = jax.lax.bitcast_convert_type(x, jnp.uint32)
        words = jnp.stack([words[0], words[1]], -1)
        return jax.lax.bitcast_convert_type(words, x.dtype)[0]

    with jax.enable_x64(True):
        m, x = Machine(C), [np.array([0.5, 2.0])]
        lifted = Lifted(lambda v: through_words(v, False), x)
        got = lifted.primal(m, [m.constant(x[0])])[0]
        assert list(got) == [C.number(Fraction(1, 2)), C.number(2)]
        with pytest.raises(Refused, match="words of different numbers"):
            Lifted(mixed, x).primal(m, [m.constant(x[0])])
