"""LSTM over lines of steps, one or both directions, with hand-written VJPs.

Gate order i, f, g, o; one bias per direction (b_ih + b_hh). The initial state is zero.
One scan runs all directions at once; a line's padding neither enters nor leaves it.
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
    float32_arrays,
    line_lengths,
)
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike, custom_vjp
from onemodel_jax.numerics.elementary import sigmoid, tanh
from onemodel_jax.numerics.exact import add, mul
from onemodel_jax.numerics.guarded import Operations, chain
from onemodel_jax.numerics.lanes import batched_matmul
from onemodel_jax.ops.lines import mask_rows, sum_in_line_order, weight_gradients


class LstmParams(NamedTuple):
    """One direction: w_ih (4H, D), w_hh (4H, H), b (4H,), float32; gates i, f, g, o."""

    w_ih: Array
    w_hh: Array
    b: Array


class Residuals(NamedTuple):
    """What the backward pass reads; G directions, steps in visiting order.

    Attributes:
      x: (B, T, D).
      params: stacked over directions: (G, 4H, D), (G, 4H, H), (G, 4H).
      lengths: (B,) int32.
      gates: (T, G, B, 4H), activated.
      hidden_before, cell_before: (T, G, B, H), the state each step started from.
      tanh_cell: (T, G, B, H).
    """

    x: Array
    params: LstmParams
    lengths: Array
    gates: Array
    hidden_before: Array
    cell_before: Array
    tanh_cell: Array


def lstm(
    x: ArrayLike,
    w_ih: ArrayLike,
    w_hh: ArrayLike,
    b: ArrayLike,
    *,
    lengths: ArrayLike | None = None,
    reverse: bool = False,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Run an LSTM over each line from the zero state.

    Rounding (SPEC, "LSTM"), every operation rounded separately:
      z = (dot(x, w_ih) + b) + dot(h, w_hh);  i, f, o = sigmoid(z), g = tanh(z);
      c = f c + i g (both products, then the sum);  h = o tanh(c).
    Backward, in the reverse of the visiting order: dtc = dh o, do = dh tc,
    dc = dc' + dtc (1 - tc tc), di = dc g, dg = dc i, df = dc c_before, and through
    each activation by its value; the recurrent and the input gradients are dots over
    the gates, the weight gradients dots over t ascending by time index, added over
    the lines in line order. First order, reverse mode only.

    Args:
      x: (B, T, D) or (T, D) float32.
      w_ih: (4H, D) float32; w_hh: (4H, H) float32; b: (4H,) float32.
      lengths: (B,) int32 true number of steps of each line; the output beyond is 0.
        Default: T.
      reverse: visit a line's steps from its last to its first.
      arithmetic: "exact" or "fast".

    Returns:
      (B, T, H) or (T, H) float32, by time index.

    Raises:
      TypeError: an operand is not float32 (int32 for lengths).
      ValueError: a shape does not fit.

    References: Hochreiter and Schmidhuber 1997; Gers et al. 2000 (forget gate).
    """
    params = LstmParams(*map(jnp.asarray, (w_ih, w_hh, b)))
    return _run("lstm", x, (params,), lengths, (bool(reverse),), arithmetic)


def bilstm(
    x: ArrayLike,
    forward: LstmParams,
    reverse: LstmParams,
    *,
    lengths: ArrayLike | None = None,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Run an LSTM in both directions; the outputs side by side, forward's first.

    Rounding as :func:`lstm`, but the input gradient is ONE dot over the 8H gates,
    forward's 4H first, then reverse's.

    Args:
      x: (B, T, D) or (T, D) float32.
      forward, reverse: parameters of each direction, of the same sizes.
      lengths, arithmetic: as for :func:`lstm`.

    Returns:
      (B, T, 2H) or (T, 2H) float32.

    Raises:
      TypeError, ValueError: as for :func:`lstm`.
    """
    both = tuple(LstmParams(*map(jnp.asarray, p)) for p in (forward, reverse))
    return _run("bilstm", x, both, lengths, (False, True), arithmetic)


def _run(name, x, directions, lengths, reverse, arithmetic) -> Array:
    exact = check_arithmetic(name, arithmetic)
    (x,) = float32_arrays(name, x=x)
    check_rank(name, "x", x, 2, 3)
    lines = x if x.ndim == 3 else x[None]
    check_rank(name, "w_hh", directions[0].w_hh, 2)
    size = directions[0].w_hh.shape[1]
    shapes = ((4 * size, x.shape[-1]), (4 * size, size), (4 * size,))
    for params in directions:
        float32_arrays(name, **params._asdict())
        for argument, shape in zip(LstmParams._fields, shapes, strict=True):
            check_shape(name, argument, getattr(params, argument), shape)
    lengths = line_lengths(name, "lengths", lengths, *lines.shape[:2])
    stacked = LstmParams(*(jnp.stack(p) for p in zip(*directions, strict=True)))
    y = _lstm(lines, stacked, lengths, reverse, exact)
    return y if x.ndim == 3 else y[0]


def _visiting_order(x: Array, reverse: tuple[bool, ...]) -> Array:
    """Return (T, G, B, D) with reversed directions flipped; its own inverse."""
    flipped = [x[::-1, g] if r else x[:, g] for g, r in enumerate(reverse)]
    return jnp.stack(flipped, axis=1)


def _inside(lengths: Array, steps: int, reverse: tuple[bool, ...]) -> Array:
    """Return (T, G, B, 1) bool in visiting order: the step belongs to the line."""
    inside = jnp.arange(steps)[:, None] < lengths
    every = jnp.broadcast_to(inside[:, None], (steps, len(reverse), len(lengths)))
    return _visiting_order(every, reverse)[..., None]


def _new_cell(o: Operations, f: Array, cell: Array, i: Array, g: Array) -> tuple[Array]:
    """Return f cell + i g."""
    return (o.add(o.mul(f, cell), o.mul(i, g)),)


def _cell(zx: Array, hidden: Array, cell: Array, w_hh: Array, exact: bool):
    """One step: (gates, cell, tanh_cell, hidden) from z of the input and the state."""
    a: Arithmetic = EXACT if exact else "fast"
    z = add(zx, batched_matmul(hidden, w_hh, exact=exact), arithmetic=a)
    size = hidden.shape[-1]
    squashed = sigmoid(z, arithmetic=a)
    g = tanh(z[..., 2 * size : 3 * size], arithmetic=a)
    i, f, o = (squashed[..., k * size : (k + 1) * size] for k in (0, 1, 3))
    (cell,) = chain(_new_cell, (f, cell, i, g), arithmetic=a)
    tanh_cell = tanh(cell, arithmetic=a)
    hidden = mul(o, tanh_cell, arithmetic=a)
    return jnp.concatenate([i, f, g, o], axis=-1), cell, tanh_cell, hidden


def _forward(x, params, lengths, reverse, exact):
    a: Arithmetic = EXACT if exact else "fast"
    (lines, steps, _), directions = x.shape, len(reverse)
    gates = params.b.shape[1]
    size = gates // 4
    every = params.w_ih.reshape(1, directions * gates, -1)
    rows = x.reshape(1, lines * steps, x.shape[2])
    zx = batched_matmul(rows, every, exact=exact)[0]
    zx = add(zx, params.b.reshape(-1), arithmetic=a)
    zx = zx.reshape(lines, steps, directions, gates).transpose(1, 2, 0, 3)
    inside = _inside(lengths, steps, reverse)

    def step(state, operands):
        hidden, cell = state
        z, here = operands
        activated, new_cell, tanh_cell, new_hidden = _cell(
            z, hidden, cell, params.w_hh, exact
        )
        after = (jnp.where(here, new_hidden, 0.0), jnp.where(here, new_cell, 0.0))
        return after, (activated, hidden, cell, tanh_cell, after[0])

    zero = jnp.zeros((directions, lines, size), jnp.float32)
    operands = (_visiting_order(zx, reverse), inside)
    _, (activated, hidden_before, cell_before, tanh_cell, hidden) = lax.scan(
        step, (zero, zero), operands
    )
    out = _visiting_order(hidden, reverse).transpose(2, 0, 1, 3)
    residuals = Residuals(
        x, params, lengths, activated, hidden_before, cell_before, tanh_cell
    )
    return out.reshape(lines, steps, directions * size), residuals


@custom_vjp(nondiff_argnums=(3, 4))
def _lstm(x, params, lengths, reverse, exact) -> Array:
    return _forward(x, params, lengths, reverse, exact)[0]


def _fwd(x, params, lengths, reverse, exact):
    return _forward(x, params, lengths, reverse, exact)


def _gate_gradients(
    o: Operations,
    dh: Array,
    dc_next: Array,
    i: Array,
    f: Array,
    g: Array,
    out: Array,
    before: Array,
    tc: Array,
    one: Array,
) -> tuple[Array, ...]:
    """Return the parts i, f, g, o of dz, and dc_next, of one step."""

    def slope(y: Array) -> Array:
        return o.mul(y, o.sub(one, y))

    def into_cell(dh: Array, out: Array, tc: Array, dc_next: Array) -> Array:
        through_tanh = o.mul(o.mul(dh, out), o.sub(one, o.mul(tc, tc)))
        return o.add(dc_next, through_tanh)

    dc = o.stage(into_cell, dh, out, tc, dc_next)
    return (
        o.mul(o.mul(dc, g), slope(i)),
        o.mul(o.mul(dc, before), slope(f)),
        o.mul(o.mul(dc, i), o.sub(one, o.mul(g, g))),
        o.mul(o.mul(dh, tc), slope(out)),
        o.mul(dc, f),
    )


def _bwd(reverse, exact, residuals: Residuals, dy: Array):
    """Backpropagation through time; then dots over the gates and over the steps."""
    a: Arithmetic = EXACT if exact else "fast"
    x, params, lengths = residuals.x, residuals.params, residuals.lengths
    (lines, steps, width), directions = x.shape, len(reverse)
    gates = params.b.shape[1]
    size = gates // 4
    dy = dy.reshape(lines, steps, directions, size).transpose(1, 2, 0, 3)
    inside = _inside(lengths, steps, reverse)
    w_hh_t = params.w_hh.transpose(0, 2, 1)

    def step(state, operands):
        dh_next, dc_next = state
        dout, activated, cell_before, tc, here = operands
        dh = add(dout, dh_next, arithmetic=a)
        gates = jnp.split(activated, 4, axis=-1)
        read = (dh, dc_next, *gates, cell_before, tc, jnp.float32(1))
        *dz, dc = chain(_gate_gradients, read, arithmetic=a)
        dz = jnp.concatenate(dz, axis=-1)
        dz, dc = jnp.where(here, dz, 0.0), jnp.where(here, dc, 0.0)
        dh_before = batched_matmul(dz, w_hh_t, exact=exact)
        return (jnp.where(here, dh_before, 0.0), dc), dz

    zero = jnp.zeros((directions, lines, size), jnp.float32)
    operands = (
        _visiting_order(dy, reverse),
        residuals.gates,
        residuals.cell_before,
        residuals.tanh_cell,
        inside,
    )
    _, dz = lax.scan(step, (zero, zero), operands, reverse=True)
    dz = _visiting_order(dz, reverse).transpose(2, 0, 1, 3)  # (B, T, G, 4H)
    every = dz.reshape(lines, steps, directions * gates)
    w_ih_t = params.w_ih.reshape(1, directions * gates, width).transpose(0, 2, 1)
    flat = every.reshape(1, lines * steps, directions * gates)
    dx = batched_matmul(flat, w_ih_t, exact=exact)[0].reshape(x.shape)
    before = _visiting_order(residuals.hidden_before, reverse).transpose(2, 0, 1, 3)
    before = before.reshape(lines, steps, directions * size)
    # One product for all weights: x, then each direction's hidden state, then ones.
    read = mask_rows(jnp.concatenate([x, before], axis=2), lengths, -0.0)
    dw, db = weight_gradients(every, read, exact=exact)
    dw = dw.reshape(lines, directions, gates, width + directions * size)
    own = [
        dw[:, g, :, width + g * size : width + (g + 1) * size]
        for g in range(directions)
    ]
    parts = (dw[..., :width], jnp.stack(own, axis=1), db)
    grads = LstmParams(
        *(
            g.reshape(p.shape)
            for g, p in zip(sum_in_line_order(parts, a), params, strict=True)
        )
    )
    no_grad = np.zeros(lengths.shape, jax.dtypes.float0)
    return mask_rows(dx, lengths), grads, no_grad


_lstm.defvjp(_fwd, _bwd)
