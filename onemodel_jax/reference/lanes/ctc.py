"""CTC loss of one line and its gradient with respect to the logits (SPEC, "CTC").

Binary64 throughout, with exp64 and log64. Definition: Graves et al. 2006, sections
3.1, 3.2 and 4.1. Blank is class 0.
"""

from collections.abc import Sequence

import numpy as np

from onemodel_jax.reference.lanes.elementary import exp64, log64

_CUT = -40.0


@np.errstate(all="ignore")
def logadd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return log(exp a + exp b): hi + log64(1 + exp64(lo - hi)).

    hi is a where a >= b, else b; lo is the other. Where lo is -inf or
    lo - hi < -40 the result is hi.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    high, low = np.where(a >= b, a, b), np.where(a >= b, b, a)
    alone = (low == -np.inf) | (low - high < _CUT)
    return np.where(alone, high, high + log64(1.0 + exp64(low - high)))


@np.errstate(all="ignore")
def log_softmax64(logits: np.ndarray) -> np.ndarray:
    """Return (T, C) float64: (z - m) - log64(s), s summed in ascending class."""
    z = np.asarray(logits).astype(np.float64)
    shifted = z - z.max(axis=1, keepdims=True, initial=-np.inf)
    terms = exp64(shifted)
    total = np.zeros(len(z))
    for k in range(z.shape[1]):
        total = total + terms[:, k]
    return shifted - log64(total)[:, None]


@np.errstate(all="ignore")
def ctc_loss_and_grad(
    logits: np.ndarray, labels: Sequence[int], *, scale: float = 1.0
) -> tuple[np.float64, np.ndarray]:
    """Return ``ctc64`` with the gradient rounded once to float32."""
    loss, grad = ctc64(logits, labels, scale=scale)
    return loss, grad.astype(np.float32)


@np.errstate(all="ignore")
def ctc64(
    logits: np.ndarray, labels: Sequence[int], *, scale: float = 1.0
) -> tuple[np.float64, np.ndarray]:
    """Return the loss and ``scale`` times its gradient, before rounding.

    Args:
      logits: (T, C) float32, unnormalized log-probabilities.
      labels: classes in 1 .. C-1; may be empty.
      scale: float64 factor of the gradient, 1/B for a line of a batch of B.

    Returns:
      () float64 loss, +inf when no alignment exists, and (T, C) float64 gradient,
      zero then. T = 0: loss +0 for no labels, +inf otherwise.

    Raises:
      ValueError: logits are not a matrix, or a label is outside 1 .. C-1.
    """
    logits = np.asarray(logits, np.float32)
    if logits.ndim != 2:
        raise ValueError(f"ctc: logits: expected (T, C), got {logits.shape}")
    steps, classes = logits.shape
    for position, label in enumerate(labels):
        if not 1 <= label < classes:
            raise ValueError(
                f"ctc: labels: expected 1 to {classes - 1}, "
                f"got {label} at position {position}"
            )
    nothing = np.zeros(logits.shape)
    if steps == 0:
        return np.float64(np.inf if len(labels) else 0.0), nothing
    extended = np.zeros(2 * len(labels) + 1, np.int64)
    extended[1::2] = labels
    log_probs = log_softmax64(logits)
    ahead = _forward(log_probs, extended)
    last = ahead[-1]
    log_p = logadd(last[-2], last[-1]) if len(last) > 1 else last[-1]
    if log_p == -np.inf:
        return np.float64(np.inf), nothing
    joint = ahead + _backward(log_probs, extended)
    grad = _gradient(log_probs, joint, extended, log_p, scale)
    return np.float64(-log_p), grad


def _skips(extended: np.ndarray) -> np.ndarray:
    """True at s where a path may step from s - 2 to s: different labels."""
    allowed = np.zeros(len(extended), bool)
    allowed[2:] = (extended[2:] != 0) & (extended[2:] != extended[:-2])
    return allowed


def _shift(row: np.ndarray, by: int) -> np.ndarray:
    """Return row[s - by], -inf outside; by > 0 looks back, by < 0 ahead."""
    out = np.full_like(row, -np.inf)
    if by > 0:
        out[by:] = row[:-by]
    else:
        out[:by] = row[-by:]
    return out


def _forward(log_probs: np.ndarray, extended: np.ndarray) -> np.ndarray:
    """Forward variables (T, S): stay, then one back, then two back; emission last."""
    emission, allowed = log_probs[:, extended], _skips(extended)
    ahead = np.full(emission.shape, -np.inf)
    ahead[0, :2] = emission[0, :2]
    for t in range(1, len(emission)):
        row = ahead[t - 1]
        total = logadd(row, _shift(row, 1))
        total = logadd(total, np.where(allowed, _shift(row, 2), -np.inf))
        ahead[t] = total + emission[t]
    return ahead


def _backward(log_probs: np.ndarray, extended: np.ndarray) -> np.ndarray:
    """Backward variables (T, S): stay, one ahead, two ahead; emission last."""
    emission = log_probs[:, extended]
    allowed = np.zeros(len(extended), bool)
    allowed[:-2] = _skips(extended)[2:]
    back = np.full(emission.shape, -np.inf)
    back[-1, -2:] = emission[-1, -2:]
    for t in range(len(emission) - 2, -1, -1):
        row = back[t + 1]
        total = logadd(row, _shift(row, -1))
        total = logadd(total, np.where(allowed, _shift(row, -2), -np.inf))
        back[t] = total + emission[t]
    return back


def _gradient(
    log_probs: np.ndarray,
    joint: np.ndarray,
    extended: np.ndarray,
    log_p: np.ndarray,
    scale: float,
) -> np.ndarray:
    """Return scale (exp(lp) - exp((acc - lp) - logP))."""
    acc = np.full(log_probs.shape, -np.inf)
    for entry, label in enumerate(extended):
        acc[:, label] = logadd(acc[:, label], joint[:, entry])
    posterior = exp64((acc - log_probs) - log_p)
    # -inf - -inf: a class of probability zero with no alignment through it.
    impossible = (acc == -np.inf) & (log_probs == -np.inf)
    posterior = np.where(impossible, 0.0, posterior)
    return np.float64(scale) * (exp64(log_probs) - posterior)
