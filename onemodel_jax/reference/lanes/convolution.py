"""Convolution, ReLU and max pooling of one line (SPEC, "Convolution block").

Channels last, stride 1. Weight rows hold taps in (ky, kx, channel) order and are
padded with +0 to a multiple of 16, and so are the windows.
"""

from typing import NamedTuple

import numpy as np

from onemodel_jax.reference.lanes.lanes import LANES, lane_sum, matmul

Pair = tuple[int, int]
NO_WINNER = -1


class ConvTape(NamedTuple):
    """What the backward pass reads.

    Attributes:
      windows: (P, KPadded) float32, the input window of each output position.
      winners: (H', W', O) int64, flat index in the convolution output (Ho, Wo, O)
        of the element each pooled value came from, -1 where none was positive.
      input_shape: (H, W, C).
      output_shape: (Ho, Wo, O) of the convolution, before pooling.
    """

    windows: np.ndarray
    winners: np.ndarray
    input_shape: tuple[int, int, int]
    output_shape: tuple[int, int, int]


def padded_width(kernel: Pair, channels: int) -> int:
    """Return taps * channels rounded up to a multiple of 16."""
    return -(-kernel[0] * kernel[1] * channels // LANES) * LANES


@np.errstate(all="ignore")
def conv_relu_pool(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    kernel: Pair,
    padding: Pair,
    pool: Pair,
) -> tuple[np.ndarray, ConvTape]:
    """Return the pooled map and the tape.

    Args:
      x: (H, W, C) float32.
      weight: (O, KPadded) float32, taps in (ky, kx, channel) order.
      bias: (O,) float32.
      kernel, padding, pool: (rows, columns) each.

    Returns:
      (H', W', O) float32 with H' = (H + 2 padding - kernel + 1) // pool, and the
      tape. Each value is the maximum of its window from +0, replaced only by a
      strictly greater one: the first of equal maxima wins, a NaN never wins.

    Raises:
      ValueError: the kernel exceeds the padded input by more than one, or weight
        does not have padded rows.
    """
    x = np.asarray(x, np.float32)
    expected = padded_width(kernel, x.shape[2])
    if weight.shape[1] != expected:
        raise ValueError(
            f"conv_relu_pool: weight: expected rows of {expected}, got {weight.shape}"
        )
    windows, (rows, columns) = _windows(x, kernel, padding, expected)
    flat = matmul(windows, weight) + np.asarray(bias, np.float32)
    convolved = flat.reshape(rows, columns, weight.shape[0])
    pooled, winners = _pool(convolved, pool)
    return pooled, ConvTape(windows, winners, x.shape, convolved.shape)


def _windows(
    x: np.ndarray, kernel: Pair, padding: Pair, width: int
) -> tuple[np.ndarray, Pair]:
    height, columns, channels = x.shape
    (kh, kw), (ph, pw) = kernel, padding
    out_h, out_w = height + 2 * ph - kh + 1, columns + 2 * pw - kw + 1
    if out_h < 0 or out_w < 0:
        raise ValueError(
            f"conv_relu_pool: kernel: expected at most the padded input plus one, "
            f"got {kernel} for input {x.shape[:2]} padded by {padding}"
        )
    padded = np.zeros((height + 2 * ph, columns + 2 * pw, channels), np.float32)
    padded[ph : ph + height, pw : pw + columns] = x
    windows = np.zeros((out_h, out_w, width), np.float32)
    for ky in range(kh):
        for kx in range(kw):
            start = (ky * kw + kx) * channels
            tap = padded[ky : ky + out_h, kx : kx + out_w]
            windows[:, :, start : start + channels] = tap
    return windows.reshape(out_h * out_w, width), (out_h, out_w)


def _pool(convolved: np.ndarray, pool: Pair) -> tuple[np.ndarray, np.ndarray]:
    rows, columns, channels = convolved.shape
    out_h, out_w = rows // pool[0], columns // pool[1]
    index = np.arange(convolved.size, dtype=np.int64).reshape(convolved.shape)
    best = np.zeros((out_h, out_w, channels), np.float32)
    winners = np.full(best.shape, NO_WINNER, np.int64)
    for row in range(pool[0]):
        for column in range(pool[1]):
            at = np.s_[row :: pool[0], column :: pool[1]]
            candidate = convolved[at][:out_h, :out_w]
            better = candidate > best
            best = np.where(better, candidate, best)
            winners = np.where(better, index[at][:out_h, :out_w], winners)
    return best, winners


def conv_relu_pool_backward(
    grad_y: np.ndarray,
    tape: ConvTape,
    weight: np.ndarray,
    *,
    kernel: Pair,
    padding: Pair,
    need_dx: bool = True,
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Return (grad_x or None, grad_weight (O, KPadded), grad_bias (O,)).

    A pooled element's gradient is assigned to its winner. grad_weight and
    grad_bias are dots over the output positions; grad_x gathers.
    """
    rows, columns, outputs = tape.output_shape
    grad_conv = np.zeros(rows * columns * outputs, np.float32)
    won = tape.winners != NO_WINNER
    grad_conv[tape.winners[won]] = np.asarray(grad_y, np.float32)[won]
    grad_conv = grad_conv.reshape(rows * columns, outputs)
    grad_weight = matmul(grad_conv.T, tape.windows.T)
    grad_bias = lane_sum(grad_conv.T)
    if not need_dx:
        return None, grad_weight, grad_bias
    grad_windows = matmul(grad_conv, weight.T)
    return _gather(grad_windows, tape, kernel, padding), grad_weight, grad_bias


@np.errstate(all="ignore")
def _gather(
    grad_windows: np.ndarray, tape: ConvTape, kernel: Pair, padding: Pair
) -> np.ndarray:
    """Sum each input element's taps from +0, ascending ky, then kx."""
    height, columns, channels = tape.input_shape
    out_h, out_w, _ = tape.output_shape
    by_position = grad_windows.reshape(out_h, out_w, grad_windows.shape[1])
    grad_x = np.zeros(tape.input_shape, np.float32)
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            # Output position (oy, ox) read input (oy + ky - ph, ox + kx - pw).
            dy, dx = ky - padding[0], kx - padding[1]
            y0, y1 = max(0, dy), min(height, out_h + dy)
            x0, x1 = max(0, dx), min(columns, out_w + dx)
            if y0 >= y1 or x0 >= x1:
                continue
            start = (ky * kernel[1] + kx) * channels
            source = by_position[y0 - dy : y1 - dy, x0 - dx : x1 - dx]
            grad_x[y0:y1, x0:x1] += source[:, :, start : start + channels]
    return grad_x
