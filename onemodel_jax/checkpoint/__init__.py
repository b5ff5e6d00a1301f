"""Checkpoints and model containers: every bit kept, no byte trusted."""

from onemodel_jax.checkpoint.checkpoint import (
    dumps,
    load,
    loads,
    read_manifest,
    read_tensors,
    save,
    state_hash,
)
from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.manifest import Manifest, Optimizer, Tensor

__all__ = [
    "CheckpointError",
    "Manifest",
    "Optimizer",
    "Tensor",
    "dumps",
    "load",
    "loads",
    "read_manifest",
    "read_tensors",
    "save",
    "state_hash",
]
