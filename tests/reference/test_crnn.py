"""The whole recognizer: truth against float64, and the order of a batch."""

import numpy as np
import pytest

from onemodel_jax.reference.float64 import crnn as truth
from onemodel_jax.reference.lanes import crnn
from onemodel_jax.reference.lanes.clipping import clip_lanes
from onemodel_jax.reference.lanes.optimizer import adamw_lerp_init, adamw_lerp_step
from tests.support import assert_bits_equal

CONFIG = crnn.CrnnConfig(
    height=8, channels=(4, 5), pools=((2, 2), (2, 1)), hidden=6, num_classes=4
)
LINES = [(17, [1, 1, 3]), (12, []), (13, [2, 3, 2])]


def lines(config=CONFIG):
    rng = np.random.default_rng(0)
    images = [rng.random((config.height, w, 1)).astype(np.float32) for w, _ in LINES]
    return images, [labels for _, labels in LINES]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("line", range(len(LINES)))
def test_loss_and_gradients_agree_with_float64(seed, line):
    params = crnn.init_crnn(CONFIG, seed)
    images, labels = lines()
    logits, _ = crnn.forward(CONFIG, params, images[line])
    want_logits = truth.logits(params, CONFIG.pools, images[line])
    # Two convolutions and two LSTM layers of float32: errors of about 1e-7 of the
    # tensor's scale, 4e-7 at most over these cases; no pooling decision is a tie.
    np.testing.assert_allclose(logits, want_logits, rtol=0, atol=2e-6)
    loss, grads = crnn.loss_and_grads(
        CONFIG, params, images[line], labels[line], scale=0.25
    )
    want, want_grads = truth.loss_and_grads(
        params, CONFIG.pools, images[line], labels[line], scale=0.25
    )
    assert loss == pytest.approx(want, rel=1e-6)
    assert list(grads) == list(want_grads) == list(params)
    for name, grad in grads.items():
        scale = np.abs(want_grads[name]).max()
        assert grad.dtype == np.float32 and grad.shape == params[name].shape
        assert np.abs(grad - want_grads[name]).max() <= 2e-6 * scale, name


def test_batch_gradient_adds_the_lines_in_order():
    params = crnn.init_crnn(CONFIG, 1)
    images, labels = lines()
    loss, grads = crnn.batch_loss_and_grads(CONFIG, params, images, labels)
    own = [
        crnn.loss_and_grads(CONFIG, params, i, k, scale=1 / 3)
        for i, k in zip(images, labels, strict=True)
    ]
    assert_bits_equal(loss, ((own[0][0] + own[1][0]) + own[2][0]) / 3)
    for name in params:
        want = (own[0][1][name] + own[1][1][name]) + own[2][1][name]
        assert_bits_equal(grads[name], want, name)


def test_infeasible_line_counts_as_zero_and_adds_no_gradient():
    params = crnn.init_crnn(CONFIG, 1)
    images, labels = lines()
    labels[1] = [1] * 30
    loss, grads = crnn.batch_loss_and_grads(CONFIG, params, images, labels)
    line_loss, line_grads = crnn.loss_and_grads(CONFIG, params, images[1], labels[1])
    assert line_loss == np.inf
    assert all(not np.any(g) for g in line_grads.values())
    rest = [
        crnn.loss_and_grads(CONFIG, params, images[n], labels[n])[0] for n in (0, 2)
    ]
    assert loss == (rest[0] + rest[1]) / 3
    assert np.any(grads["conv0.weight"])


def test_train_step_is_clipping_then_adamw():
    params = crnn.init_crnn(CONFIG, 1)
    images, labels = lines()
    state = adamw_lerp_init(list(params.values()))
    hyper = {"learning_rate": 2e-3, "weight_decay": 0.01}
    got, after, loss, norm = crnn.train_step(
        CONFIG, params, state, images, labels, limit=0.5, **hyper
    )
    want_loss, grads = crnn.batch_loss_and_grads(CONFIG, params, images, labels)
    values, want_norm = clip_lanes(list(grads.values()), 0.5)
    assert (loss, norm) == (want_loss, want_norm) and norm > 0.5
    flags = [value.ndim == 2 for value in params.values()]
    want, want_after = adamw_lerp_step(
        list(params.values()), values, state, decayed=flags, **hyper
    )
    for (name, value), expected in zip(got.items(), want, strict=True):
        assert_bits_equal(value, expected, name)
    assert after.step == want_after.step == 1
    free = crnn.train_step(CONFIG, params, state, images, labels, limit=None, **hyper)
    assert free[3] is None


def test_training_lowers_the_loss():
    params = crnn.init_crnn(CONFIG, 1)
    images, labels = lines()
    state = adamw_lerp_init(list(params.values()))
    losses = []
    for _ in range(15):
        params, state, loss, _ = crnn.train_step(
            CONFIG, params, state, images, labels, learning_rate=1e-2
        )
        losses.append(loss)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("width", [0, 1])
def test_image_narrower_than_the_pools_has_no_steps(width):
    params = crnn.init_crnn(CONFIG, 1)
    image = np.ones((8, width, 1), np.float32)
    logits, _ = crnn.forward(CONFIG, params, image)
    assert logits.shape == (0, 4)
    for labels, want in (([], 0.0), ([1], np.inf)):
        loss, grads = crnn.loss_and_grads(CONFIG, params, image, labels)
        assert loss == want
        for name, grad in grads.items():
            assert_bits_equal(grad, np.zeros_like(params[name]), name)
    assert truth.loss_and_grads(params, CONFIG.pools, image, [])[0] == 0.0


def test_features_are_rows_then_channels():
    params = crnn.init_crnn(CONFIG, 1)
    image = lines()[0][0]
    _, tape = crnn.forward(CONFIG, params, image)
    rows, columns, channels = tape.map_shape
    assert (rows, channels) == (2, 5) and tape.inputs[0].shape == (columns, 10)
    # Only row 1 of the map sees the bottom pixels' corner: change one and look.
    moved = image.copy()
    moved[7, 0, 0] += 1
    _, other = crnn.forward(CONFIG, params, moved)
    changed = np.argwhere(tape.inputs[0] != other.inputs[0])
    assert len(changed) and changed[:, 1].min() >= channels


@pytest.mark.parametrize("shape", [(9, 10, 1), (8, 10, 3), (8, 10)])
def test_image_of_another_shape_is_refused(shape):
    params = crnn.init_crnn(CONFIG, 1)
    with pytest.raises(ValueError, match=r"crnn: image: expected \(8, W, 1\)"):
        crnn.forward(CONFIG, params, np.zeros(shape, np.float32))


def test_batch_without_lines_is_refused():
    params = crnn.init_crnn(CONFIG, 1)
    with pytest.raises(ValueError, match="crnn: images: expected one or more"):
        crnn.batch_loss_and_grads(CONFIG, params, [], [])
