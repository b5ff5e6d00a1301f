"""Losses with hand-written VJPs."""

from onemodel_jax.losses.ctc import ctc_loss

__all__ = ["ctc_loss"]
