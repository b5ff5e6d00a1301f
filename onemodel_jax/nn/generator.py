"""SplitMix64, the source of every random number: initial weights, lines, orders.

Host side, integers only: no JAX arrays, no global generator, no entropy.
"""

import math
from collections.abc import Sequence

import numpy as np

from onemodel_jax._checks import fail

GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """Return SplitMix64's output function of the 64-bit state ``z``."""
    z &= _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def derive(seed: int, *path: int) -> int:
    """Return the seed of an independent stream, a pure function of its arguments.

    Each number n of ``path`` replaces the seed by output number n (from 0) of the
    generator that the seed starts (SPEC, "Derived streams").

    Raises:
      TypeError, ValueError: a number is not an integer in 0..2^64-1.
    """
    seed = check_word("derive", "seed", seed)
    for n in path:
        seed = mix(seed + (check_word("derive", "path", n) + 1) * GAMMA)
    return seed


class Generator:
    """SplitMix64 (SPEC, "Generator"); every draw advances ``state``.

    Example:
      >>> hex(Generator(0).next_uint64())
      '0xe220a8397b1dcdaf'

    References: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
    generators", figure 16.
    """

    def __init__(self, seed: int) -> None:
        """Start at ``seed``, an integer in 0..2^64-1.

        Raises:
          TypeError, ValueError: ``seed`` is not an integer in 0..2^64-1.
        """
        self._state = check_word("Generator", "seed", seed)

    @property
    def state(self) -> int:
        """The 64-bit state; ``Generator(g.state)`` continues as ``g`` does."""
        return self._state

    def next_uint64(self) -> int:
        """Return the next output, 0..2^64-1."""
        self._state = (self._state + GAMMA) & _MASK
        return mix(self._state)

    def next_single(self) -> np.float32:
        """Return (output >> 40) / 2^24, an exact float32 in [0, 1)."""
        return np.float32((self.next_uint64() >> 40) / (1 << 24))

    def integers(self, low: int, high: int) -> int:
        """Return low + floor(output * (high - low) / 2^64), in low..high-1.

        One output is used. No value is more likely than another by more than
        2^-64 of the whole.

        Raises:
          TypeError: a bound is not an integer.
          ValueError: not 0 < high - low <= 2^64.
        """
        for name, bound in (("low", low), ("high", high)):
            _check_integer("integers", name, bound)
        span = int(high) - int(low)
        if not 0 < span <= 1 << 64:
            fail(ValueError, "integers", "high", "low + 1 to low + 2^64", high)
        return int(low) + ((self.next_uint64() * span) >> 64)

    def uint64s(self, count: int) -> np.ndarray:
        """Return the next ``count`` outputs: (count,) uint64.

        Raises:
          TypeError, ValueError: ``count`` is not an integer in 0..2^64-1.
        """
        count = check_word("uint64s", "count", count)
        # Output i depends on state + (i+1)*gamma alone; uint64 arrays wrap.
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
        z += np.uint64(self._state)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
        self._state = (self._state + count * GAMMA) & _MASK
        return z ^ (z >> np.uint64(31))

    def uniform(self, a: float, b: float, shape: int | Sequence[int]) -> np.ndarray:
        """Return a + (b - a) * u, u the next singles in row-major order.

        **Rounding** (SPEC, "Generator"): a and b are rounded to binary32 first; the
        difference, the product and the sum are each rounded to binary32.

        Args:
          a, b: bounds; finite with a finite difference in binary32. The product or
            the sum can round up to b itself.
          shape: result's shape, sizes >= 0.

        Returns:
          float32 array of ``shape``.

        Raises:
          TypeError: a size is not an integer.
          ValueError: a negative size, or a bound or b - a that is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = np.float32(a), np.float32(b)
            span = high - low
        if not (np.isfinite(low) and np.isfinite(span)):
            fail(ValueError, "uniform", "a, b", "finite a, b and b - a", (a, b))
        sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        sizes = tuple(check_word("uniform", "shape", size) for size in sizes)
        words = self.uint64s(math.prod(sizes)) >> np.uint64(40)
        singles = words.astype(np.float32) / np.float32(1 << 24)
        return (low + span * singles).reshape(sizes)

    def permutation(self, count: int) -> np.ndarray:
        """Return 0..count-1 ordered by the next ``count`` outputs: (count,) int64.

        Equal outputs keep ascending order.

        Raises:
          TypeError, ValueError: ``count`` is not an integer in 0..2^64-1.
        """
        return np.argsort(self.uint64s(count), kind="stable")


def _check_integer(function: str, argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        fail(TypeError, function, argument, "an integer", repr(value))


def check_word(function: str, argument: str, value: int) -> int:
    """Return ``value`` as an int; raise unless it is an integer in 0..2^64-1."""
    _check_integer(function, argument, value)
    if not 0 <= value <= _MASK:
        fail(ValueError, function, argument, "0 to 2^64 - 1", value)
    return int(value)
