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
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from onemodel_jax._types import EXACT, Arithmetic, Array
from onemodel_jax.numerics import exact
from onemodel_jax.numerics.primitives import island
from onemodel_jax.numerics.softfloat import bits_of, from_bits, pin

BLOCK = 256  # elements repaired together
SMALLEST = 4096  # shorter chains are emulated at once: compiling would cost more
LARGEST = 2**31 - 1 - BLOCK  # so are longer ones: a position must fit int32
DENSE = 8  # with more than one marked block in DENSE, everything is emulated
MARK = 0x7FFF_FFFF  # the one NaN that a pinned result never is


class Operations(NamedTuple):
    """What a chain may call on float32 arrays and scalars that broadcast.

    ``stage(f, *operands)`` is ``f(*operands)``, worth storing because it is read again.
    """

    add: Callable[[Array, Array], Array]
    sub: Callable[[Array, Array], Array]
    mul: Callable[[Array, Array], Array]
    div: Callable[[Array, Array], Array]
    sqrt: Callable[[Array], Array]
    stage: Callable


Body = Callable[..., tuple[Array, ...]]
"""Maps (operations, *arrays, *scalars) to arrays of the shape of the operands."""


def _inline(function: Callable, *operands: Array) -> tuple[Array, ...]:
    return function(*operands)


_EXACT = Operations(exact.add, exact.sub, exact.mul, exact.div, exact.sqrt, island)
_FAST = Operations(jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.sqrt, _inline)


def _subnormal(x: Array) -> Array:
    magnitude = bits_of(x) & 0x7FFF_FFFF
    return (magnitude != 0) & (magnitude < 0x0080_0000)


def _add(x: Array, y: Array) -> Array:
    """Return pinned x + y; a sum of two zeros is spelled out, as XLA drops x + 0."""
    bx, by = bits_of(x), bits_of(y)
    zeros = ((bx | by) & 0x7FFF_FFFF) == 0
    return jnp.where(zeros, from_bits(bx & by), pin(x + y))


def _div(x: Array, y: Array) -> Array:
    """Return pinned x / y, the divisor made to depend on x (softfloat.safe_div64)."""
    bx, by = (lax.bitcast_convert_type(v, jnp.uint32) for v in (x, y))
    sign = jnp.uint32(1 << 31)
    magnitude = lax.bitcast_convert_type(lax.min(by & ~sign, bx | sign), jnp.float32)
    quotient = lax.bitcast_convert_type(pin(x / magnitude), jnp.uint32)
    return lax.bitcast_convert_type(quotient ^ (by & sign), jnp.float32)


def _watched(marks: list[Array]) -> Operations:
    """Return hardware operations that append to ``marks`` where they may have flushed.

    Their operands are not subnormal, or are marked already.
    """

    def alike(function: Callable[[Array, Array], Array]) -> Callable:
        return lambda x, y: function(*jnp.broadcast_arrays(x, y))

    def add(x: Array, y: Array) -> Array:
        total = _add(x, y)
        marks.append((total == 0) & (x != -y))
        return total

    def mul(x: Array, y: Array) -> Array:
        product = pin(x * y)
        marks.append((product == 0) & (x != 0) & (y != 0))
        return product

    def div(x: Array, y: Array) -> Array:
        quotient = _div(x, y)
        marks.append((quotient == 0) & (x != 0))
        return quotient

    return Operations(
        add=alike(add),
        sub=alike(lambda x, y: add(x, -y)),
        mul=alike(mul),
        div=alike(div),
        sqrt=lambda x: pin(jnp.sqrt(x)),
        stage=_inline,
    )


def chain(
    body: Body,
    arrays: Sequence[Array],
    scalars: Sequence[Array] = (),
    *,
    arithmetic: Arithmetic = EXACT,
) -> tuple[Array, ...]:
    """Return ``body(operations, *arrays, *scalars)`` with the exact bits.

    Rounding: that of the operations that ``body`` calls, one each.

    Args:
      body: calls nothing but the operations it is given, and copies.
      arrays: (N,) float32 each.
      scalars: () float32 each.
      arithmetic: "exact" or "fast" (plain jnp).

    Returns:
      (N,) float32 arrays.
    """
    if arithmetic != EXACT:
        return body(_FAST, *arrays, *scalars)

    def emulated(*arrays: Array) -> tuple[Array, ...]:
        return body(_EXACT, *arrays, *scalars)

    def hardware(*operands: Array) -> tuple[Array, ...]:
        marks = [_subnormal(x) for x in operands]
        first, *others = body(_watched(marks), *operands)
        marked = functools.reduce(jnp.bitwise_or, marks)
        bits = jnp.where(marked, jnp.int32(MARK), bits_of(first))
        return from_bits(bits), *others

    size = arrays[0].size
    if not SMALLEST <= size <= LARGEST:
        return island(emulated, *arrays)
    results = island(hardware, *arrays, *scalars)
    marked = _marked_blocks(results[0])
    count = jnp.sum(marked, dtype=jnp.int32)

    def repair(results: tuple[Array, ...]) -> tuple[Array, ...]:
        blocks = _positions(marked)

        def one(k: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
            # The last block may overlap the one before: operands stay as they are.
            at = (jnp.minimum(blocks[k] * BLOCK, size - BLOCK),)
            cut = (lax.dynamic_slice(x, at, (BLOCK,)) for x in arrays)
            fresh = island(emulated, *cut)
            pairs = zip(results, fresh, strict=True)
            return tuple(lax.dynamic_update_slice(x, new, at) for x, new in pairs)

        return lax.fori_loop(0, count, one, results)

    return lax.cond(
        count > marked.size // DENSE, lambda _: emulated(*arrays), repair, results
    )


def _marked_blocks(x: Array) -> Array:
    """Return which blocks of (N,) float32 hold a mark, the last one maybe short."""
    marked = bits_of(x) == MARK
    whole = x.size // BLOCK
    blocks = jnp.any(marked[: whole * BLOCK].reshape(whole, BLOCK), axis=1)
    if x.size % BLOCK == 0:
        return blocks
    return jnp.append(blocks, jnp.any(marked[whole * BLOCK :]))


def _positions(chosen: Array) -> Array:
    """Return the indices of the true entries of (N,) bool, first, in (N,) int32."""
    index = jnp.arange(chosen.size, dtype=jnp.int32)
    place = jnp.cumsum(chosen, dtype=jnp.int32) - 1
    places = jnp.where(chosen, place, chosen.size)
    return jnp.zeros_like(index).at[places].set(index, mode="drop")
