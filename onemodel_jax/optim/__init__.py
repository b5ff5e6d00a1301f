"""Optimizers, gradient clipping: pure functions on ordered trees."""

from onemodel_jax.optim.adamw_lerp import adamw_lerp
from onemodel_jax.optim.clip import clip_by_dots, norm_of_dots
from onemodel_jax.optim.optimizer import Optimizer, Schedule

__all__ = ["Optimizer", "Schedule", "adamw_lerp", "clip_by_dots", "norm_of_dots"]
