"""Schedules: bits of the reference, end points, a function of the step alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.reference.lanes.elementary import cos_pi
from onemodel_jax.schedules import warmup_cosine
from tests.support import assert_bits_equal


def by_reference(step, base, warmup, total, final):
    """The stated formula, one operation at a time, in binary64."""
    s = np.float64(step)
    if step < warmup:
        return np.float32((base * (s + 1.0)) / max(warmup, 1))
    p = min(max((s - warmup) / max(total - warmup, 1), 0.0), 1.0)
    if step >= max(total, warmup):
        p = 1.0
    half = (1.0 + cos_pi(p)) * 0.5
    return np.float32(base * ((1.0 - final) * half + final))


CASES = {
    "usual": (2e-3, 50, 500, 0.02),
    "no warm-up": (1.0, 0, 4, 0.1),
    "no decay": (0.1, 10, 10, 0.5),
    "only warm-up left": (0.1, 10, 3, 0.0),
    "nothing": (0.3, 0, 0, 0.25),
    "thirds": (1 / 3, 3, 100, 1 / 7),
    "no rate": (0.0, 2, 5, 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_bits_equal_the_reference_at_every_step(name):
    base, warmup, total, final = CASES[name]
    steps = np.r_[0:8, 8:520:7, 2**24 + 1, 2**31 - 1].astype(np.int32)
    rates = jax.jit(jax.vmap(warmup_cosine(base, warmup, total, final)))(steps)
    want = np.array([by_reference(int(s), *CASES[name]) for s in steps], np.float32)
    assert_bits_equal(rates, want)
    assert np.isfinite(want).all()


def test_cosine_end_points_and_the_floor_after_them():
    rates = jax.jit(jax.vmap(warmup_cosine(1.0, 0, 4, 0.1)))(jnp.arange(6))
    want = [1, 0.8681980515339464, 0.55, 0.2318019484660537, 0.1, 0.1]
    assert_bits_equal(rates, np.float32(want))


def test_warm_up_starts_above_zero_and_ends_at_the_peak():
    rate = jax.jit(warmup_cosine(0.8, 4, 8))
    got = [float(rate(jnp.int32(s))) for s in range(5)]
    assert got == [float(np.float32(v)) for v in (0.2, 0.4, 0.6, 0.8, 0.8)]


def test_eager_and_compiled_rates_have_the_same_bits():
    rate = warmup_cosine(2e-3, 3, 11)
    for step in (0, 2, 3, 7):
        value = jnp.int32(step)
        assert_bits_equal(rate(value), jax.jit(rate)(value))


BAD = {
    "negative warm-up": ((0.1, -1, 5), "warmup: expected an integer of at least 0"),
    "fractional warm-up": ((0.1, 1.5, 5), "warmup: .* got 1.5"),
    "truth value": ((0.1, True, 5), "warmup: .* got True"),
    "negative total": ((0.1, 1, -5), "total: expected an integer of at least 0, got"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_counts_are_refused(case):
    arguments, text = BAD[case]
    with pytest.raises(ValueError, match=f"^warmup_cosine: {text}"):
        warmup_cosine(*arguments)
