"""Double-precision gradients against central differences."""

import numpy as np
import pytest

from onemodel_jax.reference.float64 import crnn, layers
from onemodel_jax.reference.float64 import ctc as ctc_module
from onemodel_jax.reference.lanes.crnn import CrnnConfig, init_crnn

STEP = 1e-5


def central_difference(function, x, index):
    """Return d function / d x[index], error about STEP^2 of the third derivative."""
    values = []
    for sign in (1, -1):
        moved = x.copy()
        moved[index] += sign * STEP
        values.append(function(moved))
    return (values[0] - values[1]) / (2 * STEP)


def assert_gradient(function, x, grad, count=12):
    """Compare ``count`` elements; 1e-8 covers the 1e-16 / STEP of the differences."""
    assert grad.shape == x.shape
    rng = np.random.default_rng(x.size)
    for flat in rng.choice(x.size, min(count, x.size), replace=False):
        index = np.unravel_index(flat, x.shape)
        got = central_difference(function, x, index)
        assert got == pytest.approx(grad[index], rel=1e-6, abs=1e-8), index


@pytest.mark.parametrize("pool", [(1, 1), (2, 2), (2, 1)])
def test_conv_relu_pool(pool):
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s) for s in [(5, 6, 2), (3, 32), (3,)])
    at = {"kernel": (3, 3), "padding": (1, 1), "pool": pool}
    y = layers.conv_relu_pool(x, w, b, **at)
    g = rng.standard_normal(y.shape)
    assert (y > 0).sum() > 5
    grads = layers.conv_relu_pool_backward(g, x, w, b, **at)
    operands = [x, w, b]
    for n, grad in enumerate(grads):

        def loss(moved, n=n):
            return np.sum(
                g
                * layers.conv_relu_pool(*operands[:n], moved, *operands[n + 1 :], **at)
            )

        assert_gradient(loss, operands[n], grad, count=30)


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm(reverse):
    rng = np.random.default_rng(1)
    x, g = rng.standard_normal((6, 4)), rng.standard_normal((6, 3))
    shapes = [(12, 4), (12, 3), (12,)]
    weights = layers.LstmWeights(*(rng.standard_normal(s) for s in shapes))
    grad_x, grads = layers.lstm_backward(g, x, weights, reverse=reverse)

    def from_x(moved):
        return np.sum(g * layers.lstm(moved, weights, reverse=reverse))

    assert_gradient(from_x, x, grad_x)
    for name in layers.LstmWeights._fields:

        def from_weight(moved, name=name):
            changed = weights._replace(**{name: moved})
            return np.sum(g * layers.lstm(x, changed, reverse=reverse))

        assert_gradient(from_weight, getattr(weights, name), getattr(grads, name))


def test_linear():
    rng = np.random.default_rng(2)
    operands = [rng.standard_normal(s) for s in [(4, 5), (3, 5), (3,)]]
    g = rng.standard_normal((4, 3))
    grads = layers.linear_backward(g, operands[0], operands[1])
    for n, grad in enumerate(grads):

        def loss(moved, n=n):
            return np.sum(g * layers.linear(*operands[:n], moved, *operands[n + 1 :]))

        assert_gradient(loss, operands[n], grad)


@pytest.mark.parametrize("labels", [[], [1, 1], [2, 1, 3]], ids=str)
def test_ctc(labels):
    logits = np.random.default_rng(3).standard_normal((6, 4))
    _, grad = ctc_module.ctc(logits, labels)
    assert_gradient(lambda z: ctc_module.ctc(z, labels)[0], logits, grad, count=24)


def test_whole_recognizer():
    config = CrnnConfig(
        height=8, channels=(4, 5), pools=((2, 2), (2, 1)), hidden=4, num_classes=4
    )
    params = {k: np.float64(v) for k, v in init_crnn(config, 3).items()}
    image = np.random.default_rng(4).random((8, 13, 1))
    _, grads = crnn.loss_and_grads(params, config.pools, image, [1, 3, 1])
    for name, grad in grads.items():

        def loss(moved, name=name):
            changed = {**params, name: moved}
            return crnn.loss_and_grads(changed, config.pools, image, [1, 3, 1])[0]

        assert np.abs(grad).max() > 0, name
        assert_gradient(loss, params[name], grad, count=4)
