"""Initialisation: the SplitMix64 generator that every weight is drawn from."""

from onemodel_jax.nn.generator import Generator

__all__ = ["Generator"]
