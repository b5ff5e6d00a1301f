"""SplitMix64 and the draws made from it (SPEC, "Generator"; Steele et al. 2014)."""

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """Return SplitMix64's output function of one 64-bit state."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Generator:
    """A SplitMix64 stream; ``state`` is all it holds.

    Args:
      seed: the initial state, taken modulo 2^64.
    """

    def __init__(self, seed: int):
        self.state = seed & _MASK

    def next_uint64(self) -> int:
        """Advance the state by the golden gamma and return its mix."""
        self.state = (self.state + GAMMA) & _MASK
        return mix(self.state)

    def next_single(self) -> np.float32:
        """Return the top 24 bits over 2^24: a float32 in [0, 1)."""
        return np.float32((self.next_uint64() >> 40) / 2**24)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        """Return row-major draws low + (high - low) * u, each operation float32.

        low and high are rounded to float32 first; high - low is rounded once.
        """
        a, b = np.float32(low), np.float32(high)
        width = b - a
        u = (self._block(int(np.prod(shape, dtype=np.int64))) >> np.uint64(40)) / 2**24
        return (a + width * u.astype(np.float32)).reshape(shape)

    def _block(self, count: int) -> np.ndarray:
        """Return the next ``count`` outputs at once; NumPy's uint64 wraps."""
        steps = np.arange(1, count + 1, dtype=np.uint64)
        z = np.uint64(self.state) + steps * np.uint64(GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        self.state = (self.state + count * GAMMA) & _MASK
        return z ^ (z >> np.uint64(31))
