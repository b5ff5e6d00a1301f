"""Convolution, ReLU and max pooling in one op, with its hand-written VJP.

Stride 1. Lines (the batch axis) are walked one at a time, so the windows of a line
stay in the cache and no bit of a line depends on its neighbours. Strides, dilation
and groups are deliberately absent.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onemodel_jax._checks import (
    check_arithmetic,
    check_rank,
    check_shape,
    describe,
    fail,
    float32_arrays,
    line_lengths,
)
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike, custom_vjp
from onemodel_jax.numerics.exact import add
from onemodel_jax.numerics.lanes import batched_matmul
from onemodel_jax.numerics.primitives import island
from onemodel_jax.ops.lines import sum_in_line_order, weight_gradients

LANES = 16


class Geometry(NamedTuple):
    """Static sizes of one convolution block."""

    kernel: tuple[int, int]
    padding: tuple[int, int]
    pool: tuple[int, int]
    input_grad: bool
    exact: bool


class Residuals(NamedTuple):
    """What the backward pass reads.

    Attributes:
      x: (B, H, W, C) input, +0 beyond each line's width.
      weight: (O, KPadded).
      widths: (B,) int32 true input widths.
      winner: (B, H'', W'', O) int8, index in the pooling window, -1 for none.
    """

    x: Array
    weight: Array
    widths: Array
    winner: Array


def padded_taps(kernel: tuple[int, int], channels: int) -> int:
    """Return kh * kw * C rounded up to a multiple of 16: the columns of a weight."""
    taps = kernel[0] * kernel[1] * channels
    return -(-taps // LANES) * LANES


def pooled_widths(
    widths: Array, kernel: tuple[int, int], padding: tuple[int, int], pool_width: int
) -> Array:
    """Return the true output width of each line: partial windows are dropped."""
    return jnp.maximum(widths + (2 * padding[1] - kernel[1] + 1), 0) // pool_width


def conv_relu_pool(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike,
    *,
    kernel: tuple[int, int] = (3, 3),
    padding: tuple[int, int] = (1, 1),
    pool: tuple[int, int] = (1, 1),
    widths: ArrayLike | None = None,
    input_grad: bool = True,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Convolve, add the bias, apply ReLU and take the maximum over pooling windows.

    Rounding (SPEC, "Convolution block"):
      1. per output position, the lane dot of its window (taps in ky, kx, channel
         order, padded with +0) and the filter;
      2. one addition of the bias;
      3. the maximum over the window starting from 0, rows then columns, replaced
         only by a strictly greater value: the first of equal maxima wins and a NaN
         never does. Trailing partial windows are dropped.

    Gradient: the pooled gradient goes to the winner, nothing where no value was
    positive. dW and db are lane dots over the output positions of a line in row
    order, added over the lines in line order; dx adds the taps in ascending ky, then
    kx. First order, reverse mode only.

    Args:
      x: (B, H, W, C) or (H, W, C) float32, channels last.
      weight: (O, KPadded) float32, KPadded = kh*kw*C rounded up to a multiple of 16;
        the padding columns meet windows of +0.
      bias: (O,) float32.
      kernel: (kh, kw), each at least 1.
      padding: rows and columns of +0 on each side, smaller than the kernel.
      pool: (rows, columns) of a pooling window, each at least 1.
      widths: (B,) int32 true width of each line; columns beyond it count as absent,
        and the output is 0 beyond the line's own pooled width. Default: W.
      input_grad: False if the gradient of x is not wanted; it is then 0.
      arithmetic: "exact" or "fast".

    Returns:
      (B, H'', W'', O) float32 with H'' = (H + 2 padH - kh + 1) // poolH, likewise W''.

    Raises:
      TypeError: an operand is not float32 (int32 for widths).
      ValueError: a shape does not fit, or an option is out of range.
    """
    name = "conv_relu_pool"
    exact = check_arithmetic(name, arithmetic)
    x, weight, bias = float32_arrays(name, x=x, weight=weight, bias=bias)
    check_rank(name, "x", x, 3, 4)
    sizes = _check_geometry(name, kernel, padding, pool)
    geometry = Geometry(sizes[0], sizes[1], sizes[2], bool(input_grad), exact)
    lines = x if x.ndim == 4 else x[None]
    check_rank(name, "weight", weight, 2)
    columns = padded_taps(geometry.kernel, lines.shape[3])
    check_shape(name, "weight", weight, (None, columns))
    check_shape(name, "bias", bias, (weight.shape[0],))
    widths = line_lengths(name, "widths", widths, lines.shape[0], lines.shape[2])
    rows = lines.shape[1] + 2 * padding[0] - kernel[0] + 1
    width = lines.shape[2] + 2 * padding[1] - kernel[1] + 1
    if rows < 0 or width < 0:
        expected = f"at least the kernel {kernel} with its padding {padding}"
        fail(ValueError, name, "x", expected, describe(x))
    y = _conv_relu_pool(lines, weight, bias, widths, geometry)
    return y if x.ndim == 4 else y[0]


def _check_geometry(name: str, kernel, padding, pool) -> tuple:
    pairs = []
    for argument, value, least in (
        ("kernel", kernel, 1),
        ("padding", padding, 0),
        ("pool", pool, 1),
    ):
        pair = tuple(value) if isinstance(value, tuple | list) else ()
        if len(pair) != 2 or any(type(v) is not int or v < least for v in pair):
            expected = f"two integers of at least {least}"
            fail(ValueError, name, argument, expected, repr(value))
        pairs.append(pair)
    if pairs[1][0] >= pairs[0][0] or pairs[1][1] >= pairs[0][1]:
        expected = f"less than the kernel {pairs[0]}"
        fail(ValueError, name, "padding", expected, repr(padding))
    return tuple(pairs)


def _windows(x: Array, geometry: Geometry) -> Array:
    """Return the windows (H', W', KPadded) of a line x (H, W, C), taps (ky, kx, c)."""
    (kh, kw), (ph, pw) = geometry.kernel, geometry.padding
    spare = padded_taps(geometry.kernel, x.shape[2]) - kh * kw * x.shape[2]
    x = jnp.pad(x, ((ph, ph), (pw, pw), (0, 0)))
    rows, width = x.shape[0] - kh + 1, x.shape[1] - kw + 1
    taps = [
        lax.slice(x, (ky, kx, 0), (ky + rows, kx + width, x.shape[2]))
        for ky in range(kh)
        for kx in range(kw)
    ]
    taps.append(jnp.zeros((rows, width, spare), jnp.float32))
    return jnp.concatenate(taps, axis=2)


def _mask_columns(x: Array, widths: Array, fill: float = 0.0) -> Array:
    """Return x (B, H, W, C) with columns beyond each line's width set to ``fill``."""
    inside = jnp.arange(x.shape[2]) < widths[:, None]
    return jnp.where(inside[:, None, :, None], x, jnp.float32(fill))


def _pool(z: Array, pool: tuple[int, int]) -> tuple[Array, Array]:
    """Return (pooled, winner) of one line z (H', W', O).

    Positive floats are ordered as their bits are, so integers decide: exact for
    subnormals, which the hardware would compare as zero.
    """
    ph, pw = pool
    rows, width = z.shape[0] // ph, z.shape[1] // pw
    b = lax.bitcast_convert_type(z[: rows * ph, : width * pw], jnp.int32)
    b = b.reshape(rows, ph, width, pw, z.shape[2])
    best = jnp.zeros((rows, width, z.shape[2]), jnp.int32)
    winner = jnp.full(best.shape, -1, jnp.int8)
    for i in range(ph):
        for j in range(pw):
            value = b[:, i, :, j]
            better = (value > best) & (value <= 0x7F80_0000)
            best = jnp.where(better, value, best)
            winner = jnp.where(better, jnp.int8(i * pw + j), winner)
    return lax.bitcast_convert_type(best, jnp.float32), winner


def _forward(x: Array, weight: Array, bias: Array, widths: Array, geometry: Geometry):
    exact = geometry.exact
    x = _mask_columns(x, widths)
    arithmetic: Arithmetic = EXACT if exact else "fast"

    def line(xl: Array) -> tuple[Array, Array]:
        windows = _windows(xl, geometry)
        rows, width, columns = windows.shape
        flat = windows.reshape(1, rows * width, columns)
        z = batched_matmul(flat, weight[None], exact=exact)[0]
        z = add(z, bias, arithmetic=arithmetic)
        return _pool(z.reshape(rows, width, weight.shape[0]), geometry.pool)

    y, winner = lax.map(line, x)
    out = pooled_widths(widths, geometry.kernel, geometry.padding, geometry.pool[1])
    inside = (jnp.arange(y.shape[2]) < out[:, None])[:, None, :, None]
    winner = jnp.where(inside, winner, jnp.int8(-1))
    return _mask_columns(y, out), Residuals(x, weight, widths, winner)


@custom_vjp(nondiff_argnums=(4,))
def _conv_relu_pool(x, weight, bias, widths, geometry) -> Array:
    return _forward(x, weight, bias, widths, geometry)[0]


def _fwd(x, weight, bias, widths, geometry):
    return _forward(x, weight, bias, widths, geometry)


def _unpool(dy: Array, winner: Array, pool: tuple[int, int], shape) -> Array:
    """Return dC (H', W', O): each pooled gradient at its winner, +0 elsewhere."""
    (ph, pw), (rows, width, channels) = pool, winner.shape
    spread = (rows, ph, width, pw, channels)

    def enlarge(x: Array) -> Array:
        wide = jnp.broadcast_to(x[:, None, :, None], spread)
        return wide.reshape(rows * ph, width * pw, channels)

    here = jnp.arange(rows * ph)[:, None] % ph * pw + jnp.arange(width * pw) % pw
    won = enlarge(winner) == here[:, :, None].astype(jnp.int8)
    full = jnp.where(won, enlarge(dy), jnp.float32(0))
    rest = ((0, shape[0] - rows * ph), (0, shape[1] - width * pw), (0, 0))
    return jnp.pad(full, rest)


def _compact(x: Array, width: Array, fill: float) -> Array:
    """Return the rows of x (H', W', D) in the order of a line ``width`` columns wide.

    Position p = y * width + x decides the lane of a sum over positions, so the rows
    of a padded line are closed up; the tail is filled with ``fill``.
    """
    height, padded, depth = x.shape
    p = jnp.arange(height * padded)
    safe = jnp.maximum(width, 1)
    source = (p // safe) * padded + p % safe
    inside = p < height * width
    rows = x.reshape(height * padded, depth)[jnp.where(inside, source, 0)]
    return jnp.where(inside[:, None], rows, jnp.float32(fill))


def _scatter_free_dx(dcol: Array, shape, geometry: Geometry, arithmetic) -> Array:
    """Return dx (H, W, C): taps added in ascending ky, then kx, from +0."""
    (kh, kw), (ph, pw) = geometry.kernel, geometry.padding
    height, width, channels = shape
    rows, columns = dcol.shape[:2]
    dcol = dcol.reshape(rows, columns, kh * kw, channels)
    edges = ((kh - 1, kh - 1), (kw - 1, kw - 1), (0, 0), (0, 0))
    # An island: pads inside a long chain make the compiler's work explode.
    dcol = island(lambda d: jnp.pad(d, edges), dcol)
    total = jnp.zeros(shape, jnp.float32)
    for ky in range(kh):
        for kx in range(kw):
            # Input (iy, ix) was read by output (iy + ph - ky, ix + pw - kx).
            top, left = ph - ky, pw - kx
            if top >= rows or -top >= height or left >= columns or -left >= width:
                continue
            y, x = top + kh - 1, left + kw - 1
            tap = dcol[y : y + height, x : x + width, ky * kw + kx]
            total = add(total, tap, arithmetic=arithmetic)
    return total


def _bwd(geometry: Geometry, residuals: Residuals, dy: Array):
    """dC = dy at the winners; dW = dC^T col, db = dC^T 1, dx = gather of dC W."""
    exact = geometry.exact
    arithmetic: Arithmetic = EXACT if exact else "fast"
    (kh, kw), channels = geometry.kernel, residuals.x.shape[3]
    taps = kh * kw * channels
    w = residuals.weight[:, :taps]

    def line(operands):
        xl, winner, width, dyl = operands
        windows = _windows(xl, geometry)
        dc = _unpool(dyl, winner, geometry.pool, windows.shape)
        conv_width = jnp.maximum(width + 2 * geometry.padding[1] - kw + 1, 0)
        dc_rows = _compact(dc, conv_width, 0.0)
        read = _compact(windows, conv_width, -0.0)
        dw, db = weight_gradients(dc_rows[None], read[None], exact=exact)
        dw, db = dw[0], db[0]
        if not geometry.input_grad:
            return dw, db
        rows, columns, outputs = dc.shape
        flat = dc.reshape(1, rows * columns, outputs)
        dcol = batched_matmul(flat, w.T[None], exact=exact)[0]
        # Beyond the line dC is 0, but 0 times an infinite weight is NaN.
        inside = (jnp.arange(columns) < conv_width)[:, None]
        dcol = jnp.where(inside, dcol.reshape(rows, columns, taps), jnp.float32(0))
        dx = _scatter_free_dx(dcol, xl.shape, geometry, arithmetic)
        return dw, db, dx

    out = lax.map(line, (residuals.x, residuals.winner, residuals.widths, dy))
    dw, db = sum_in_line_order(out[:2], arithmetic)
    if geometry.input_grad:
        dx = _mask_columns(out[2], residuals.widths)
    else:
        dx = jnp.zeros_like(residuals.x)
    no_grad = np.zeros(residuals.widths.shape, jax.dtypes.float0)
    return dx, dw, db, no_grad


_conv_relu_pool.defvjp(_fwd, _bwd)
