"""Losses with hand-written VJPs."""

from onemodel_jax.losses.bce import bce_with_logits
from onemodel_jax.losses.ctc import ctc_loss

__all__ = ["bce_with_logits", "ctc_loss"]
