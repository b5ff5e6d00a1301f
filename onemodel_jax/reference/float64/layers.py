"""Linear, convolution with ReLU and max pooling, and LSTM, from their definitions."""

from typing import NamedTuple

import numpy as np

Pair = tuple[int, int]


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return x W^T + b: (T, I), (O, I), (O,) -> (T, O) float64."""
    return x @ weight.T + bias


def linear_backward(
    grad_y: np.ndarray, x: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (grad_x, grad_weight, grad_bias)."""
    return grad_y @ weight, grad_y.T @ x, grad_y.sum(axis=0)


def _kernel(weight: np.ndarray, kernel: Pair, channels: int) -> np.ndarray:
    """Drop the padding columns of (O, KPadded): (O, kh, kw, C)."""
    real = weight[:, : kernel[0] * kernel[1] * channels]
    return real.reshape(len(weight), *kernel, channels)


def convolve(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, kernel: Pair, padding: Pair
) -> np.ndarray:
    """Return the stride-1 correlation plus bias: (H, W, C) -> (Ho, Wo, O)."""
    taps = _kernel(weight, kernel, x.shape[2])
    padded = np.pad(x, [(padding[0],) * 2, (padding[1],) * 2, (0, 0)])
    rows, columns = (padded.shape[i] - kernel[i] + 1 for i in (0, 1))
    out = np.zeros((rows, columns, len(taps))) + bias
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            out += padded[ky : ky + rows, kx : kx + columns] @ taps[:, ky, kx].T
    return out


def _pool_windows(convolved: np.ndarray, pool: Pair) -> np.ndarray:
    """Return ReLU's values as (H', W', O, window), partial windows dropped."""
    rows, columns = (convolved.shape[i] // pool[i] for i in (0, 1))
    cut = np.maximum(convolved[: rows * pool[0], : columns * pool[1]], 0.0)
    split = cut.reshape(rows, pool[0], columns, pool[1], convolved.shape[2])
    return split.transpose(0, 2, 4, 1, 3).reshape(
        rows, columns, convolved.shape[2], pool[0] * pool[1]
    )


def conv_relu_pool(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    kernel: Pair,
    padding: Pair,
    pool: Pair,
) -> np.ndarray:
    """Return the maximum of ReLU over whole windows: (H', W', O) float64.

    Args:
      x: (H, W, C) float64.
      weight: (O, KPadded) float64, taps in (ky, kx, channel) order, then padding.
      bias: (O,) float64.
    """
    convolved = convolve(x, weight, bias, kernel, padding)
    return _pool_windows(convolved, pool).max(axis=3, initial=0.0)


def conv_relu_pool_backward(
    grad_y: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    kernel: Pair,
    padding: Pair,
    pool: Pair,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (grad_x, grad_weight padded like weight, grad_bias)."""
    convolved = convolve(x, weight, bias, kernel, padding)
    grad = _pool_backward(grad_y, convolved, pool)
    rows, columns, outputs = grad.shape
    channels = x.shape[2]
    taps = _kernel(weight, kernel, channels)
    padded = np.pad(x, [(padding[0],) * 2, (padding[1],) * 2, (0, 0)])
    grad_padded, grad_taps = np.zeros_like(padded), np.zeros_like(taps)
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            seen = np.s_[ky : ky + rows, kx : kx + columns]
            grad_taps[:, ky, kx] = np.einsum("yxo,yxc->oc", grad, padded[seen])
            grad_padded[seen] += grad @ taps[:, ky, kx]
    grad_weight = np.zeros_like(weight)
    grad_weight[:, : taps[0].size] = grad_taps.reshape(outputs, -1)
    inside = np.s_[
        padding[0] : padding[0] + x.shape[0], padding[1] : padding[1] + x.shape[1]
    ]
    return grad_padded[inside], grad_weight, grad.sum(axis=(0, 1))


def _pool_backward(grad_y: np.ndarray, convolved: np.ndarray, pool: Pair) -> np.ndarray:
    """Give each pooled gradient to the first maximum, if that is positive."""
    windows = _pool_windows(convolved, pool)
    grad = np.zeros_like(convolved)
    for row, column, channel in np.ndindex(*grad_y.shape):
        values = windows[row, column, channel]
        if values.max() > 0:
            dy, dx = divmod(int(values.argmax()), pool[1])
            at = row * pool[0] + dy, column * pool[1] + dx, channel
            grad[at] = grad_y[row, column, channel]
    return grad


class LstmWeights(NamedTuple):
    """One direction: w_ih (4H, D), w_hh (4H, H), b (4H,), gates i, f, g, o."""

    w_ih: np.ndarray
    w_hh: np.ndarray
    b: np.ndarray


class _Step(NamedTuple):
    i: np.ndarray
    f: np.ndarray
    g: np.ndarray
    o: np.ndarray
    cell_before: np.ndarray
    hidden_before: np.ndarray
    cell: np.ndarray


def sigmoid(z: np.ndarray) -> np.ndarray:
    """Return the logistic function without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def _run(x: np.ndarray, weights: LstmWeights) -> tuple[np.ndarray, list[_Step]]:
    hidden = cell = np.zeros(weights.w_hh.shape[1])
    steps, outs = [], np.zeros((len(x), len(hidden)))
    for t, row in enumerate(x):
        z = weights.w_ih @ row + weights.w_hh @ hidden + weights.b
        i, f, g, o = np.split(z, 4)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        new = f * cell + i * g
        steps.append(_Step(i, f, g, o, cell, hidden, new))
        cell, hidden = new, o * np.tanh(new)
        outs[t] = hidden
    return outs, steps


def lstm(x: np.ndarray, weights: LstmWeights, *, reverse: bool = False) -> np.ndarray:
    """Return (T, H) hidden states by time index, from the zero state."""
    if reverse:
        return _run(x[::-1], weights)[0][::-1]
    return _run(x, weights)[0]


def lstm_backward(
    grad_out: np.ndarray, x: np.ndarray, weights: LstmWeights, *, reverse: bool = False
) -> tuple[np.ndarray, LstmWeights]:
    """Return (grad_x, gradients of the weights) by the chain rule through time."""
    if reverse:
        grad_x, grads = lstm_backward(grad_out[::-1], x[::-1], weights)
        return grad_x[::-1], grads
    steps = _run(x, weights)[1]
    grad_x = np.zeros_like(x)
    grads = LstmWeights(*(np.zeros_like(w) for w in weights))
    grad_hidden = grad_cell = np.zeros(weights.w_hh.shape[1])
    for t in reversed(range(len(x))):
        s = steps[t]
        dh = grad_out[t] + grad_hidden
        dc = grad_cell + dh * s.o * (1 - np.tanh(s.cell) ** 2)
        dz = np.concatenate(
            [
                dc * s.g * s.i * (1 - s.i),
                dc * s.cell_before * s.f * (1 - s.f),
                dc * s.i * (1 - s.g**2),
                dh * np.tanh(s.cell) * s.o * (1 - s.o),
            ]
        )
        grad_cell, grad_hidden = dc * s.f, weights.w_hh.T @ dz
        grads.w_ih[...] += np.outer(dz, x[t])
        grads.w_hh[...] += np.outer(dz, s.hidden_before)
        grads.b[...] += dz
        grad_x[t] = weights.w_ih.T @ dz
    return grad_x, grads
