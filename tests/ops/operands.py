"""Operands of every kind, drawn so that what is special does not drown the rest."""

import numpy as np

from tests.support import assert_bits_equal

TINY = np.float32(2.0**-149)


def ordinary(rng, shape):
    """Normally distributed numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def zeros(rng, shape):
    """Mostly zeros of both signs."""
    return rng.choice(np.array([0, -0.0, 0, -0.0, 1, -1], np.float32), shape)


def subnormal(rng, shape):
    """Numbers whose products and sums reach the subnormal range, or start in it."""
    scale = rng.choice([0, -60, -75, -128, -140], shape)
    return np.ldexp(rng.standard_normal(shape), scale).astype(np.float32)


def huge(rng, shape):
    """Ordinary numbers; about one in a row is so large that a product may overflow."""
    large = rng.choice(np.array([3e38, -3e38, 1e30, -1e20], np.float32), shape)
    return _sprinkle(rng, shape, large, 1.0)


def special(rng, shape):
    """Ordinary numbers; infinities or a NaN in about every fourth row."""
    values = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), shape)
    return _sprinkle(rng, shape, values, 0.25)


def _sprinkle(rng, shape, values, per_row):
    last = max(shape[-1] if shape else 1, 1)
    here = rng.random(shape) < min(per_row / last, 0.5)
    return np.where(here, values, ordinary(rng, shape)).astype(np.float32)


KINDS = {f.__name__: f for f in (ordinary, zeros, subnormal, huge, special)}
FILLS = {"zero": 0.0, "huge": 1e30, "infinite": -np.inf, "NaN": np.nan}


def fill_beyond(x, lengths, fill, axis=1):
    """Return x with the entries of ``axis`` beyond each line's length set to fill."""
    x = np.array(x)
    for line, length in enumerate(lengths):
        np.moveaxis(x[line], axis - 1, 0)[length:] = fill
    return x


def sum_in_order(gradients):
    """Return g0 + g1 + g2 ..., one float32 addition a line."""
    total = gradients[0]
    with np.errstate(all="ignore"):
        for gradient in gradients[1:]:
            total = total + gradient
    return total


def assert_zero_beyond(x, lengths, axis=1):
    """Fail unless the entries of ``axis`` beyond each line's length are +0."""
    for line, length in enumerate(lengths):
        beyond = np.moveaxis(np.asarray(x)[line], axis - 1, 0)[length:]
        assert_bits_equal(beyond, np.zeros_like(beyond), f"line {line}")


def stack_alone(reference, count, of_lines=2):
    """Return what each line gives alone, stacked.

    Args:
      reference: maps the slice of one line to results, the first ``of_lines`` of which
        have an axis of lines.
      count: number of lines.
    """
    alone = [reference(slice(n, n + 1)) for n in range(count)]
    return [
        np.stack([v[0] if k < of_lines else v for v in values])
        for k, values in enumerate(zip(*alone, strict=True))
    ]
