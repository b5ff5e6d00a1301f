"""States for the checkpoint tests: small, with every kind of tensor and bit."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax._tree import OptimizerState, TrainState, state_order
from tests.support import random_bits


def target_state():
    """The state that ``make_hostile.valid()`` holds, written out by hand."""
    params = OrderedDict(
        w=jnp.array(np.arange(6, dtype=np.float32).reshape(2, 3)),
        empty=jnp.zeros((0, 3), jnp.float32),
        cell=OrderedDict(bias=jnp.array(np.float32([-0.0, 1.5, 1e-45]))),
    )
    cell = OrderedDict(draws=jnp.array(7, jnp.int32))
    buffers = OrderedDict(count=np.array(2**40, np.int64), cell=cell)
    slots = OrderedDict()
    slots["exp_avg.0"] = jnp.full((2, 3), 0.25, jnp.float32)
    slots["exp_avg.1"] = jnp.zeros((0, 3), jnp.float32)
    slots["exp_avg.2"] = jnp.array(np.float32([1, 2, 3]))
    optimizer = OptimizerState(
        step=jnp.array(3, jnp.int32),
        learning_rate=jnp.array(0.5, jnp.float32),
        slots=slots,
        kind="adamw",
        settings=(("b1", 0.5), ("eps", 0.0)),
    )
    return TrainState(params, buffers, optimizer)


def crnn_state(seed, hidden, optimizer):
    """A recurrent recognizer's tree with random bit patterns, NaN included."""
    rng = np.random.default_rng(seed)
    tensor = lambda *shape: jnp.array(random_bits(rng, shape))  # noqa: E731
    params, buffers = OrderedDict(), OrderedDict()
    params["conv0"] = OrderedDict(weight=tensor(4, 9), bias=tensor(4))
    for name in ("forward", "reverse"):
        params[name] = OrderedDict(
            w_ih=tensor(4 * hidden, 4), w_hh=tensor(4 * hidden, hidden), b=tensor(4)
        )
    params["linear"] = OrderedDict(weight=tensor(11, 2 * hidden), bias=tensor(11))
    buffers["dropout"] = OrderedDict(draws=jnp.array(seed, jnp.int32))
    state = TrainState(params, buffers, None)
    return with_optimizer(state, tensor) if optimizer else state


def with_optimizer(state, tensor):
    """Return ``state`` with an AdamW state of random moments."""
    named = state_order(state.params)
    slots = OrderedDict()
    for slot in ("exp_avg", "exp_avg_sq"):
        for i, (_, p) in enumerate(named):
            slots[f"{slot}.{i}"] = tensor(*p.shape)
    settings = (("b1", 0.9), ("b2", 0.999), ("eps", 1e-8), ("weight_decay", 0.01))
    rate = jnp.array(6e-5, jnp.float32)
    step = jnp.array(16777217, jnp.int32)
    optimizer = OptimizerState(step, rate, slots, "adamw", settings)
    return TrainState(state.params, state.buffers, optimizer)


def as_template(state):
    """Return ``state`` with every leaf replaced by its shape and dtype."""
    return jax.tree_util.tree_map(
        lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), state
    )
