"""SplitMix64 by known outputs, and the recognizer's initial weights."""

import numpy as np
import pytest

from onemodel_jax.reference.lanes.crnn import CrnnConfig, init_crnn, param_shapes
from onemodel_jax.reference.lanes.initialisation import GAMMA, Generator, mix
from tests.support import assert_bits_equal

CONFIG = CrnnConfig(
    height=8, channels=(4, 5), pools=((2, 2), (2, 1)), hidden=6, num_classes=4
)


def test_known_outputs_of_seed_zero():
    generator = Generator(0)
    want = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [generator.next_uint64() for _ in range(3)] == want


def test_seed_wraps_and_state_is_the_counter():
    assert Generator(2**64 + 5).next_uint64() == Generator(5).next_uint64()
    assert Generator(-1).next_uint64() == mix((2**64 - 1 + GAMMA) % 2**64)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_a_block_of_draws_equals_single_draws(seed):
    one, many = Generator(seed), Generator(seed)
    low, high = np.float32(-0.3), np.float32(0.7)
    want = [low + (high - low) * one.next_single() for _ in range(37)]
    got = np.append(many.uniform(low, high, (5, 7)), many.uniform(low, high, (2,)))
    assert_bits_equal(got.astype(np.float32), np.array(want, np.float32))
    assert one.state == many.state


def test_next_single_is_24_bits_below_one():
    generator = Generator(9)
    for _ in range(200):
        value = generator.next_single()
        assert value.dtype == np.float32 and 0 <= value < 1
        assert float(value) * 2**24 == int(float(value) * 2**24)


def test_parameter_order_and_shapes():
    names = ["conv0.weight", "conv0.bias", "conv1.weight", "conv1.bias"]
    for layer in ("lstm0", "lstm1"):
        for direction in ("forward", "reverse"):
            names += [f"{layer}.{direction}.{part}" for part in ("w_ih", "w_hh", "b")]
    names += ["classifier.weight", "classifier.bias"]
    params = init_crnn(CONFIG, 1)
    assert list(params) == names
    assert {n: p.shape for n, p in params.items()} == param_shapes(CONFIG)
    assert params["conv0.weight"].shape == (4, 16)
    assert params["conv1.weight"].shape == (5, 48)  # 9 taps x 4 channels, padded
    assert params["lstm0.forward.w_ih"].shape == (24, 10)  # 2 rows x 5 channels
    assert params["lstm1.reverse.w_ih"].shape == (24, 12)


def test_default_sizes_are_those_of_crnn_v0():
    shapes = param_shapes(CrnnConfig())
    assert shapes["lstm0.forward.w_ih"] == (768, 256)
    assert shapes["classifier.weight"] == (622, 384)


def test_weights_come_in_order_from_one_stream():
    params, generator = init_crnn(CONFIG, 7), Generator(7)
    bound = np.sqrt(6 / 9)
    assert_bits_equal(
        params["conv0.weight"][:, :9], generator.uniform(-bound, bound, (4, 9))
    )
    assert_bits_equal(params["conv0.weight"][:, 9:], np.zeros((4, 7), np.float32))
    bound = np.sqrt(6 / 36)
    assert_bits_equal(
        params["conv1.weight"][:, :36], generator.uniform(-bound, bound, (5, 36))
    )
    bound = 2 * np.sqrt(3 / 10)
    assert_bits_equal(
        params["lstm0.forward.w_ih"], generator.uniform(-bound, bound, (24, 10))
    )
    bound = 1 / np.sqrt(6)
    assert_bits_equal(
        params["lstm0.forward.w_hh"], generator.uniform(-bound, bound, (24, 6))
    )


def test_biases_are_zero_but_one_for_the_forget_gates():
    params = init_crnn(CONFIG, 7)
    forget = np.repeat(np.array([0, 1, 0, 0], np.float32), 6)
    for name, value in params.items():
        if name.endswith(".b"):
            assert_bits_equal(value, forget)
        elif name.endswith(".bias"):
            assert_bits_equal(value, np.zeros_like(value))
        else:
            assert np.any(value != 0)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"pools": ((2, 2),)}, "pools: expected one per block"),
        ({"channels": (), "pools": ()}, "pools: expected one per block, at least one"),
        ({"height": 3}, "height: expected at least one row"),
    ],
)
def test_impossible_sizes_are_refused(change, text):
    with pytest.raises(ValueError, match=f"CrnnConfig: {text}"):
        CrnnConfig(
            **{"height": 8, "channels": (4, 5), "pools": ((2, 2), (2, 1)), **change}
        )
