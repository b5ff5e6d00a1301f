"""The engines behind the lane product, and the certificates that admit a fast one.

All engines compute out[g, m, n] = dot(x[g, m, :], w[g, n, :]) with the bits of SPEC,
"Lane dot". ``emulated`` is the truth: its fused multiply-add is built from binary64
and integer operations and depends on nothing. ``forced`` writes a chain
``acc + x * w`` that the compiler contracts to the hardware's fused multiply-add;
``checked`` rounds in binary64 and notes the sums for which that is not enough. Either
serves a shape only after ``certified`` has compared it with exact sums on this very
machine, and only for operands that ``far_from_subnormal`` lets through.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onemodel_jax._types import Array
from onemodel_jax.numerics import softfloat

LANES = 16

# Accumulators of one tile stay in the second-level cache.
_TILE_BYTES = 1 << 18
# Up to this many terms a lane are summed in registers, the tree included.
_REGISTER_TERMS = 9
# Longer lanes carry their accumulators from one block of terms to the next.
_BLOCK_TERMS = 36

_NO_KEY = np.uint32(0xFFFF_FFFF)


def far_from_subnormal(x: Array, w: Array) -> Array:
    """Return () bool: no partial result of any product x, w can be subnormal.

    With the smallest nonzero operands normal and exponents ex + ew >= -80, every
    product is a multiple of 2^(ex - 23 + ew - 23) >= 2^-126, and so is every rounded
    sum of such products: zero or normal, so that flushing cannot show.
    """
    fx, fw = _least_exponent(x), _least_exponent(w)
    return (fx >= 1) & (fw >= 1) & (fx + fw >= 2 * 127 - 80)


def _least_exponent(x: Array) -> Array:
    """Return the exponent field of the smallest nonzero magnitude; 255 if none.

    One less for a power of two, which errs on the safe side.
    """
    b = lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    # Twice the magnitude less one: zeros become the largest key.
    keys = (b << 1) - jnp.uint32(1)
    # Columns of 1,024 keys: a reduction over the major axis is vectorized.
    whole = keys.size // 1024 * 1024
    columns = jnp.min(keys[:whole].reshape(-1, 1024), axis=0, initial=_NO_KEY)
    rest = jnp.min(keys[whole:], initial=_NO_KEY)
    return (jnp.minimum(jnp.min(columns), rest) >> 24).astype(jnp.int32)


def pad_axis(x: Array, axis: int, size: int, value: float) -> Array:
    """Return ``x`` with ``axis`` lengthened to ``size`` by ``value``."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths, constant_values=x.dtype.type(value))


def tree_sum(lanes, add):
    """Add lanes (16, ...) by the halving tree: p[i] + p[i + s] for s in 8, 4, 2, 1."""
    while lanes.shape[0] > 1:
        half = lanes.shape[0] // 2
        lanes = add(lanes[:half], lanes[half:])
    return lanes[0]


def emulated(x: Array, w: Array) -> Array:
    """The lane product of x (G, M, K) and w (G, N, K) by emulated fma; any values.

    The pads are +0 on one side and -0 on the other: fma(+0, -0, p) is p for every p.
    """
    xs, ws = (softfloat.decode(v) for v in _blocks(x, w))

    def step(lanes: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        return softfloat.fma_on_grid(*block, lanes), None

    shape = jnp.broadcast_shapes(xs.shape[1:], ws.shape[1:])
    lanes, _ = lax.scan(step, jnp.zeros(shape, jnp.float64), (xs, ws))
    return softfloat.encode(tree_sum(lanes, softfloat.add_on_grid))


def _blocks(x: Array, w: Array) -> tuple[Array, Array]:
    """Return x as (J, 16, G, M, 1) and w as (J, 16, G, 1, N): term j of each lane."""
    groups, rows, terms = x.shape
    blocks = -(-terms // LANES)
    x = pad_axis(x, 2, blocks * LANES, 0.0).reshape(groups, rows, blocks, LANES)
    w = pad_axis(w, 2, blocks * LANES, -0.0).reshape(groups, -1, blocks, LANES)
    x, w = x.transpose(2, 3, 0, 1), w.transpose(2, 3, 0, 1)
    return x[..., None], w[:, :, :, None]


def checked(x: Array, w: Array) -> tuple[Array, Array]:
    """The lane product of x (G, M, K) and w (G, N, K), and whether it may be wrong.

    For hardware without a fused operation: the product is exact in binary64, the sum
    is rounded there and then to binary32. Both roundings together differ from one
    only where the binary64 sum is a midpoint of binary32, which is noted. The first
    sum of a lane is the exact product, so it needs no note.
    """
    xs, ws = (v.astype(jnp.float64) for v in _blocks(x, w))

    def step(carry: tuple[Array, Array], block: tuple[Array, Array]) -> tuple:
        lanes, doubtful = carry
        total = softfloat.pin(block[0] * block[1] + lanes.astype(jnp.float64))
        midpoint = (softfloat.bits_of(total) & 0x1FFF_FFFF) == 0x1000_0000
        return (total.astype(jnp.float32), doubtful | midpoint), None

    first = softfloat.pin(xs[0] * ws[0])
    # +0 plus a product of -0 is +0; the compiler would drop the addition of a zero.
    first = jnp.where(first == 0.0, 0.0, first).astype(jnp.float32)
    start = (first, jnp.zeros(first.shape, bool))
    (lanes, doubtful), _ = lax.scan(step, start, (xs[1:], ws[1:]))
    return tree_sum(lanes, lax.add), jnp.any(doubtful)


class Plan(NamedTuple):
    """How ``forced`` cuts a product: sizes after padding.

    Attributes:
      rows: rows of one tile.
      tiles: number of tiles that cover M.
      columns: N rounded up to a multiple of 16, so that the minor axis fills vectors.
      terms: terms of each lane in one block.
      blocks: number of blocks that cover K.
    """

    rows: int
    tiles: int
    columns: int
    terms: int
    blocks: int


def plan(rows: int, terms: int, columns: int) -> Plan:
    """Choose tile and block sizes for a product of M rows, K terms, N columns."""
    columns = -(-columns // LANES) * LANES
    per_lane = max(-(-terms // LANES), 1)
    fit = max(_TILE_BYTES // (LANES * 4 * columns), 8)
    tiles = -(-rows // fit)
    blocks = -(-per_lane // _BLOCK_TERMS)
    return Plan(-(-rows // tiles), tiles, columns, -(-per_lane // blocks), blocks)


def forced(x: Array, w: Array) -> Array:
    """The lane product of x (G, M, K) and w (G, N, K) by contraction to hardware fma.

    Every product is added to an accumulator that is not itself a product, the first
    one to a zero the compiler cannot see, so that only one contraction is possible.
    """
    if w.shape[1] < LANES <= x.shape[1]:
        return forced(w, x).transpose(0, 2, 1)
    groups, rows, terms = x.shape
    columns = w.shape[1]
    p = plan(rows, terms, columns)
    zero = _hidden_zero(x)
    padded = p.blocks * p.terms * LANES
    x = pad_axis(pad_axis(x, 2, padded, 0.0), 1, p.rows * p.tiles, 0.0)
    w = pad_axis(pad_axis(w, 2, padded, -0.0), 1, p.columns, -0.0)
    x = x.reshape(groups, p.tiles, p.rows, p.blocks, p.terms, LANES)
    w = w.reshape(groups, p.columns, p.blocks, p.terms, LANES)
    in_registers = p.blocks == 1 and p.terms <= _REGISTER_TERMS
    tile = _tile_in_registers if in_registers else _tile_in_memory

    def one_group(operands: tuple[Array, Array]) -> Array:
        xg, wg = operands
        wg = wg.transpose(1, 3, 2, 0)  # blocks, lanes, terms, columns
        if in_registers:
            wg = wg.transpose(0, 2, 1, 3)
        wg = lax.optimization_barrier(wg)
        return lax.map(lambda xt: tile(xt, wg, zero), xg)

    out = lax.map(one_group, (x, w))
    out = out.reshape(groups, p.rows * p.tiles, p.columns)
    return out[:, :rows, :columns]


def _hidden_zero(x: Array) -> Array:
    """Return () +0.0 that no algebraic pass recognizes: popcount / 64 of an element."""
    b = softfloat.bits_of(x.reshape(-1)[0])
    return softfloat.from_bits(lax.population_count(b) >> 6)


def _tile_in_registers(x: Array, w: Array, zero: Array) -> Array:
    """One tile: x (R, 1, J, 16), w (1, J, 16, N); chains and tree unrolled."""
    (rows, _, terms, _), columns = x.shape, w.shape[-1]
    lanes = []
    for lane in range(LANES):
        acc = zero
        for j in range(terms):
            a = lax.slice(x, (0, 0, j, lane), (rows, 1, j + 1, lane + 1))
            b = lax.slice(w, (0, j, lane, 0), (1, j + 1, lane + 1, columns))
            acc = acc + a.reshape(rows, 1) * b.reshape(1, columns)
        lanes.append(acc)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return lanes[0]


def _tile_in_memory(x: Array, w: Array, zero: Array) -> Array:
    """One tile: x (R, B, J, 16), w (B, 16, J, N); lanes are an axis, blocks scanned."""
    # Blocks, lanes, rows, terms: what one lane reads lies together.
    xb = lax.optimization_barrier(x.transpose(1, 3, 0, 2))

    def step(acc: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        a, b = block
        for j in range(a.shape[2]):
            aj = lax.slice_in_dim(a, j, j + 1, axis=2)
            acc = acc + aj * lax.slice_in_dim(b, j, j + 1, axis=1)
        return acc, None

    acc = jnp.broadcast_to(zero, (LANES, x.shape[0], w.shape[3]))
    if xb.shape[0] == 1:
        acc, _ = step(acc, (xb[0], w[0]))
    else:
        acc, _ = lax.scan(step, acc, (xb, w))
    return tree_sum(acc, lax.add)


def certified(
    engine: Callable[..., Any], groups: int, rows: int, terms: int, columns: int
) -> bool:
    """Return True if ``engine`` gives the exact bits for this shape on this machine.

    The compiled engine runs once on integers of 20 bits, whose products (40 bits) no
    binary32 holds, so that a separate rounding shows, while binary64 holds every sum
    exactly, and on zeros of both signs; every bit is compared. What ``checked`` doubts
    is tried beside. Groups, tiles and blocks beyond the second run the same compiled
    loop body, so they are left out. Cached in the process.
    """
    if columns < LANES <= rows:
        rows, columns = columns, rows
    p = plan(rows, terms, columns)
    rows = p.rows * min(p.tiles, 2)
    terms = LANES * p.terms * min(p.blocks, 2) - 3  # with lanes that are padded
    return _agrees(engine, min(groups, 2), rows, terms, p.columns)


@functools.cache
def _agrees(engine, groups: int, rows: int, terms: int, columns: int) -> bool:
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**20), 2**20, (groups, rows, terms)).astype(np.float32)
    w = rng.integers(-(2**20), 2**20, (groups, columns, terms)).astype(np.float32)
    # Sums of -0 alone, in a column: a single row must stay random.
    w[:, 0] = np.where(x[:, 0] > 0, -0.0, 0.0)
    with jax.enable_x64(True):
        compiled = jax.jit(engine).lower(x, w).compile()
        got = compiled(x, w)
    product = got[0] if isinstance(got, tuple | list) else got
    want = _sums_of_integers(x, w).view(np.uint32)
    if not np.array_equal(np.asarray(product).view(np.uint32), want):
        return False
    return product is got or _notes_midpoints(compiled, rng, x.shape, w.shape)


def _notes_midpoints(
    compiled: Callable[..., Any],
    rng: np.random.Generator,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
) -> bool:
    """Return True if the engine doubts the sums that it must, and not their like.

    Among zeros, in random places: 1 + 2^-23 plus 2^-24 less a trifle, which binary64
    rounds onto the midpoint, and then plus 2^-23 less a trifle, which is harmless.
    """
    for lane in (0, 6, 11, 15):
        last = (x_shape[2] - 1 - lane) // LANES
        if last < 1:  # a lane's first sum is its product
            continue
        term = lane + LANES * int(rng.integers(1, last + 1))
        group, row, column = map(rng.integers, (*x_shape[:2], w_shape[1]))
        x, w = np.zeros(x_shape, np.float32), np.zeros(w_shape, np.float32)
        x[group, row, lane], w[group, column, lane] = 1, 1 + 2.0**-23
        for scale, doubt in ((2.0**-12, True), (2.0**-11, False)):
            x[group, row, term] = 2.0**-12 * (1 + 2.0**-23)
            w[group, column, term] = scale * (1 - 2.0**-23)
            with jax.enable_x64(True):
                if bool(compiled(x, w)[1]) != doubt:
                    return False
    return True


def _sums_of_integers(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Lane product of integers below 2^20: binary64 is exact, binary32 rounds once."""
    lanes = np.zeros((LANES, x.shape[0], x.shape[1], w.shape[1]), np.float32)
    for k in range(x.shape[2]):
        product = x[:, :, None, k].astype(np.float64) * w[:, None, :, k]
        lanes[k % LANES] = (product + lanes[k % LANES]).astype(np.float32)
    return tree_sum(lanes, np.add)
