"""The recognizer's gradient norm and clipping: bits, order, edges, errors."""

import functools
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.optim import clip_by_dots, norm_of_dots
from onemodel_jax.reference.lanes.clipping import clip_lanes, global_norm_lanes
from tests.support import assert_bits_equal


def tree(*arrays):
    return OrderedDict((f"t{i}", np.float32(x)) for i, x in enumerate(arrays))


@functools.cache
def compiled(limit):
    return jax.jit(lambda g: (*clip_by_dots(g, limit), norm_of_dots(g)))


def clip(grads, limit):
    """Return clipped leaves, the reported norm and the binary64 norm."""
    clipped, norm, wide = compiled(limit)(grads)
    return jax.tree_util.tree_leaves(clipped), norm, wide


def draws():
    rng = np.random.default_rng(0)
    shapes = (4, 32), (4,), (3, 3, 5), (1,), (0,), (17, 100)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


SCALES = {"ordinary": 1, "subnormal": 1e-41, "squares subnormal": 1e-21, "large": 1e17}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("limit", [0.5, 5.0, 1e30])
def test_bits_equal_the_reference(scale, limit):
    grads = [g * np.float32(SCALES[scale]) for g in draws()]
    got, norm, wide = clip(tree(*grads), limit)
    want, want_norm = clip_lanes(grads, limit)
    assert_bits_equal(wide, want_norm)
    assert_bits_equal(norm, np.float32(want_norm))
    for g, w in zip(got, want, strict=True):
        assert_bits_equal(g, w)


def test_the_norm_adds_the_tensors_in_parameter_order():
    """2^54 + 2 is 2^54 in binary64: sixteen 2s count only where they come first."""
    grads = [np.float32([2.0**27])] + [np.float32([1, 1])] * 16
    there, back = (jax.jit(norm_of_dots)(tree(*g)) for g in (grads, grads[::-1]))
    assert_bits_equal(there, global_norm_lanes(grads))
    assert_bits_equal(back, global_norm_lanes(grads[::-1]))
    assert float(there) == 2.0**27 < float(back)


def test_the_norm_is_global():
    clipped, norm, _ = clip(tree([3, 0], [4]), 1.0)
    assert float(norm) == 5
    factor = np.float32(1.0 / (5.0 + 1e-6))
    assert_bits_equal(clipped[0], np.float32([3, 0]) * factor)
    assert_bits_equal(clipped[1], np.float32([4]) * factor)


def test_a_norm_equal_to_the_limit_changes_nothing():
    clipped, norm, _ = clip(tree([3, 4]), 5.0)
    assert float(norm) == 5
    assert_bits_equal(clipped[0], np.float32([3, 4]))
    just_below = np.nextafter(5.0, 0)
    clipped, _, _ = clip(tree([3, 4]), just_below)
    assert np.all(np.asarray(clipped[0]) < [3, 4])


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_zeros_stay_zeros(limit):
    clipped, norm, _ = clip(tree([0.0, -0.0], [0.0]), limit)
    assert float(norm) == 0
    assert_bits_equal(clipped[0], np.float32([0.0, -0.0]))


def test_a_limit_of_zero_gives_zeros_with_their_signs():
    clipped, _, _ = clip(tree([3, -4]), 0.0)
    assert_bits_equal(clipped[0], np.float32([0.0, -0.0]))


@pytest.mark.parametrize(
    ("values", "norm"),
    [([np.inf, 1], np.inf), ([np.nan, 1], np.nan), ([1e20] * 100, np.inf)],
)
def test_a_norm_that_is_not_finite_is_reported_and_scales_nothing(values, norm):
    """1e20 squared overflows in binary32, as documented: unchanged, never zeros."""
    clipped, got, _ = clip(tree(values, [2, -2]), 1.0)
    np.testing.assert_equal(float(got), norm)
    assert_bits_equal(clipped[0], np.float32(values))
    assert_bits_equal(clipped[1], np.float32([2, -2]))


def test_an_empty_tree_and_empty_tensors_have_norm_zero():
    assert_bits_equal(norm_of_dots(OrderedDict()), np.float64(0))
    clipped, norm = clip_by_dots(OrderedDict(), 1.0)
    assert clipped == OrderedDict() and float(norm) == 0
    assert_bits_equal(norm_of_dots(tree(np.zeros((0, 3)))), np.float64(0))


def test_an_infinite_limit_never_clips():
    clipped, _, _ = clip(tree([3e18]), float("inf"))
    assert_bits_equal(clipped[0], np.float32([3e18]))


def test_under_vmap_every_row_is_clipped_alone():
    rows = np.stack([d.ravel()[:40] for d in (draws()[0], draws()[5])])
    rows[1] *= 1e-3
    got, norms = jax.jit(jax.vmap(lambda g: clip_by_dots({"t": g}, 1.0)))(rows)
    for n, row in enumerate(rows):
        (want,), norm = clip_lanes([row], 1.0)
        assert_bits_equal(got["t"][n], want)
        assert_bits_equal(norms[n], np.float32(norm))


def test_fast_arithmetic_is_near_the_exact_one():
    grads = tree(*draws())
    exact = jax.jit(lambda g: clip_by_dots(g, 0.5))(grads)
    fast = jax.jit(lambda g: clip_by_dots(g, 0.5, arithmetic="fast"))(grads)
    for f, e in zip(jax.tree.leaves(fast), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_bad_limits_are_refused(limit):
    text = "^clip_by_dots: max_norm: expected a number of at least 0, got "
    with pytest.raises(ValueError, match=text):
        clip_by_dots(tree([1.0]), limit)


@pytest.mark.parametrize("function", [norm_of_dots, lambda g: clip_by_dots(g, 1.0)])
def test_gradients_of_another_type_are_refused(function):
    text = r"^(norm_of|clip_by)_dots: grads\['t'\]: expected float32, got float16\[2\]$"
    with pytest.raises(TypeError, match=text):
        function({"t": np.zeros(2, np.float16)})
    with pytest.raises(
        TypeError, match="^clip_by_dots: max_norm: expected a number of"
    ):
        clip_by_dots(tree([1.0]), "1")


def test_bad_arithmetic_is_refused():
    with pytest.raises(ValueError, match="^norm_of_dots: arithmetic: expected one of"):
        norm_of_dots({"t": jnp.zeros(1)}, arithmetic="quick")
