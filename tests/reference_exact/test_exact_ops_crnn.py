"""Every gradient of the whole recognizer, exactly, on a tiny instance.

Two blocks, two bidirectional layers and the classifier, two lines of different width.
Points lie in the field of 2^61 - 1 elements; CTC is checked on its own, over
logarithms, and a chain of right rules is right.
"""

import functools
from random import Random

import jax
import numpy as np
import pytest
from exact_ops import BUGS, ints, plant

from onemodel_jax.models import crnn
from onemodel_jax.reference.exact.check import GRIDS, check_vjp, draw
from onemodel_jax.reference.exact.lift import Lifted
from onemodel_jax.reference.exact.machine import Machine
from onemodel_jax.reference.exact.opaque import duals, with_opaque
from onemodel_jax.reference.exact.shadowed import shadowed_field

CONFIG = crnn.CrnnConfig(
    height=4,
    channels=(2, 3),
    pools=((2, 2), (2, 1)),
    hidden=2,
    num_layers=2,
    num_classes=3,
)
SHAPES = crnn.init(CONFIG, 0)
NAMES = [
    ".".join(str(key.key) for key in path)
    for path, _ in jax.tree_util.tree_leaves_with_path(SHAPES)
]
WIDTHS = ints(5, 4)
IMAGES = np.random.default_rng(2).standard_normal((2, 4, 5, 1)).astype(np.float32)


def logits(params):
    """The model as a function of its parameters."""
    return crnn.apply(CONFIG, params, IMAGES, WIDTHS)


@functools.cache
def point():
    """One random point: the lifted model, inputs, tangents, cotangent, gradients."""
    lifted = Lifted(logits, [SHAPES])
    carrier, rng, fine = with_opaque(shadowed_field()), Random(3), GRIDS["field"]
    xs, dxs = (
        [draw(carrier, s, rng, (-1.0, 1.0), fine) for s in lifted.shapes]
        for _ in range(2)
    )
    ct = [draw(carrier, s, rng, (-1.0, 1.0), fine) for s in lifted.out_shapes]
    m, over_duals = Machine(carrier), Machine(duals(carrier))
    return lifted, m, over_duals, xs, dxs, ct, lifted.pullback(m, xs, ct)


@pytest.mark.parametrize("which", range(len(NAMES)), ids=NAMES)
def test_each_gradient_is_the_derivative_along_a_random_direction(which):
    """A wrong element survives a direction with probability of about 2^-42."""
    lifted, m, over_duals, xs, dxs, ct, grads = point()
    along = m.t.zero_pack(lifted.shapes)
    along[which] = dxs[which]
    left = m.t.dot_list(lifted.tangent(over_duals, xs, along), ct)
    assert left == m.t.dot(dxs[which], grads[which])
    assert left != m.carrier.zero


def test_the_names_are_all_parameters():
    assert len(NAMES) == len(point()[0].shapes) == 18


def test_the_model_obeys_every_law():
    report = check_vjp(logits, SHAPES, points="field", low=-1.0, high=1.0, trials=1)
    assert report.ok, str(report)
    assert len(report.evidence) == 4


def test_a_tiny_error_in_one_op_is_seen_in_the_gradients_of_the_whole(monkeypatch):
    bug = BUGS["one gradient times 1 + 2^-23"]
    plant(monkeypatch, "onemodel_jax.ops.convolution:_conv_relu_pool", bug, which=2)
    lifted = Lifted(logits, [SHAPES])
    _, m, _, xs, _, ct, grads = point()
    wrong = lifted.pullback(m, xs, ct)
    differ = [
        name
        for name, a, b in zip(NAMES, wrong, grads, strict=True)
        if any(x != y for x, y in zip(a.flat, b.flat, strict=True))
    ]
    assert differ == ["conv0.bias", "conv1.bias"]
