"""The tiny recognizer that the tests train: package side and reference side."""

import functools

import jax.numpy as jnp
import numpy as np

from onemodel_jax._tree import OptimizerState, Params, TrainState, state_order
from onemodel_jax.models import crnn
from onemodel_jax.optim import adamw_lerp
from onemodel_jax.reference.lanes import crnn as reference
from onemodel_jax.reference.lanes.optimizer import AdamWLerpState, adamw_lerp_init
from onemodel_jax.training import init_state, make_train_step

SIZES = {
    "height": 8,
    "channels": (4, 8),
    "pools": ((2, 2), (2, 2)),
    "hidden": 5,
    "num_classes": 5,
}
CONFIG = crnn.CrnnConfig(**SIZES)
REFERENCE = reference.CrnnConfig(**SIZES)
RATE, LIMIT, SEED = 2e-3, 3.42, 7
WIDTHS = (40, 23, 32)
LABELS = ([1, 2, 2, 4], [3], [4, 1])


def batch(step: int):
    """Return (images, widths, labels, label lengths) of a step; the padding is junk."""
    rng = np.random.default_rng(step)
    images = rng.random((3, 8, 40, 1)).astype(np.float32)
    labels = np.zeros((3, 4), np.int32)
    for n, line in enumerate(LABELS):
        labels[n, : len(line)] = line
    sizes = np.array([len(line) for line in LABELS], np.int32)
    return images, np.array(WIDTHS, np.int32), labels, sizes


def lines(step: int):
    """Return the lines of the same batch, each cut to its own width."""
    images = batch(step)[0]
    return [image[:, :width] for image, width in zip(images, WIDTHS, strict=True)]


def new_state() -> TrainState:
    return init_state(crnn.init(CONFIG, SEED), adamw_lerp(RATE))


def make_step(**options):
    return make_train_step(CONFIG, adamw_lerp(RATE), max_norm=LIMIT, **options)


@functools.cache
def compiled():
    """Return the exact step, compiled once for all tests of this process."""
    return make_step().lower(new_state(), *batch(0)).compile()


def run(step, state: TrainState, first: int, last: int) -> TrainState:
    """Return the state after the steps first .. last - 1."""
    for n in range(first, last):
        state, _ = step(state, *batch(n))
    return state


@functools.cache
def by_reference(steps: int):
    """Train the ordered NumPy reference; return (params, state, losses, norms)."""
    params = reference.init_crnn(REFERENCE, SEED)
    state = adamw_lerp_init(list(params.values()))
    losses, norms = [], []
    for n in range(steps):
        params, state, loss, norm = reference.train_step(
            REFERENCE,
            params,
            state,
            lines(n),
            LABELS,
            limit=LIMIT,
            learning_rate=RATE,
        )
        losses.append(loss)
        norms.append(norm)
    return params, state, losses, norms


def filled(like: TrainState, params: dict, state: AdamWLerpState) -> TrainState:
    """Return ``like`` with the reference's numbers in the places of its own."""
    values = dict(params)
    for i, (m, v) in enumerate(zip(state.m, state.v, strict=True)):
        values[f"exp_avg.{i}"], values[f"exp_avg_sq.{i}"] = m, v
    for name in ("b1", "b2"):
        power = np.float64(getattr(state, f"power_{name}"))
        values[f"{name}_power"] = np.array([power]).view(np.int32)
    optimizer = like.optimizer
    assert optimizer is not None
    slots = type(optimizer.slots)((k, values[k]) for k in optimizer.slots)
    after = OptimizerState(
        jnp.int32(state.step),
        optimizer.learning_rate,
        slots,
        optimizer.kind,
        optimizer.settings,
    )
    return TrainState(_filled(like.params, "", values), like.buffers, after)


def _filled(tree: Params, prefix: str, values: dict) -> Params:
    return type(tree)(
        (k, _filled(v, f"{prefix}{k}.", values))
        if isinstance(v, dict)
        else (k, values[prefix + k])
        for k, v in tree.items()
    )


def flat(params: Params) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in state_order(params)}
