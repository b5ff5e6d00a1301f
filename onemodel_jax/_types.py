"""Type aliases and the axis legend used by every module.

Axis letters in docstrings: B batch, T time, H height, W width, C channels or
classes, D features, N heads, L label length, K taps.
"""

from typing import Any, Literal

import jax
from jax.typing import ArrayLike

Array = jax.Array
PyTree = Any

#: ``EXACT`` is the documented arithmetic: every bit is defined by SPEC.md.
#: ``FAST`` is XLA's own products and sums under the same VJPs.
Arithmetic = Literal["exact", "fast"]
EXACT: Arithmetic = "exact"
FAST: Arithmetic = "fast"

__all__ = ["Array", "ArrayLike", "Arithmetic", "EXACT", "FAST", "PyTree"]
