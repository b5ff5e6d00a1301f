"""The recognizer: parameters, initial weights, forward bits, configuration errors."""

import jax
import numpy as np
import pytest

from onemodel_jax._tree import state_order
from onemodel_jax.models import crnn
from onemodel_jax.reference.lanes import crnn as reference
from tests.support import assert_bits_equal

SMALL = {
    "height": 8,
    "channels": (3, 4),
    "pools": ((2, 2), (2, 1)),
    "hidden": 3,
    "num_classes": 4,
}
CONFIGS = {
    "small": SMALL,
    "one layer": {**SMALL, "num_layers": 1, "channels": (17, 2), "hidden": 17},
    "digits": {
        "channels": crnn.DIGITS.channels,
        "pools": crnn.DIGITS.pools,
        "hidden": crnn.DIGITS.hidden,
        "num_classes": 11,
    },
}


def test_names_order_and_shapes_of_the_parameters_of_crnn_v0():
    shapes = crnn.param_shapes(crnn.CrnnConfig())
    flat = state_order(jax.tree_util.tree_map(np.zeros, shapes, is_leaf=_is_shape))
    want = []
    taps = [16, 288, 576, 1152, 1152, 2304]
    for n, channels in enumerate((32, 64, 128, 128, 256, 256)):
        want.append((f"conv{n}.weight", (channels, taps[n])))
        want.append((f"conv{n}.bias", (channels,)))
    for n, width in enumerate((256, 384)):
        for direction in ("forward", "reverse"):
            want.append((f"lstm{n}.{direction}.w_ih", (768, width)))
            want.append((f"lstm{n}.{direction}.w_hh", (768, 192)))
            want.append((f"lstm{n}.{direction}.b", (768,)))
    want += [("classifier.weight", (622, 384)), ("classifier.bias", (622,))]
    assert [(name, value.shape) for name, value in flat] == want


def _is_shape(value):
    return isinstance(value, tuple)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_initial_weights_have_the_bits_of_the_reference(name, seed):
    got = state_order(crnn.init(crnn.CrnnConfig(**CONFIGS[name]), seed))
    want = reference.init_crnn(reference.CrnnConfig(**CONFIGS[name]), seed)
    assert [n for n, _ in got] == list(want)
    for tensor, value in got:
        assert_bits_equal(value, want[tensor], tensor)


def test_flattening_keeps_the_parameter_order():
    params = crnn.init(crnn.CrnnConfig(**SMALL), 1)
    leaves = jax.tree_util.tree_leaves(params)
    for leaf, (name, value) in zip(leaves, state_order(params), strict=True):
        assert leaf is value, name


def test_initial_biases_and_padding_columns():
    params = crnn.init(crnn.CrnnConfig(**SMALL), 5)
    assert not np.asarray(params["conv0"]["weight"])[:, 9:].any()
    assert not np.asarray(params["conv1"]["weight"])[:, 27:].any()
    assert_bits_equal(
        params["lstm1"]["reverse"]["b"], np.float32([0] * 3 + [1] * 3 + [0] * 6)
    )
    assert not np.asarray(params["classifier"]["bias"]).any()


def test_logits_of_ragged_lines_have_the_bits_of_each_line_alone():
    config = crnn.CrnnConfig(**SMALL)
    params = crnn.init(config, 3)
    flat = {n: np.asarray(v) for n, v in state_order(params)}
    rng = np.random.default_rng(0)
    images = rng.random((4, 8, 19, 1)).astype(np.float32)
    widths = np.array([13, 19, 1, 0], np.int32)
    forward = jax.jit(lambda i, w: crnn.apply(config, params, i, w))
    logits = np.asarray(forward(images, widths))
    steps = np.asarray(crnn.time_steps(config, widths))
    assert steps.tolist() == [6, 9, 0, 0] and logits.shape == (4, 9, 4)
    for n, width in enumerate(widths):
        own = images[n, :, :width]
        want, _ = reference.forward(reference.CrnnConfig(**SMALL), flat, own)
        assert_bits_equal(logits[n, : steps[n]], want, f"line {n}")
        assert not logits[n, steps[n] :].view(np.uint32).any()
    images[0, :, 13:] = np.nan
    assert_bits_equal(forward(images, widths), logits, "padding")


def test_default_configuration_is_crnn_v0():
    config = crnn.CrnnConfig()
    assert (config.height, config.num_classes, config.hidden) == (32, 622, 192)
    assert config.num_features == 256 and config.pixels_per_step == 4
    assert crnn.DIGITS.pixels_per_step == 8 and crnn.DIGITS.num_features == 64


BAD = {
    "no height": ({"height": 0}, "height: expected an integer of at least 1, got 0"),
    "float": ({"hidden": 2.0}, "hidden: expected an integer of at least 1, got 2.0"),
    "truth value": ({"num_layers": True}, "num_layers: expected an integer"),
    "no classes": ({"num_classes": 0}, "num_classes: expected an integer"),
    "pools": ({"pools": ((2, 2),)}, "pools: expected one per block, got 2 channels, 1"),
    "no blocks": ({"channels": (), "pools": ()}, "pools: expected one per block"),
    "rows": ({"height": 3}, "height: expected at least one row after the pools, got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configurations_are_refused(case):
    options, text = BAD[case]
    with pytest.raises(ValueError, match=f"^CrnnConfig: {text}"):
        crnn.CrnnConfig(**{**SMALL, **options})


@pytest.mark.parametrize(
    ("images", "error", "text"),
    [
        (np.zeros((1, 8, 9, 1), np.int32), TypeError, "images: expected float32"),
        (np.zeros((8, 9, 1), np.float32), ValueError, "images: expected rank 4"),
        (
            np.zeros((1, 9, 9, 1), np.float32),
            ValueError,
            r"images: expected shape \[1,8,\*,1\], got float32\[1,9,9,1\]",
        ),
    ],
)
def test_images_of_another_type_or_shape_are_refused(images, error, text):
    config = crnn.CrnnConfig(**SMALL)
    with pytest.raises(error, match=f"^crnn: {text}"):
        crnn.apply(config, crnn.init(config, 0), images)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_outside_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        crnn.init(crnn.CrnnConfig(**SMALL), seed)


@pytest.mark.parametrize(
    "options",
    [{"channels": (0, 8)}, {"channels": (4.0, 8)}, {"pools": ((2, 2), (2, 0))}],
)
def test_a_size_that_is_no_positive_integer_is_refused(options):
    with pytest.raises(ValueError, match="^CrnnConfig: channels, pools: expected int"):
        crnn.CrnnConfig(**{**SMALL, **options})
