"""onemodel_jax: training in JAX whose every bit is defined (see SPEC.md)."""

from onemodel_jax import (
    checkpoint,
    data,
    losses,
    models,
    nn,
    numerics,
    ops,
    optim,
    schedules,
    training,
)
from onemodel_jax._types import EXACT, FAST
from onemodel_jax.training import TrainState, make_train_step

__version__ = "0.1.0"

__all__ = [
    "EXACT",
    "FAST",
    "TrainState",
    "checkpoint",
    "data",
    "losses",
    "make_train_step",
    "models",
    "nn",
    "numerics",
    "ops",
    "optim",
    "schedules",
    "training",
]
