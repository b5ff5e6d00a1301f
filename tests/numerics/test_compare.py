"""allclose: the rule, the defaults, infinities and NaN, and the worst element."""

import numpy as np
import pytest

from onemodel_jax.numerics.compare import allclose, closeness

F = np.float32
INF, NAN = np.inf, np.nan


def test_the_rule_is_atol_plus_rtol_times_expected():
    one = np.array([1.0])
    assert allclose(one + 0.15, one, rtol=0.1, atol=0.06)
    assert not allclose(one + 0.17, one, rtol=0.1, atol=0.06)
    assert allclose(np.array([100.0]), np.array([110.0]), rtol=0.1, atol=0)
    # The tolerance scales with the expected value, not with the actual one.
    assert not allclose(np.array([110.0]), np.array([100.0]), rtol=0.0999, atol=0)
    assert allclose(np.array([2.0]), np.array([1.5]), rtol=0, atol=0.5)


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(np.float32, 1e-5, 1e-6), (np.float64, 1e-12, 1e-14)]
)
def test_default_tolerances(dtype, rtol, atol):
    one, zero = dtype([1]), dtype([0])
    assert allclose(one + dtype(rtol * 0.9), one)
    assert not allclose(one + dtype(rtol * 1.3), one)
    assert allclose(zero + dtype(atol * 0.9), zero)
    assert not allclose(zero + dtype(atol * 1.1), zero)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_integers_and_booleans_match_exactly(dtype):
    assert allclose(np.array([0, 1], dtype), np.array([0, 1], dtype))
    assert not allclose(np.array([0, 1], dtype), np.array([1, 1], dtype))


def test_integers_far_apart_do_not_wrap_around():
    report = closeness(np.int64([-(2**63)]), np.int64([2**63 - 1]))
    assert not report and report.error == 2.0**64


def test_infinities_match_exactly_with_their_sign():
    plus, minus, big = F([INF]), F([-INF]), F([3e38])
    assert allclose(plus, plus) and allclose(minus, minus)
    for a, b in [(plus, minus), (minus, plus), (plus, big), (big, plus)]:
        assert not allclose(a, b, rtol=1e30, atol=1e30)


def test_nan_matches_nan_only_on_request():
    nan, one = F([NAN]), F([1])
    assert not allclose(nan, nan)
    assert allclose(nan, nan, equal_nan=True)
    assert not allclose(nan, one, equal_nan=True)
    assert not allclose(one, nan, equal_nan=True)


def test_the_report_names_the_worst_element():
    expected = np.zeros((3, 4), F) + 1
    actual = expected.copy()
    actual[1, 2], actual[2, 3] = 1.5, 1.25
    report = closeness(actual, expected)
    assert not report
    assert report.count == 2 and report.size == 12 and report.index == (1, 2)
    assert report.error == 0.5 and report.allowed == pytest.approx(1.1e-5)
    assert str(report).startswith("2 of 12 not close; worst at [1, 2]: actual")
    actual[0, 0] = NAN
    assert closeness(actual, expected).index == (0, 0)


def test_the_worst_element_is_the_one_with_the_largest_share_of_its_tolerance():
    report = closeness(np.array([1000.5, 0.1]), np.array([1000.0, 0.0]), rtol=1, atol=1)
    assert report and report.index == (1,)
    assert str(report).startswith("close; worst at [1]")
    equal = closeness(F([1, 2]), F([1, 2]), rtol=0, atol=0)
    assert equal and equal.error == 0


def test_empty_and_rank_0_arrays():
    assert str(closeness(np.zeros((0, 3)), np.zeros((0, 3)))) == "close: no elements"
    report = closeness(F(1), F(2))
    assert not report and report.index == ()


def test_bad_input_is_refused_by_name():
    with pytest.raises(
        TypeError, match="^allclose: expected: expected dtype float32, g"
    ):
        allclose(F([1]), np.array([1.0]))
    with pytest.raises(TypeError, match="^allclose: actual: .*got float16"):
        allclose(np.float16([1]), np.float16([1]))
    with pytest.raises(ValueError, match=r"^allclose: expected: .*\[1\], got .*\[2\]"):
        allclose(F([1]), F([1, 1]))
    for bad in ({"rtol": -1.0}, {"atol": NAN}, {"rtol": INF}):
        with pytest.raises(ValueError, match="expected a finite number >= 0"):
            allclose(F([1]), F([1]), **bad)
    for name in ("rtol", "atol"):
        with pytest.raises(TypeError, match=f"^allclose: {name}: expected .* got str$"):
            allclose(F([1]), F([1]), **{name: "x"})
