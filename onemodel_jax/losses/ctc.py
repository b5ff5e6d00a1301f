"""Connectionist temporal classification in binary64, with its gradient in logits.

Log domain, on the blank-extended label sequence (Graves et al. 2006, sections 3.1,
3.2 and 4.1), exp64 and log64, every operation rounded separately (SPEC, "CTC").
The gradient is formed with the loss, because both need the same variables.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from onemodel_jax._checks import (
    check_arithmetic,
    check_dtype,
    check_option,
    check_rank,
    check_shape,
    describe,
    fail,
    line_lengths,
)
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike, custom_vjp
from onemodel_jax.numerics.convert import narrow, widen
from onemodel_jax.numerics.elementary import exp64, log64
from onemodel_jax.numerics.exact import add, div, mul, sub

LOGADD_CUT = -40.0
_MINUS_INF = -jnp.inf


class Lines(NamedTuple):
    """A batch as the recursion reads it; S = 2L + 1 entries, blanks between labels.

    Attributes:
      log_probs: (T, B, C) float64.
      emission: (T, B, S) float64, log_probs at the entries' labels.
      entries: (B, S) int32 labels of the entries.
      skip: (B, S) bool, a path may step from s - 2 to s.
      num_entries: (B,) int32, 2 * label length + 1.
      lengths: (B,) int32 true number of steps.
    """

    log_probs: Array
    emission: Array
    entries: Array
    skip: Array
    num_entries: Array
    lengths: Array


def logadd(x: Array, y: Array) -> Array:
    """Return log(e^x + e^y): hi + log64(1 + exp64(lo - hi)), hi the larger.

    hi alone where lo is -inf or lo - hi < -40.
    """
    first = x >= y
    high, low = jnp.where(first, x, y), jnp.where(first, y, x)
    gap = sub(low, high)
    both = add(high, log64(add(1.0, exp64(gap))))
    return jnp.where((low == _MINUS_INF) | (gap < LOGADD_CUT), high, both)


def _log_softmax(logits: Array) -> Array:
    """(z - m) - log64(s), s the sum of exp64(z - m) over ascending classes."""
    z = widen(logits)
    z = sub(z, jnp.max(z, axis=-1, keepdims=True))
    terms = jnp.moveaxis(exp64(z), -1, 0)
    zero = jnp.zeros(terms.shape[1:], jnp.float64)
    total, _ = lax.scan(lambda t, x: (add(t, x), None), zero, terms)
    return sub(z, log64(total)[..., None])


def _prepare(logits, labels, lengths, label_lengths) -> Lines:
    """Lay the batch out by time; labels beyond a line's length become blanks."""
    num_lines, num_labels = labels.shape
    inside = jnp.arange(num_labels, dtype=jnp.int32) < label_lengths[:, None]
    labels = jnp.where(inside, labels, 0)
    entries = jnp.zeros((num_lines, 2 * num_labels + 1), jnp.int32)
    entries = entries.at[:, 1::2].set(labels)
    before = jnp.pad(entries, ((0, 0), (2, 0)), constant_values=-1)[:, :-2]
    skip = (entries != 0) & (entries != before) & (before >= 0)
    log_probs = _log_softmax(logits.transpose(1, 0, 2))
    at = jnp.broadcast_to(entries, (log_probs.shape[0], *entries.shape))
    emission = jnp.take_along_axis(log_probs, at, axis=2)
    return Lines(log_probs, emission, entries, skip, 2 * label_lengths + 1, lengths)


def _back(row: Array, by: int) -> Array:
    """Return row[..., s - by], -inf where there is none."""
    size = row.shape[1]
    return jnp.pad(row, ((0, 0), (by, 0)), constant_values=_MINUS_INF)[:, :size]


def _ahead(row: Array, by: int) -> Array:
    """Return row[..., s + by], -inf where there is none."""
    return jnp.pad(row, ((0, 0), (0, by)), constant_values=_MINUS_INF)[:, by:]


def _recursion(lines: Lines) -> tuple[Array, Array]:
    """Return the forward and backward variables, each (T, B, S).

    Both include the emission of their own step; each step adds staying, then one
    entry, then two. One scan runs both: the backward variables are walked from each
    line's own last step, padding steps passing the start through.
    """
    steps, num_lines, size = lines.emission.shape
    s = jnp.arange(size, dtype=jnp.int32)
    start = jnp.broadcast_to(s < 2, (num_lines, size))
    last = s >= lines.num_entries[:, None] - 2
    last = last & (s < lines.num_entries[:, None])
    skip_ahead = jnp.pad(lines.skip, ((0, 0), (0, 2)))[:, 2:]

    def step(carry, operands):
        ahead, back, begun = carry
        emission, emission_back, here = operands
        total = logadd(ahead, _back(ahead, 1))
        total = logadd(total, jnp.where(lines.skip, _back(ahead, 2), _MINUS_INF))
        ahead = add(total, emission)
        total = logadd(back, _ahead(back, 1))
        two = jnp.where(skip_ahead, _ahead(back, 2), _MINUS_INF)
        total = add(logadd(total, two), emission_back)
        first = jnp.where(last, emission_back, _MINUS_INF)
        moved = jnp.where(begun[:, None], total, first)
        moved = jnp.where(s < lines.num_entries[:, None], moved, _MINUS_INF)
        back = jnp.where(here[:, None], moved, back)
        return (ahead, back, begun | here), (ahead, back)

    inside = jnp.arange(steps, dtype=jnp.int32)[:, None] < lines.lengths
    first = jnp.where(start, lines.emission[0], _MINUS_INF)
    nothing = jnp.full((num_lines, size), _MINUS_INF)
    here = inside[-1]
    back = jnp.where(last & here[:, None], lines.emission[-1], _MINUS_INF)
    back = jnp.where(here[:, None], back, nothing)
    operands = (lines.emission[1:], lines.emission[-2::-1], inside[-2::-1])
    if steps == 1:
        return first[None], back[None]
    _, (forward, backward) = lax.scan(step, (first, back, here), operands)
    return (
        jnp.concatenate([first[None], forward]),
        jnp.concatenate([back[None], backward])[::-1],
    )


def _log_likelihood(lines: Lines, forward: Array) -> Array:
    """Return (B,) float64: logadd of the last two entries at a line's last step."""
    last = jnp.maximum(lines.lengths - 1, 0)
    row = jnp.take_along_axis(forward, last[None, :, None], axis=0)[0]
    end = lines.num_entries[:, None]
    blank = jnp.take_along_axis(row, end - 1, axis=1)[:, 0]
    label = jnp.take_along_axis(row, jnp.maximum(end - 2, 0), axis=1)[:, 0]
    log_p = jnp.where(end[:, 0] > 1, logadd(label, blank), blank)
    empty = jnp.where(end[:, 0] > 1, _MINUS_INF, -0.0)  # the loss is its negation
    return jnp.where(lines.lengths > 0, log_p, empty)


def _class_sums(lines: Lines, joint: Array) -> Array:
    """Return acc (T, B, C): logadd over the entries of each class, ascending."""
    rows = jnp.arange(joint.shape[1], dtype=jnp.int32)

    def step(acc, entry):
        labels, values, present = entry
        here = jnp.take_along_axis(acc, labels[None, :, None], axis=2)[..., 0]
        total = jnp.where(present, logadd(here, values), here)
        return acc.at[:, rows, labels].set(total), None

    nothing = jnp.full(lines.log_probs.shape, _MINUS_INF)
    present = jnp.arange(joint.shape[2], dtype=jnp.int32)[:, None] < lines.num_entries
    entries = (lines.entries.T, joint.transpose(2, 0, 1), present)
    return lax.scan(step, nothing, entries)[0]


def _loss_and_direction(logits, labels, lengths, label_lengths):
    """Return ((B,) float64 losses, (B, T, C) float64 softmax minus posterior).

    The direction is +0 where no alignment exists and beyond a line's length.
    """
    steps = logits.shape[1]
    if steps == 0 or logits.shape[0] == 0:
        loss = jnp.where(label_lengths > 0, jnp.inf, 0.0)
        return loss, jnp.zeros(logits.shape, jnp.float64)
    inside = jnp.arange(steps, dtype=jnp.int32) < lengths[:, None]
    logits = jnp.where(inside[:, :, None], logits, jnp.float32(0))
    lines = _prepare(logits, labels, lengths, label_lengths)
    forward, backward = _recursion(lines)
    log_p = _log_likelihood(lines, forward)
    acc = _class_sums(lines, add(forward, backward))
    posterior = exp64(sub(sub(acc, lines.log_probs), log_p[:, None]))
    # -inf - -inf: a class of probability zero that no alignment uses.
    impossible = (acc == _MINUS_INF) & (lines.log_probs == _MINUS_INF)
    posterior = jnp.where(impossible, 0.0, posterior)
    direction = sub(exp64(lines.log_probs), posterior).transpose(1, 0, 2)
    counted = (log_p != _MINUS_INF)[:, None] & inside
    return -log_p, jnp.where(counted[:, :, None], direction, 0.0)


def _spoil(value, logits, labels, lengths, label_lengths):
    """Return value (B, ...) with NaN for a line whose labels or lengths are invalid."""
    num_labels = labels.shape[1]
    used = jnp.arange(num_labels, dtype=jnp.int32) < label_lengths[:, None]
    bad = jnp.any(used & ((labels < 1) | (labels >= logits.shape[2])), axis=1)
    bad = bad | (lengths < 0) | (lengths > logits.shape[1])
    bad = bad | (label_lengths < 0) | (label_lengths > num_labels)
    shape = (-1,) + (1,) * (value.ndim - 1)
    return jnp.where(bad.reshape(shape), jnp.nan, value)


@custom_vjp(nondiff_argnums=(4,))
def _ctc(logits, labels, lengths, label_lengths, mean) -> Array:
    return _fwd(logits, labels, lengths, label_lengths, mean)[0]


def _fwd(logits, labels, lengths, label_lengths, mean):
    integers = (labels, lengths, label_lengths)
    with jax.enable_x64(True):
        size = labels.shape[1]
        safe = (
            jnp.clip(labels, 0, max(logits.shape[2] - 1, 0)),
            jnp.clip(lengths, 0, logits.shape[1]),
            jnp.clip(label_lengths, 0, size),
        )
        loss, direction = _loss_and_direction(logits, *safe)
        loss = _spoil(loss, logits, *integers)
        direction = _spoil(direction, logits, *integers)
        if mean:
            loss = _mean(jnp.where(loss == jnp.inf, 0.0, loss))
        words = lax.bitcast_convert_type(direction, jnp.uint32)
        return narrow(loss), (words, *integers)


def _mean(losses: Array) -> Array:
    """Sum in line order, then divide by the number of lines; of none, NaN."""
    zero = jnp.zeros((), jnp.float64)
    total, _ = lax.scan(lambda t, x: (add(t, x), None), zero, losses)
    return div(total, float(losses.shape[0]))


def _bwd(mean, residuals, ct):
    """d loss / d logits = scale * (softmax - posterior), rounded once to binary32."""
    words, *integers = residuals
    with jax.enable_x64(True):
        direction = lax.bitcast_convert_type(words, jnp.float64)
        scale = widen(ct)
        if mean:
            scale = div(scale, float(words.shape[0]))
        scale = jnp.broadcast_to(scale, words.shape[:1])[:, None, None]
        grad = mul(scale, direction)
        # No alignment: exactly zero, whatever the scale.
        grad = narrow(jnp.where(direction == 0.0, 0.0, grad))
    return grad, *(np.zeros(v.shape, jax.dtypes.float0) for v in integers)


_ctc.defvjp(_fwd, _bwd)


def ctc_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    lengths: ArrayLike | None = None,
    label_lengths: ArrayLike | None = None,
    reduction: str = "none",
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Return -log p(labels | softmax of the logits), summed over all alignments.

    Blank is class 0. Rounding (SPEC, "CTC"): binary64 in the log domain; the loss is
    rounded once to float32. The gradient with respect to the LOGITS is
    scale * (softmax - posterior) in binary64, rounded once; scale is the cotangent,
    divided by the number of lines under "mean". First order, reverse mode only.

    A line that no alignment fits (fewer steps than labels plus equal neighbours) has
    loss +inf and gradient exactly 0; "mean" counts it as 0. No labels is legal: all
    blank. Of 0 steps the loss is 0 for no labels, else +inf. Content beyond a line's
    lengths is not read, and its gradient is exactly 0. Where invalid labels or
    lengths cannot be seen while tracing, that line's loss and gradient are NaN.

    Args:
      logits: (T, C) or (B, T, C) float32, unnormalized log-probabilities.
      labels: (L,) or (B, L) int32, classes in 1 .. C-1.
      lengths: (B,) int32 steps of each line. Default: T.
      label_lengths: (B,) int32 labels of each line. Default: L.
      reduction: "none" gives one loss a line; "mean" their plain mean (not divided by
        the label lengths).
      arithmetic: "exact" or "fast"; the loss is the same, it has only one arithmetic.

    Returns:
      () float32 for (T, C) logits or "mean", (B,) float32 otherwise.

    Raises:
      TypeError: logits are not float32, or labels or lengths not int32.
      ValueError: a shape does not fit, a label is outside 1 .. C-1, or a length
        outside its array (named by line and position; untraced values only).

    References: Graves et al. 2006, sections 3.1, 3.2, 4.1.
    """
    name = "ctc_loss"
    check_arithmetic(name, arithmetic)
    check_option(name, "reduction", reduction, ("none", "mean"))
    if not hasattr(labels, "dtype"):  # a Python list, perhaps an empty one
        plain = np.asarray(labels)
        whole = plain.size == 0 or plain.dtype.kind == "i"
        labels = plain.astype(np.int32) if whole else plain
    logits, labels = jnp.asarray(logits), jnp.asarray(labels)
    check_dtype(name, "logits", logits, "float32")
    check_rank(name, "logits", logits, 2, 3)
    check_dtype(name, "labels", labels, "int32")
    check_rank(name, "labels", labels, logits.ndim - 1)
    single = logits.ndim == 2
    if single:
        logits, labels = logits[None], labels[None]
    count = logits.shape[0]
    check_shape(name, "labels", labels, (count, None))
    if logits.shape[2] < 1:
        fail(ValueError, name, "logits", "at least one class", describe(logits))
    bounds = {"lengths": logits.shape[1], "label_lengths": labels.shape[1]}
    given = {"lengths": lengths, "label_lengths": label_lengths}
    sizes = {k: _lengths(name, k, given[k], bounds[k], count) for k in bounds}
    _check_labels(name, labels, sizes["label_lengths"], logits.shape[2])
    out = _ctc(logits, labels, *sizes.values(), reduction == "mean")
    return out[0] if single and reduction == "none" else out


def _lengths(name: str, argument: str, value, bound: int, count: int) -> Array:
    array = line_lengths(name, argument, value, count, bound)
    if value is not None and not isinstance(array, Tracer):
        for line, length in enumerate(np.asarray(array)):
            if not 0 <= length <= bound:
                got = f"{length} in line {line}"
                fail(ValueError, name, argument, f"0 to {bound}", got)
    return array


def _check_labels(name: str, labels: Array, lengths: Array, classes: int) -> None:
    if isinstance(labels, Tracer) or isinstance(lengths, Tracer):
        return
    for line, (row, length) in enumerate(
        zip(np.asarray(labels), np.asarray(lengths), strict=True)
    ):
        for position, label in enumerate(row[:length]):
            if not 1 <= label < classes:
                got = f"{label} in line {line} at position {position}"
                fail(ValueError, name, "labels", f"classes 1 to {classes - 1}", got)
