"""Long element-wise chains of exact operations, most of the time at hardware speed.

Emulation in binary64 makes a chain several times slower than plain binary32. But the
hardware is right wherever nothing is subnormal (SPEC, "Guarded chains"): a flushed
operand has exponent field 0 and a fraction, a flushed result is a zero of nonzero
operands. So a chain runs on the hardware, pinned, and marks the elements where
flushing could have shown; blocks with a mark are computed again by the exact
operations. Marks may be wrong only on the safe side.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.numerics import exact
from onemodel_jax.numerics.primitives import island
from onemodel_jax.numerics.softfloat import (
    bits_of,
    from_bits,
    pin,
    safe_div,
    subnormal,
)

BLOCK = 256  # elements repaired together
DENSE = 16  # with more than one marked block in DENSE, everything is emulated
LARGEST = 2**31 - 1 - BLOCK  # elements; a position must fit int32
MARK = 0x7FFF_FFFF  # the one NaN that a pinned result never is


class Operations(NamedTuple):
    """What a chain may call on float32 arrays and scalars that broadcast.

    ``stage(f, *operands)`` is ``f(*operands)``, one array that is worth storing because
    it is read again.
    """

    add: Callable[[Array, Array], Array]
    sub: Callable[[Array, Array], Array]
    mul: Callable[[Array, Array], Array]
    div: Callable[[Array, Array], Array]
    sqrt: Callable[[Array], Array]
    stage: Callable[..., Array]


Body = Callable[..., tuple[Array, ...]]
"""Maps (operations, *operands) to arrays of the shape of the operands."""


def _inline(function: Callable[..., Array], *operands: Array) -> Array:
    return function(*operands)


_EXACT = Operations(exact.add, exact.sub, exact.mul, exact.div, exact.sqrt, island)
_FAST = Operations(jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.sqrt, _inline)


def _poisoned(x: Array, marks: list[Array]) -> Array:
    """Return pinned x with the one NaN that says: marked."""
    marked = functools.reduce(jnp.bitwise_or, marks)
    return from_bits(jnp.where(marked, jnp.int32(MARK), bits_of(x)))


def _watched(marks: list[Array]) -> Operations:
    """Return hardware operations that append to ``marks`` where they may have flushed.

    Their operands are not subnormal, or are marked already, and none is a constant
    that the compiler can see, so that it drops no addition of zero.
    """

    def alike(function: Callable[[Array, Array], Array]) -> Callable:
        return lambda x, y: function(*jnp.broadcast_arrays(x, y))

    def add(x: Array, y: Array) -> Array:
        total = pin(x + y)
        marks.append((total == 0) & (x != -y))
        return total

    def mul(x: Array, y: Array) -> Array:
        product = pin(x * y)
        marks.append((product == 0) & (x != 0) & (y != 0))
        return product

    def div(x: Array, y: Array) -> Array:
        # The compiler takes the reciprocal of one divisor for all elements.
        quotient = pin(x / y) if y.ndim else safe_div(*jnp.broadcast_arrays(x, y))
        marks.append((quotient == 0) & (x != 0))
        return quotient

    def stage(function: Callable[..., Array], *operands: Array) -> Array:
        def inside(*operands: Array) -> Array:
            first = len(marks)
            result = function(*operands)
            own = marks[first:]
            del marks[first:]
            return _poisoned(result, own)

        result = island(inside, *operands)
        marks.append(bits_of(result) == MARK)
        return result

    return Operations(
        add=alike(add),
        sub=alike(lambda x, y: add(x, -y)),
        mul=alike(mul),
        div=div,
        sqrt=lambda x: pin(jnp.sqrt(x)),
        stage=stage,
    )


def chain(
    body: Body, operands: Sequence[ArrayLike], *, arithmetic: Arithmetic = EXACT
) -> tuple[Array, ...]:
    """Return ``body(operations, *operands)`` with the exact bits.

    Rounding: that of the operations that ``body`` calls, one each. Under vmap the
    batch joins the elements.

    Args:
      body: a function of the module level, so that it is compiled once; it calls
        nothing but the operations it is given, and copies.
      operands: float32, arrays of one shape and scalars of shape ().
      arithmetic: "exact" or "fast" (plain jnp).

    Returns:
      float32 arrays of that shape.
    """
    arrays = [jnp.asarray(x) for x in operands]
    if arithmetic != EXACT:
        return body(_FAST, *arrays)
    shape = next(x.shape for x in arrays if x.ndim)
    flat = [x.reshape(-1) if x.ndim else x for x in arrays]
    program = jax.make_jaxpr(_emulated(body))(*flat)
    results = chain_p.bind(*flat, body=body, jaxpr=program)
    return tuple(x.reshape(shape) for x in results)


def _emulated(body: Body) -> Callable[..., tuple[Array, ...]]:
    return functools.partial(body, _EXACT)


def _guarded(body: Body, operands: Sequence[Array]) -> tuple[Array, ...]:
    """The implementation: operands (N,) or ()."""

    def hardware(*operands: Array) -> tuple[Array, ...]:
        marks = [subnormal(x) for x in operands]
        first, *others = body(_watched(marks), *operands)
        return _poisoned(first, marks), *others

    size = max(x.size for x in operands if x.ndim)
    if not 0 < size <= LARGEST:
        return _emulated(body)(*operands)
    results = island(hardware, *operands)
    block = min(BLOCK, size)
    marked = _marked_blocks(results[0], block)
    count = jnp.sum(marked, dtype=jnp.int32)

    def everything(_: tuple[Array, ...]) -> tuple[Array, ...]:
        return _emulated(body)(*operands)

    def some(results: tuple[Array, ...]) -> tuple[Array, ...]:
        blocks = _positions(marked)

        def one(k: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
            # The last block may overlap the one before: operands stay as they are.
            at = (jnp.minimum(blocks[k] * block, size - block),)
            cut = [
                lax.dynamic_slice(x, at, (block,)) if x.ndim else x for x in operands
            ]
            fresh = island(_emulated(body), *cut)
            pairs = zip(results, fresh, strict=True)
            return tuple(lax.dynamic_update_slice(x, new, at) for x, new in pairs)

        return lax.fori_loop(0, count, one, results)

    few = marked.size // DENSE
    otherwise = some if few else lambda results: results
    return lax.cond(count > few, everything, otherwise, results)


@functools.cache
def _compiled(body: Body) -> Callable[..., tuple[Array, ...]]:
    """One inner jit for each body, so that a program lowers it once per shape."""

    def exact_chain(*operands: Array) -> tuple[Array, ...]:
        return _guarded(body, operands)

    return jax.jit(exact_chain)


def _run(*operands: Array, body: Body, jaxpr: Any) -> tuple[Array, ...]:
    with jax.enable_x64(True):
        return _compiled(body)(*operands)


def _abstract(*avals: Any, body: Body, jaxpr: Any) -> list[ShapedArray]:
    shape = next(x.shape for x in avals if x.ndim)
    return [ShapedArray(shape, x.dtype) for x in jaxpr.out_avals]


def _batch(operands: Any, axes: Any, *, body: Body, jaxpr: Any) -> tuple:
    pairs = list(zip(operands, axes, strict=True))
    size = next(x.shape[a] for x, a in pairs if a is not None)
    (length,) = jaxpr.out_avals[0].shape

    def spread(x: Array, axis: int | None) -> Array:
        if axis is None:
            return jnp.broadcast_to(x, (size, length)) if x.ndim else x
        x = jnp.moveaxis(x, axis, 0)
        return jnp.broadcast_to(x if x.ndim == 2 else x[:, None], (size, length))

    results = chain(body, [spread(x, a) for x, a in pairs])
    return results, [0] * len(results)


chain_p = Primitive("exact_chain")
"""The emulated program is its parameter ``jaxpr``; what runs is ``_guarded``."""
chain_p.multiple_results = True
chain_p.def_impl(_run)
chain_p.def_abstract_eval(_abstract)
batching.primitive_batchers[chain_p] = _batch
mlir.register_lowering(chain_p, mlir.lower_fun(_run, multiple_results=True))


def _marked_blocks(x: Array, block: int) -> Array:
    """Return which blocks of (N,) float32 hold a mark, the last one maybe short."""
    marked = bits_of(x) == MARK
    whole = x.size // block
    blocks = jnp.any(marked[: whole * block].reshape(whole, block), axis=1)
    if x.size % block == 0:
        return blocks
    return jnp.append(blocks, jnp.any(marked[whole * block :]))


def _positions(chosen: Array) -> Array:
    """Return the indices of the true entries of (N,) bool, first, in (N,) int32."""
    index = jnp.arange(chosen.size, dtype=jnp.int32)
    place = jnp.cumsum(chosen, dtype=jnp.int32) - 1
    places = jnp.where(chosen, place, chosen.size)
    return jnp.zeros_like(index).at[places].set(index, mode="drop")
