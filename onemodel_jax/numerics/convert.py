"""Conversion between binary32 and binary64 as one primitive, ``exact_convert``.

Subnormals survive; widening is exact, narrowing rounds once to nearest even (SPEC,
"Arithmetic"). One name in a jaxpr, so that a program shows the conversion and not the
steps that protect it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from onemodel_jax._types import Array
from onemodel_jax.numerics.primitives import define
from onemodel_jax.numerics.softfloat import decode, encode


def _other(x: Any) -> Any:
    return jnp.float64 if x.dtype == jnp.float32 else jnp.float32


def _body(x: Array) -> Array:
    return decode(x) if x.dtype == jnp.float32 else encode(x)


def _abstract(x: Any) -> ShapedArray:
    return ShapedArray(x.shape, jnp.dtype(_other(x)))


def _batch(operands: Sequence[Array], axes: Sequence[int]) -> tuple[Array, int]:
    return convert_p.bind(*operands), axes[0]


convert_p = define("exact_convert", _body, _abstract, _batch)


def widen(x: Array) -> Array:
    """Return float32 ``x`` as float64, exactly."""
    with jax.enable_x64(True):
        return convert_p.bind(x)


def narrow(x: Array) -> Array:
    """Return float64 ``x`` rounded once to float32."""
    with jax.enable_x64(True):
        return convert_p.bind(x)
