"""CTC's loss and gradient are those of enumerated paths, as fractions and exactly.

Logits are ln q with q rational: probabilities are fractions, and the program, run
over r + ln q, must give -ln P and softmax - posterior without any error.
"""

from fractions import Fraction
from itertools import groupby, product
from math import prod
from random import Random

import jax.numpy as jnp
import numpy as np
import pytest
from exact_ops import ints

from onemodel_jax.losses import ctc_loss
from onemodel_jax.reference.exact.carriers import Special
from onemodel_jax.reference.exact.lift import Lifted
from onemodel_jax.reference.exact.logarithms import Log, logarithms
from onemodel_jax.reference.exact.machine import Machine

CARRIER = logarithms()


def ratios(shape, seed=0):
    """Random positive fractions, the exponentials of the logits."""
    rng = Random(seed)
    out = np.empty(shape, object)
    for at in np.ndindex(*shape):
        out[at] = Fraction(rng.randint(1, 20), rng.randint(1, 20))
    return out


def by_paths(q, labels):
    """Return P and the gradient of -ln P in the logits, by all C^T paths."""
    steps, classes = q.shape
    p = [[x / sum(row) for x in row] for row in q]
    total = Fraction(0)
    through = [[Fraction(0)] * classes for _ in range(steps)]
    for path in product(range(classes), repeat=steps):
        if [k for k, _ in groupby(path) if k] != list(labels):
            continue
        weight = prod((p[t][k] for t, k in enumerate(path)), start=Fraction(1))
        total += weight
        for t, k in enumerate(path):
            through[t][k] += weight
    if not total:
        return total, [[Fraction(0)] * classes for _ in range(steps)]
    grads = [
        [p[t][k] - through[t][k] / total for k in range(classes)] for t in range(steps)
    ]
    return total, grads


def run(q, labels, cotangents, **options):
    """Losses and logit gradients of the program itself, over r + ln q."""
    x = np.empty(q.shape, object)
    x.reshape(-1)[:] = [Log(Fraction(0), v) for v in q.flat]
    lifted = Lifted(
        lambda z: ctc_loss(z, jnp.array(labels, jnp.int32), **options),
        [jnp.zeros(q.shape, jnp.float32)],
    )
    ct = np.empty(lifted.out_shapes[0], object)
    ct.reshape(-1)[:] = [CARRIER.number(c) for c in cotangents]
    m = Machine(CARRIER)
    losses = lifted.primal(m, [x])[0].reshape(-1)
    return list(losses), lifted.pullback(m, [x], [ct])[0]


def loss_of(total):
    return Log(Fraction(0), 1 / total) if total else CARRIER.number(Special(np.inf))


@pytest.mark.parametrize(
    ("steps", "classes", "labels"),
    [
        (1, 2, []),
        (1, 3, [2]),
        (3, 2, [1]),
        (3, 2, [1, 1]),
        (4, 3, [1, 2]),
        (4, 3, [2, 2]),
        (5, 3, [1, 2, 1]),
        (6, 3, [1, 1, 2]),
        (2, 2, [1, 1]),
        (1, 3, [1, 2]),
    ],
)
def test_loss_and_gradient_are_those_of_all_paths(steps, classes, labels):
    q, scale = ratios((steps, classes), seed=steps), Fraction(-7, 3)
    total, grads = by_paths(q, labels)
    losses, got = run(q, labels, [scale])
    assert losses == [loss_of(total)]
    want = [CARRIER.number(scale * g) for row in grads for g in row]
    assert list(got.flat) == want


def test_lines_of_a_batch_are_those_of_the_lines_alone():
    q = ratios((3, 4, 3))
    labels, counts, steps = [[1, 2], [2, 0], [1, 1]], [2, 1, 2], [4, 3, 2]
    scales = [Fraction(2), Fraction(-1, 2), Fraction(5)]
    options = dict(lengths=ints(*steps), label_lengths=ints(*counts))
    losses, got = run(q, labels, scales, **options)
    _, mean = run(q, labels, [Fraction(3)], reduction="mean", **options)
    for line, (row, count, length) in enumerate(
        zip(labels, counts, steps, strict=True)
    ):
        total, grads = by_paths(q[line, :length], row[:count])
        assert losses[line] == loss_of(total)
        flat = [g for r in grads for g in r] + [Fraction(0)] * (4 - length) * 3
        want = [CARRIER.number(scales[line] * g) for g in flat]
        assert list(got[line].flat) == want
        assert list(mean[line].flat) == [CARRIER.number(g) for g in flat]


def test_the_mean_counts_a_line_without_alignment_as_zero():
    q = ratios((2, 2, 2))
    losses, _ = run(q, [[1], [1]], [1], reduction="mean")
    both = [by_paths(q[line], [1])[0] for line in (0, 1)]
    assert losses == [Log(Fraction(0), 1 / (both[0] * both[1]), 2)]
    losses, _ = run(
        q, [[1, 1], [1, 0]], [1], reduction="mean", label_lengths=ints(2, 1)
    )
    assert losses == [Log(Fraction(0), 1 / both[1], 2)]
