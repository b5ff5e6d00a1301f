"""State trees to manifest entries and back, checked against a template.

Nothing here touches files or raw bytes.
"""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax._checks import check_shape, describe, fail
from onemodel_jax._tree import OptimizerState, TrainState, state_order
from onemodel_jax._types import PyTree
from onemodel_jax.checkpoint.format import (
    check_text,
    dtype_code,
    lay_out,
    refuse,
)
from onemodel_jax.checkpoint.manifest import (
    INT64,
    LEARNING_RATE,
    Manifest,
    Optimizer,
    Tensor,
)

CODES = ("f32", "i32", "i64")


def to_manifest(
    function: str, state: PyTree, extra: Mapping[str, int] | None
) -> tuple[Manifest, list[Any]]:
    """Return the manifest of ``state`` and its arrays in file order."""
    named = model_entries(state)
    model, end = lay_out(function, named, CODES, 0)
    arrays = [array for _, array in named]
    optimizer = None
    if isinstance(state, TrainState) and state.optimizer is not None:
        slots = list(state.optimizer.slots.items())
        placed, _ = lay_out(function, slots, CODES, end)
        optimizer = _optimizer_entry(function, state.optimizer, placed)
        arrays += [array for _, array in slots]
    return Manifest(tuple(model), optimizer, _checked_extra(function, extra)), arrays


def model_entries(state: PyTree) -> list[tuple[str, Any]]:
    """Return (dotted name, leaf) pairs of the model part, in file order.

    A TrainState follows the state order; any other tree the order and the paths of
    ``jax.tree_util``.
    """
    if isinstance(state, TrainState):
        return state_order(state.params, state.buffers)
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(_dotted(path), leaf) for path, leaf in leaves]


def _dotted(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _optimizer_entry(
    function: str, optimizer: OptimizerState, state: Sequence[Tensor]
) -> Optimizer:
    check_text(function, "optimizer kind", optimizer.kind)
    step = _scalar(function, "step", optimizer.step, np.int32)
    if step < 0:
        fail(ValueError, function, "step", "0 or more", step)
    rate = _scalar(function, LEARNING_RATE, optimizer.learning_rate, np.float32)
    hyper = (LEARNING_RATE, int(rate.view(np.uint32))), *setting_bits(optimizer)
    for name, _ in hyper:
        check_text(function, "setting", name)
    if len({name for name, _ in hyper}) < len(hyper):
        fail(ValueError, function, "settings", "distinct names", optimizer.settings)
    return Optimizer(optimizer.kind, int(step), hyper, tuple(state))


def _scalar(function: str, argument: str, value: Any, dtype: Any) -> Any:
    array = np.asarray(value)
    if array.dtype != dtype:
        fail(TypeError, function, argument, np.dtype(dtype).name, describe(array))
    check_shape(function, argument, array, ())
    return array[()]


def setting_bits(optimizer: OptimizerState) -> tuple[tuple[str, int], ...]:
    """Return the fixed settings with the 64-bit patterns of their values."""
    return tuple(
        (name, int(np.float64(value).view(np.uint64)))
        for name, value in optimizer.settings
    )


def _checked_extra(function: str, extra: Mapping[str, int] | None) -> dict[str, int]:
    checked = {}
    for key, value in (extra or {}).items():
        check_text(function, "extra key", key)
        argument = f"extra {key!r}"
        if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
            fail(TypeError, function, argument, "an integer", type(value).__name__)
        checked[key] = operator.index(value)
        if not INT64[0] <= checked[key] <= INT64[1]:
            fail(ValueError, function, argument, "a signed 64-bit integer", value)
    return checked


class Target(NamedTuple):
    """What a template asks for: names, codes and shapes, in order."""

    model: list[tuple[str, Any]]
    optimizer: OptimizerState | None


def target_of(function: str, like: PyTree) -> Target:
    """Return the target of a template.

    Raises:
      TypeError: a leaf is no array, or of a dtype that a checkpoint cannot hold.
      ValueError: names that are not distinct.
    """
    model = model_entries(like)
    lay_out(function, model, CODES, 0)
    optimizer = like.optimizer if isinstance(like, TrainState) else None
    if optimizer is not None:
        lay_out(function, list(optimizer.slots.items()), CODES, 0)
    return Target(model, optimizer)


def check_entries(target: Target, manifest: Manifest) -> None:
    """Compare names, types and shapes with the target's, in order.

    Raises:
      CheckpointError: Mismatch.
    """
    compare(target.model, manifest.model, "model")
    if target.optimizer is not None:
        if manifest.optimizer is None:
            refuse("Mismatch", "the file has no optimizer state")
        slots = list(target.optimizer.slots.items())
        compare(slots, manifest.optimizer.state, "optimizer")


def compare(
    wanted: Sequence[tuple[str, Any]],
    found: Sequence[Tensor],
    part: str,
    stored: Mapping[str, str] | None = None,
) -> None:
    """Raise Mismatch unless ``found`` lists exactly the ``wanted`` tensors.

    ``stored`` maps a file's dtype code to the code of the leaf that it fills.
    """
    for (name, leaf), tensor in zip(wanted, found, strict=False):
        code = (stored or {}).get(tensor.dtype, tensor.dtype)
        want = (name, dtype_code(leaf), tuple(leaf.shape))
        if (tensor.name, code, tensor.shape) != want:
            got = f"{tensor.name[:80]!r} {tensor.dtype} {list(tensor.shape)}"
            refuse("Mismatch", f"{part}: expected {name!r} {want[1:]}, got {got}")
    if len(wanted) != len(found):
        message = f"{part}: expected {len(wanted)} tensors, got {len(found)}"
        refuse("Mismatch", message)


def check_optimizer(target: Target, manifest: Manifest) -> None:
    """Compare the optimizer's kind and fixed settings with the target's.

    Raises:
      CheckpointError: Mismatch.
    """
    if target.optimizer is None or manifest.optimizer is None:
        return
    kind, _, hyper, _ = manifest.optimizer
    if kind != target.optimizer.kind:
        refuse("Mismatch", f"optimizer {kind[:80]!r}, not {target.optimizer.kind!r}")
    names = [LEARNING_RATE, *(name for name, _ in target.optimizer.settings)]
    if [name for name, _ in hyper] != names:
        refuse("Mismatch", f"hyper-parameters: expected {names}")
    for (name, got), (_, want) in zip(
        hyper[1:], setting_bits(target.optimizer), strict=True
    ):
        if got != want:
            refuse("Mismatch", f"setting {name!r}: bits {got:#x}, expected {want:#x}")


def from_arrays(
    like: PyTree, manifest: Manifest, arrays: Sequence[np.ndarray], private: bool
) -> PyTree:
    """Return a tree of ``like``'s structure that holds the file's values.

    ``private``: nobody else holds the memory of ``arrays``, so JAX may keep it.
    """
    leaves = [to_leaf(array, private) for array in arrays]
    names = [t.name for t in manifest.model]
    values = dict(zip(names, leaves, strict=False))
    state = fill_model(like, values)
    if not isinstance(like, TrainState) or like.optimizer is None:
        return state
    slots = leaves[len(names) :]
    optimizer = _restored(like.optimizer, manifest.optimizer, slots)
    return dataclasses.replace(state, optimizer=optimizer)


def fill_model(like: PyTree, values: Mapping[str, Any]) -> PyTree:
    """Return ``like`` with the leaves of its model part replaced by name."""
    if isinstance(like, TrainState):
        params, buffers = _fill(like.params, values), _fill(like.buffers, values)
        return TrainState(params, buffers, like.optimizer)
    return _fill(like, values)


def _fill(tree: PyTree, values: Mapping[str, Any]) -> PyTree:
    replace = lambda path, _: values[_dotted(path)]  # noqa: E731
    return jax.tree_util.tree_map_with_path(replace, tree)


def _restored(like: OptimizerState, entry: Any, slots: list) -> OptimizerState:
    rate = np.uint32(dict(entry.hyper)[LEARNING_RATE]).view(np.float32)
    named = zip(like.slots, slots, strict=True)
    return OptimizerState(
        step=jnp.array(entry.step, jnp.int32),
        learning_rate=jnp.array(rate),
        slots=type(like.slots)(named),
        kind=like.kind,
        settings=like.settings,
    )


def to_leaf(array: np.ndarray, private: bool = False) -> Any:
    """Return a JAX array of the same bits, or NumPy where JAX would narrow it."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if jax.dtypes.canonicalize_dtype(native.dtype) != native.dtype:
        return native.copy()
    return jax.device_put(native) if private else jnp.array(native)


__all__ = [
    "Target",
    "check_entries",
    "check_optimizer",
    "compare",
    "fill_model",
    "from_arrays",
    "model_entries",
    "target_of",
    "to_leaf",
    "to_manifest",
]
