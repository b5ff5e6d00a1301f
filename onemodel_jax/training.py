"""The training step of a line recognizer: one pure function, compiled once.

Gradients of each line are added in line order, clipped by the global norm, and given
to the optimizer; all of it is defined to the bit (SPEC, "Training step").
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from onemodel_jax._checks import fail
from onemodel_jax._tree import OptimizerState, Params, TrainState
from onemodel_jax._types import EXACT, Arithmetic, Array
from onemodel_jax.losses.ctc import ctc_loss
from onemodel_jax.models import crnn
from onemodel_jax.optim.clip import clip_by_dots
from onemodel_jax.optim.optimizer import Optimizer

__all__ = [
    "Metrics",
    "OptimizerState",
    "TrainState",
    "batch_loss",
    "init_state",
    "make_train_step",
]


class Metrics(NamedTuple):
    """What a step reports: loss () float32, grad_norm () float32 before clipping."""

    loss: Array
    grad_norm: Array


def init_state(params: Params, optimizer: Optimizer) -> TrainState:
    """Return the state before the first step."""
    return TrainState(params, OrderedDict(), optimizer.init(params))


def batch_loss(
    config: crnn.CrnnConfig,
    params: Params,
    images: Array,
    widths: Array,
    labels: Array,
    label_lengths: Array,
    *,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Return the mean over the lines of each line's CTC loss, () float32.

    A line that no alignment fits counts as 0. Arguments as a
    :class:`onemodel_jax.data.LineBatch` holds them.
    """
    logits = crnn.apply(config, params, images, widths, arithmetic=arithmetic)
    return ctc_loss(
        logits,
        labels,
        lengths=crnn.time_steps(config, widths),
        label_lengths=label_lengths,
        reduction="mean",
        arithmetic=arithmetic,
    )


def make_train_step(
    config: crnn.CrnnConfig,
    optimizer: Optimizer,
    *,
    max_norm: float | None = 5.0,
    arithmetic: Arithmetic = EXACT,
    jit: bool = True,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Return step(state, images, widths, labels, label_lengths) -> (state, metrics).

    Compiled once: later steps with the same shapes do not retrace. The state is
    donated: its buffers are reused, so keep the returned one only.

    Args:
      config: sizes of the recognizer.
      optimizer: for example :func:`onemodel_jax.optim.adamw_lerp`.
      max_norm: clipping limit of the global gradient norm; None does not clip.
      arithmetic: "exact" or "fast".
      jit: False returns the plain function, for eager use or an outer jit.
    """
    no_limit = float("inf")

    def step(
        state: TrainState,
        images: Array,
        widths: Array,
        labels: Array,
        label_lengths: Array,
    ) -> tuple[TrainState, Metrics]:
        def loss_of(params: Params) -> Array:
            return batch_loss(
                config,
                params,
                images,
                widths,
                labels,
                label_lengths,
                arithmetic=arithmetic,
            )

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        limit = no_limit if max_norm is None else max_norm
        grads, norm = clip_by_dots(grads, limit, arithmetic=arithmetic)
        if state.optimizer is None:
            fail(ValueError, "train_step", "state", "one with an optimizer", "none")
        params, after = optimizer.step(state.params, grads, state.optimizer)
        return TrainState(params, state.buffers, after), Metrics(loss, norm)

    return jax.jit(step, donate_argnums=0) if jit else step


def predict(
    config: crnn.CrnnConfig, *, arithmetic: Arithmetic = EXACT
) -> Callable[..., Array]:
    """Return the compiled forward function (params, images, widths) -> logits."""

    def forward(params: Params, images: Array, widths: Array) -> Array:
        return crnn.apply(
            config, params, jnp.asarray(images), widths, arithmetic=arithmetic
        )

    return jax.jit(forward)
