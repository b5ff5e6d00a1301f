"""Type aliases and the axis legend used by every module.

Axis letters in docstrings: B batch, T time, H height, W width, C channels or
classes, D features, N heads, L label length, K taps.
"""

import functools
from collections.abc import Callable
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


def custom_vjp(*, nondiff_argnums: tuple[int, ...] = ()) -> Callable[[Callable], Any]:
    """Return the decorator ``jax.custom_vjp``, typed so that its result is usable."""
    return functools.partial(jax.custom_vjp, nondiff_argnums=nondiff_argnums)


__all__ = ["Array", "ArrayLike", "Arithmetic", "EXACT", "FAST", "PyTree", "custom_vjp"]
