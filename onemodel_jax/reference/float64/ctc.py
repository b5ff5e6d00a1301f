"""CTC by enumeration of every path and by the recursion of Graves et al. 2006."""

from collections.abc import Sequence
from itertools import groupby, product

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis, float64."""
    shifted = logits - logits.max(axis=-1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def collapse(path: Sequence[int]) -> list[int]:
    """Merge repeats, then drop blanks (class 0)."""
    return [k for k, _ in groupby(path) if k != 0]


def ctc_by_paths(logits: np.ndarray, labels: Sequence[int]) -> tuple[float, np.ndarray]:
    """Return loss and logit gradient by summing all C^T paths; tiny T only.

    Args:
      logits: (T, C) float64.
      labels: classes 1 .. C-1.
    """
    steps, classes = logits.shape
    probabilities = np.exp(log_softmax(logits))
    total, occupancy = 0.0, np.zeros(logits.shape)
    for path in product(range(classes), repeat=steps):
        if collapse(path) != list(labels):
            continue
        weight = float(np.prod(probabilities[np.arange(steps), path]))
        total += weight
        occupancy[np.arange(steps), path] += weight
    if total == 0:
        return np.inf, np.zeros(logits.shape)
    return -np.log(total), probabilities - occupancy / total


def ctc(logits: np.ndarray, labels: Sequence[int]) -> tuple[float, np.ndarray]:
    """Return loss and logit gradient by the forward-backward recursion.

    The backward variables here leave out the emission of their own step, so that
    their product with the forward ones is the joint probability as it stands.
    """
    steps, classes = logits.shape
    if steps == 0:
        return (np.inf if len(labels) else 0.0), np.zeros(logits.shape)
    path = [0]
    for label in labels:
        path += [label, 0]
    log_probs = log_softmax(np.asarray(logits, np.float64))
    moves = _moves(path)
    ahead = np.full((steps, len(path)), -np.inf)
    ahead[0, 0] = log_probs[0, 0]
    if len(labels):
        ahead[0, 1] = log_probs[0, path[1]]
    back = np.full((steps, len(path)), -np.inf)
    back[-1, -2:] = 0.0
    for t in range(1, steps):
        for a, b in moves:
            ahead[t, b] = np.logaddexp(ahead[t, b], ahead[t - 1, a])
        ahead[t] += log_probs[t, path]
    for t in range(steps - 2, -1, -1):
        for a, b in moves:
            step = back[t + 1, b] + log_probs[t + 1, path[b]]
            back[t, a] = np.logaddexp(back[t, a], step)
    log_p = np.logaddexp.reduce(ahead[-1, -2:])
    if log_p == -np.inf:
        return np.inf, np.zeros(logits.shape)
    posterior = np.zeros(logits.shape)
    for entry, label in enumerate(path):
        posterior[:, label] += np.exp(ahead[:, entry] + back[:, entry] - log_p)
    return -log_p, np.exp(log_probs) - posterior


def _moves(path: Sequence[int]) -> list[tuple[int, int]]:
    """Return the allowed steps (from, to) of the extended label sequence."""
    moves = []
    for to, label in enumerate(path):
        for back in range(min(3, to + 1)):
            if back < 2 or (label != 0 and label != path[to - 2]):
                moves.append((to - back, to))
    return moves
