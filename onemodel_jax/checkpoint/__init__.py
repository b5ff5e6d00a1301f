"""Checkpoints and model containers: every bit kept, no byte trusted."""

from onemodel_jax.checkpoint.checkpoint import (
    dumps,
    file_hash,
    load,
    loads,
    read_manifest,
    read_tensors,
    save,
    state_hash,
)
from onemodel_jax.checkpoint.container import (
    Model,
    ModelManifest,
    dumps_model,
    load_model,
    read_model_manifest,
    read_model_tensors,
    save_model,
)
from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.exchange import (
    export_npz,
    export_safetensors,
    import_npz,
    import_safetensors,
)
from onemodel_jax.checkpoint.manifest import Manifest, Optimizer, Tensor

__all__ = [
    "CheckpointError",
    "Manifest",
    "Model",
    "ModelManifest",
    "Optimizer",
    "Tensor",
    "dumps",
    "dumps_model",
    "export_npz",
    "export_safetensors",
    "file_hash",
    "import_npz",
    "import_safetensors",
    "load",
    "load_model",
    "loads",
    "read_manifest",
    "read_model_manifest",
    "read_model_tensors",
    "read_tensors",
    "save",
    "save_model",
    "state_hash",
]
