"""LSTM of one line, forward and backward, in lane order (SPEC, "LSTM").

Gate order i, f, g, o. Every element-wise operation is rounded separately.
"""

from typing import NamedTuple

import numpy as np

from onemodel_jax.reference.lanes.elementary import sigmoid, tanh
from onemodel_jax.reference.lanes.lanes import lane_sum, matmul


class LstmParams(NamedTuple):
    """One direction: w_ih (4H, D), w_hh (4H, H), b (4H,), float32."""

    w_ih: np.ndarray
    w_hh: np.ndarray
    b: np.ndarray


class LstmTape(NamedTuple):
    """What one direction's backward pass reads, stored by time index.

    Attributes:
      gates: (T, 4, H) float32, activated i, f, g, o.
      cell, tanh_cell: (T, H) float32, the cell state and its tanh.
      hidden_before, cell_before: (T, H) float32, the state each step started from.
    """

    gates: np.ndarray
    cell: np.ndarray
    tanh_cell: np.ndarray
    hidden_before: np.ndarray
    cell_before: np.ndarray


def _visits(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


@np.errstate(all="ignore")
def lstm(
    x: np.ndarray, params: LstmParams, *, reverse: bool = False
) -> tuple[np.ndarray, LstmTape]:
    """Run one direction from the zero state.

    z = (dot(x, w_ih) + b) + dot(h, w_hh); i, f, o = sigmoid(z), g = tanh(z);
    c = f c + i g (products rounded, then the sum); h = o tanh(c).

    Args:
      x: (T, D) float32.
      params: the direction's parameters.
      reverse: visit the steps from T-1 down to 0.

    Returns:
      (T, H) float32 hidden states by time index, and the tape.
    """
    steps, size = len(x), params.w_hh.shape[1]
    from_input = matmul(x, params.w_ih) + params.b
    out = np.zeros((steps, size), np.float32)
    tape = LstmTape(
        np.zeros((steps, 4, size), np.float32), *np.zeros((4, steps, size), np.float32)
    )
    hidden, cell = np.zeros((2, size), np.float32)
    for t in _visits(steps, reverse):
        tape.hidden_before[t], tape.cell_before[t] = hidden, cell
        z = (from_input[t] + matmul(hidden[None], params.w_hh)[0]).reshape(4, size)
        i, f, g, o = sigmoid(z[0]), sigmoid(z[1]), tanh(z[2]), sigmoid(z[3])
        cell = f * cell + i * g
        tanh_cell = tanh(cell)
        hidden = o * tanh_cell
        tape.gates[t] = i, f, g, o
        tape.cell[t], tape.tanh_cell[t], out[t] = cell, tanh_cell, hidden
    return out, tape


@np.errstate(all="ignore")
def lstm_gate_gradients(
    grad_out: np.ndarray, tape: LstmTape, params: LstmParams, *, reverse: bool = False
) -> np.ndarray:
    """Return dz (T, 4H) float32 by time index, for grad_out (T, H) float32."""
    steps, size = grad_out.shape
    grad_z = np.zeros((steps, 4 * size), np.float32)
    one = np.float32(1)
    grad_hidden, grad_cell = np.zeros((2, size), np.float32)
    for t in reversed(_visits(steps, reverse)):
        (i, f, g, o), tc = tape.gates[t], tape.tanh_cell[t]
        dh = grad_out[t] + grad_hidden
        dtc, do = dh * o, dh * tc
        dc = grad_cell + dtc * (one - tc * tc)
        di, dg, df = dc * g, dc * i, dc * tape.cell_before[t]
        grad_cell = dc * f
        grad_z[t] = np.concatenate(
            [
                di * (i * (one - i)),
                df * (f * (one - f)),
                dg * (one - g * g),
                do * (o * (one - o)),
            ]
        )
        grad_hidden = matmul(grad_z[t][None], params.w_hh.T)[0]
    return grad_z


def lstm_param_gradients(
    grad_z: np.ndarray, x: np.ndarray, tape: LstmTape
) -> LstmParams:
    """Return the gradients of w_ih, w_hh and b: dots over t, ascending."""
    return LstmParams(
        matmul(grad_z.T, x.T),
        matmul(grad_z.T, tape.hidden_before.T),
        lane_sum(grad_z.T),
    )


def lstm_backward(
    grad_out: np.ndarray,
    x: np.ndarray,
    tape: LstmTape,
    params: LstmParams,
    *,
    reverse: bool = False,
) -> tuple[np.ndarray, LstmParams]:
    """Return (grad_x (T, D), parameter gradients) of one direction alone.

    grad_x is a dot over the direction's 4H gates.
    """
    grad_z = lstm_gate_gradients(grad_out, tape, params, reverse=reverse)
    return matmul(grad_z, params.w_ih.T), lstm_param_gradients(grad_z, x, tape)


def bilstm(
    x: np.ndarray, forward: LstmParams, backward: LstmParams
) -> tuple[np.ndarray, tuple[LstmTape, LstmTape]]:
    """Return (T, 2H) hidden states, forward's columns first, and both tapes."""
    ahead, ahead_tape = lstm(x, forward)
    back, back_tape = lstm(x, backward, reverse=True)
    return np.concatenate([ahead, back], axis=1), (ahead_tape, back_tape)


def bilstm_backward(
    grad_out: np.ndarray,
    x: np.ndarray,
    tapes: tuple[LstmTape, LstmTape],
    forward: LstmParams,
    backward: LstmParams,
) -> tuple[np.ndarray, LstmParams, LstmParams]:
    """Return (grad_x, forward's gradients, reverse's gradients).

    grad_x is one dot over the 8H gates: forward's 4H first, then reverse's.
    """
    size = forward.w_hh.shape[1]
    ahead = lstm_gate_gradients(grad_out[:, :size], tapes[0], forward)
    back = lstm_gate_gradients(grad_out[:, size:], tapes[1], backward, reverse=True)
    both = np.concatenate([ahead, back], axis=1)
    weights = np.concatenate([forward.w_ih, backward.w_ih], axis=0)
    return (
        matmul(both, weights.T),
        lstm_param_gradients(ahead, x, tapes[0]),
        lstm_param_gradients(back, x, tapes[1]),
    )
