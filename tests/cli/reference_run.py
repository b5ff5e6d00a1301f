"""Confirm the pinned hash of ``onemodel train --steps 20 --seed 0`` by the reference.

A script, not a test: the NumPy reference takes about half an hour for the digits model.
    python tests/cli/reference_run.py [steps]
It prints the state hash after every step; the last one must be the pinned hash.
"""

import sys
from collections import OrderedDict

import jax.numpy as jnp
import numpy as np

from onemodel_jax import data
from onemodel_jax._tree import OptimizerState, TrainState
from onemodel_jax.checkpoint import state_hash
from onemodel_jax.cli import session
from onemodel_jax.models.crnn import DIGITS
from onemodel_jax.reference.lanes import crnn
from onemodel_jax.reference.lanes.elementary import cos_pi
from onemodel_jax.reference.lanes.optimizer import adamw_lerp_init


def rate(step: int, base: float, warmup: int, total: int, final: float) -> np.float32:
    """The schedule of SPEC, "Schedules", in NumPy."""
    s = np.float64(step)
    if step < warmup:
        return np.float32(base * (s + 1.0) / warmup)
    p = min((s - warmup) / (total - warmup), 1.0)
    half = (1.0 + float(cos_pi(np.float64(p)))) * 0.5
    return np.float32(base * ((1.0 - final) * half + final))


def main(steps: int) -> None:
    config = crnn.CrnnConfig(
        channels=DIGITS.channels, pools=DIGITS.pools, hidden=64, num_classes=11
    )
    settings = session.Settings(
        0, 16, steps, 2e-3, DIGITS, data.CHARSET, 0, arithmetic="exact"
    )
    params = crnn.init_crnn(config, 0)
    state = adamw_lerp_init(list(params.values()))
    like = session.fresh_state(settings)
    for step in range(steps):
        batch = data.training_batch(0, step, 16)
        images = [
            image[:, :width]
            for image, width in zip(batch.images, batch.widths, strict=True)
        ]
        labels = [
            list(row[:count])
            for row, count in zip(batch.labels, batch.label_lengths, strict=True)
        ]
        learning_rate = rate(step, 2e-3, min(50, steps // 10), steps, 0.02)
        params, state, loss, _ = crnn.train_step(
            config, params, state, images, labels, learning_rate=learning_rate
        )
        digest = state_hash(_as_package(like, params, state, learning_rate), _EXTRA)
        print(step + 1, float(loss), digest, flush=True)


def _as_package(like, params, state, learning_rate) -> TrainState:
    nested: OrderedDict = OrderedDict()
    for name, value in params.items():
        *path, last = name.split(".")
        node = nested
        for part in path:
            node = node.setdefault(part, OrderedDict())
        node[last] = jnp.asarray(value)
    slots: OrderedDict = OrderedDict()
    for slot, values in (("exp_avg", state.m), ("exp_avg_sq", state.v)):
        for i, value in enumerate(values):
            slots[f"{slot}.{i}"] = jnp.asarray(value)
    for slot, power in (("b1_power", state.power_b1), ("b2_power", state.power_b2)):
        slots[slot] = jnp.asarray(np.float64(power).reshape(1).view(np.int32))
    optimizer = OptimizerState(
        jnp.int32(state.step),
        jnp.float32(learning_rate),
        slots,
        like.optimizer.kind,
        like.optimizer.settings,
    )
    return TrainState(nested, OrderedDict(), optimizer)


if __name__ == "__main__":
    STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    _EXTRA = session.to_extra(
        session.Settings(0, 16, STEPS, 2e-3, DIGITS, data.CHARSET, 0, "exact")
    )
    main(STEPS)
