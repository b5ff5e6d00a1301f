"""Optimizer steps, each operation one float32 rounding (SPEC, "Optimizers").

Parameters, gradients and state are lists of float32 arrays in parameter order.
Hyper-parameters are float64, the learning rate float32; every scalar is computed in
float64 and rounded once to float32 before it meets an array.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Arrays = Sequence[np.ndarray]
_F = np.float32


class AdamWLerpState(NamedTuple):
    """Completed steps, running products of the betas, and the two moments."""

    step: int
    power_b1: np.float64
    power_b2: np.float64
    m: list[np.ndarray]
    v: list[np.ndarray]


def adamw_lerp_init(params: Arrays) -> AdamWLerpState:
    """Return the state before the first step."""
    zeros = [np.zeros_like(p, np.float32) for p in params]
    return AdamWLerpState(0, np.float64(1), np.float64(1), zeros, list(zeros))


@np.errstate(all="ignore")
def adamw_lerp_step(
    params: Arrays,
    grads: Arrays,
    state: AdamWLerpState,
    *,
    learning_rate: float,
    weight_decay: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    decayed: Sequence[bool] | None = None,
) -> tuple[list[np.ndarray], AdamWLerpState]:
    """AdamW of Loshchilov and Hutter 2019, algorithm 2, in the recognizer's order.

    Args:
      params, grads: float32 arrays, in parameter order.
      state: the state before the step.
      learning_rate: rounded to float32, then widened.
      weight_decay, b1, b2: float64.
      eps: rounded to float32.
      decayed: which tensors decay; all of them by default.

    Returns:
      New parameters and state.
    """
    lr = np.float64(_F(learning_rate))
    power_b1, power_b2 = state.power_b1 * b1, state.power_b2 * b2
    step_size = _F(lr / (1.0 - power_b1))
    sqrt_c2 = _F(np.sqrt(1.0 - power_b2))
    decay, eps32 = _F(1.0 - lr * weight_decay), _F(eps)
    rest1, rest2, beta2 = _F(1.0 - b1), _F(1.0 - b2), _F(b2)
    flags = [True] * len(params) if decayed is None else decayed
    new_p, new_m, new_v = [], [], []
    for p, g, m, v, flag in zip(params, grads, state.m, state.v, flags, strict=True):
        p = p * decay if flag else p
        m = m + rest1 * (g - m)
        v = v * beta2 + rest2 * (g * g)
        p = p - step_size * (m / (np.sqrt(v) / sqrt_c2 + eps32))
        new_p.append(p)
        new_m.append(m)
        new_v.append(v)
    return new_p, AdamWLerpState(state.step + 1, power_b1, power_b2, new_m, new_v)


def power(base: float, exponent: int) -> float:
    """Return base**exponent by binary exponentiation, one rounding a product."""
    result, square = 1.0, float(base)
    while exponent:
        if exponent & 1:
            result = result * square
        square, exponent = square * square, exponent >> 1
    return result


class AdamState(NamedTuple):
    """Completed steps, the two moments, and AMSGrad's running maximum."""

    step: int
    exp_avg: list[np.ndarray]
    exp_avg_sq: list[np.ndarray]
    max_exp_avg_sq: list[np.ndarray]


def adam_init(params: Arrays) -> AdamState:
    """Return the state before the first step."""
    zeros = [np.zeros_like(p, np.float32) for p in params]
    return AdamState(0, zeros, list(zeros), list(zeros))


@np.errstate(all="ignore")
def adam_step(
    params: Arrays,
    grads: Sequence[np.ndarray | None],
    state: AdamState,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    amsgrad: bool = False,
    decoupled: bool = False,
) -> tuple[list[np.ndarray], AdamState]:
    """The training library's Adam, or AdamW when ``decoupled``.

    A parameter whose gradient is None is skipped with its state. Adam adds
    weight_decay * p to the gradient when weight_decay is not 0. AMSGrad keeps
    the larger second moment, NaN where either is NaN (Kingma and Ba 2015; Reddi, Kale
    and Kumar 2018).
    """
    lr, t = np.float64(_F(learning_rate)), state.step + 1
    step_size = _F(lr / (1.0 - power(b1, t)))
    sqrt_c2 = _F(np.sqrt(np.float64(1.0 - power(b2, t))))
    decay, wd, eps32 = _F(1.0 - lr * weight_decay), _F(weight_decay), _F(eps)
    beta1, rest1, beta2, rest2 = _F(b1), _F(1.0 - b1), _F(b2), _F(1.0 - b2)
    out = [list(params), list(state.exp_avg), list(state.exp_avg_sq)]
    largest = list(state.max_exp_avg_sq)
    for n, (p, g) in enumerate(zip(params, grads, strict=True)):
        if g is None:
            continue
        if decoupled:
            p = p * decay
        elif weight_decay != 0:
            g = g + wd * p
        m = beta1 * out[1][n] + rest1 * g
        v = beta2 * out[2][n] + (rest2 * g) * g
        used = np.maximum(largest[n], v) if amsgrad else v
        if amsgrad:
            largest[n] = used
        denominator = np.sqrt(used) / sqrt_c2 + eps32
        out[0][n] = p - (step_size * m) / denominator
        out[1][n], out[2][n] = m, v
    return out[0], AdamState(t, out[1], out[2], largest)


class SgdState(NamedTuple):
    """Completed steps, momentum buffers, and which buffers have been started."""

    step: int
    momentum_buffer: list[np.ndarray]
    initialized: list[bool]


def sgd_init(params: Arrays) -> SgdState:
    """Return the state before the first step."""
    return SgdState(
        0, [np.zeros_like(p, np.float32) for p in params], [False] * len(params)
    )


@np.errstate(all="ignore")
def sgd_step(
    params: Arrays,
    grads: Sequence[np.ndarray | None],
    state: SgdState,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[list[np.ndarray], SgdState]:
    """SGD with momentum; None gradients are skipped with their state.

    Raises:
      ValueError: nesterov without momentum or with dampening.
    """
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError(
            "sgd: nesterov: expected momentum > 0 and dampening 0, "
            f"got {momentum} and {dampening}"
        )
    lr, mu, wd = _F(learning_rate), _F(momentum), _F(weight_decay)
    rest = _F(1.0 - dampening)
    new_p, buffers, started = (
        list(params),
        list(state.momentum_buffer),
        list(state.initialized),
    )
    for n, (p, g) in enumerate(zip(params, grads, strict=True)):
        if g is None:
            continue
        if weight_decay != 0:
            g = g + wd * p
        if momentum != 0:
            b = mu * buffers[n] + rest * g if started[n] else g
            buffers[n], started[n] = b, True
            g = g + mu * b if nesterov else b
        new_p[n] = p - lr * g
    return new_p, SgdState(state.step + 1, buffers, started)
