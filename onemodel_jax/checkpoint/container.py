"""Model containers: an inference model with binary16 weights (SPEC, "Containers").

The frame is the checkpoint's with another magic and manifest. Folding batch norm
into a neighbouring layer belongs to the model that has both: it folds in double
precision, rounds once to float32, and hands the folded parameters to ``save_model``.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from onemodel_jax._checks import describe, fail
from onemodel_jax._types import PyTree
from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.format import (
    MODEL_MAGIC,
    Frame,
    Source,
    check_layout,
    check_text,
    chunks,
    lay_out,
    read_arrays,
    read_frame,
    read_manifest_bytes,
)
from onemodel_jax.checkpoint.json_reader import Reader
from onemodel_jax.checkpoint.manifest import (
    INT64,
    MAX_DEPTH,
    Tensor,
    compact,
    ordinal,
    read_tensors,
    tensor_fields,
)
from onemodel_jax.checkpoint.state import compare, fill_model, model_entries, to_leaf
from onemodel_jax.checkpoint.storage import Path, open_source, replace

MODEL_FORMAT = "onemodel-model"
VERSION = 1
CODES = ("f32", "i32", "i64", "f16")
MAX_CONFIG_VALUES = 65536


class ModelManifest(NamedTuple):
    """What a container says of itself."""

    architecture: str
    config: dict[str, Any]
    charset: str
    tensors: tuple[Tensor, ...]


class Model(NamedTuple):
    """A loaded model: ``params`` in float32, nested by the dots of the names."""

    architecture: str
    config: dict[str, Any]
    charset: str
    params: PyTree


def save_model(
    path: Path,
    state: PyTree,
    *,
    architecture: str,
    config: Mapping[str, Any],
    charset: str,
    keep: int | None = None,
    fsync: bool = True,
) -> None:
    """Write a model container atomically, float32 weights rounded to binary16.

    Args:
      path, keep, fsync: as for ``checkpoint.save``.
      state: a TrainState (its parameters and buffers; the optimizer is left out), or
        a tree of float32, float16, int32 and int64 arrays.
      architecture: name of the model function, such as ``crnn``.
      config: its configuration: strings, booleans, signed 64-bit integers, and
        lists and string-keyed mappings of them; written sorted by key.
      charset: the characters of classes 1, 2, ...; class 0 is the blank.

    Raises:
      TypeError: a leaf or a configuration value of another type.
      ValueError: a finite weight that binary16 cannot hold; names not distinct.
      OSError: the file cannot be written; ``path`` is unchanged.
    """
    pieces = _pieces("save_model", state, architecture, config, charset)
    replace(path, pieces, keep, fsync)


def dumps_model(
    state: PyTree, *, architecture: str, config: Mapping[str, Any], charset: str
) -> bytes:
    """Return the bytes that ``save_model`` writes."""
    return b"".join(_pieces("dumps_model", state, architecture, config, charset))


def _pieces(
    function: str, state: PyTree, architecture: str, config: Any, charset: str
) -> Iterator[bytes | memoryview]:
    check_text(function, "architecture", architecture)
    check_text(function, "charset", charset)
    if not isinstance(config, Mapping):
        fail(TypeError, function, "config", "a mapping", type(config).__name__)
    checked = _checked_value(function, "config", config, 2)
    if _count(checked) - 1 > MAX_CONFIG_VALUES:
        expected = f"at most {MAX_CONFIG_VALUES} values"
        fail(ValueError, function, "config", expected, _count(checked) - 1)
    named = model_entries(state)
    halves = [(name, _as_half(function, name, array)) for name, array in named]
    tensors, _ = lay_out(function, halves, CODES, 0)
    fields = {
        "format": MODEL_FORMAT,
        "version": VERSION,
        "architecture": architecture,
        "config": checked,
        "charset": charset,
        "tensors": tensor_fields(tensors),
    }
    arrays = [array for _, array in named]
    return chunks(MODEL_MAGIC, compact(fields), tensors, arrays)


def _as_half(function: str, name: str, array: Any) -> Any:
    """Return a float16 stand-in of a float32 array's shape, after checking its values.

    The values themselves are rounded while they are written, one tensor at a time.
    """
    if getattr(getattr(array, "dtype", None), "name", "") != "float32":
        return array
    values = np.asarray(array)
    with np.errstate(over="ignore"):
        lost = np.isinf(values.astype(np.float16)) & np.isfinite(values)
    if lost.any():
        at = tuple(int(i) for i in np.argwhere(lost)[0])
        argument = f"tensor {name!r} at {list(at)}"
        fail(ValueError, function, argument, "a binary16 value", values[at])
    return np.broadcast_to(np.float16(0), values.shape)


def _checked_value(function: str, path: str, value: Any, depth: int) -> Any:
    """Return a configuration value as plain JSON data, mappings sorted by key."""
    if isinstance(value, Mapping | list | tuple) and depth > MAX_DEPTH:
        fail(ValueError, function, path[:80], f"depth <= {MAX_DEPTH}", "deeper")
    if isinstance(value, Mapping):
        for key in value:
            check_text(function, f"{path} key", key)
        below = {k: value[k] for k in sorted(value, key=ordinal)}
        return {
            k: _checked_value(function, f"{path}.{k}", v, depth + 1)
            for k, v in below.items()
        }
    if isinstance(value, list | tuple):
        items = enumerate(value)
        return [
            _checked_value(function, f"{path}[{i}]", v, depth + 1) for i, v in items
        ]
    if isinstance(value, str):
        check_text(function, path, value)
        return value
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        if not INT64[0] <= value <= INT64[1]:
            fail(ValueError, function, path, "a signed 64-bit integer", value)
        return int(value)
    expected = "string, bool, int, list or mapping"
    fail(TypeError, function, path, expected, describe(value))


def _count(value: Any) -> int:
    """Return how many values a configuration value holds, itself included."""
    if isinstance(value, dict):
        return 1 + sum(_count(v) for v in value.values())
    if isinstance(value, list):
        return 1 + sum(_count(v) for v in value)
    return 1


def load_model(
    source: Path | bytes | bytearray | memoryview, like: PyTree | None = None
) -> Model:
    """Read a container; binary16 weights are widened to float32.

    Args:
      source: a path, or the bytes of a container.
      like: optional template of the parameters, as for ``checkpoint.load``; a
        float32 leaf takes ``f16`` and ``f32`` tensors. Without it the parameters
        come as nested ``OrderedDict`` by the dots of their names.

    Raises:
      CheckpointError: BadHeader, BadManifest, Mismatch or BadTensor, in that order.
      OSError: the file cannot be read.
    """
    wanted = None
    if like is not None:
        wanted = model_entries(like)
        lay_out("load_model", wanted, ("f32", "i32", "i64"), 0)
    with open_source(source) as opened:
        frame, manifest = _read_head(opened)
        if wanted is not None:
            compare(wanted, manifest.tensors, "model", stored={"f16": "f32"})
        check_layout(manifest.tensors, frame.data_length)
        arrays = read_arrays(opened, frame, manifest.tensors)
    values = {
        t.name: to_leaf(a.astype(np.float32) if t.dtype == "f16" else a)
        for t, a in zip(manifest.tensors, arrays, strict=True)
    }
    params = _nest(values) if like is None else fill_model(like, values)
    return Model(*manifest[:3], params)


def read_model_manifest(source: Path | bytes | bytearray | memoryview) -> ModelManifest:
    """Read what a container says of itself, without its data.

    Raises:
      CheckpointError: BadHeader, BadManifest or BadTensor (offsets and lengths).
    """
    with open_source(source) as opened:
        frame, manifest = _read_head(opened)
        check_layout(manifest.tensors, frame.data_length)
        return manifest


def read_model_tensors(
    source: Path | bytes | bytearray | memoryview,
) -> tuple[ModelManifest, list[Any]]:
    """Read a container without a template: the manifest and NumPy arrays as stored.

    Raises as ``read_model_manifest``.
    """
    with open_source(source) as opened:
        frame, manifest = _read_head(opened)
        check_layout(manifest.tensors, frame.data_length)
        return manifest, read_arrays(opened, frame, manifest.tensors)


def _read_head(source: Source) -> tuple[Frame, ModelManifest]:
    frame = read_frame(source, MODEL_MAGIC)
    return frame, _decode(read_manifest_bytes(source, frame))


def _decode(data: memoryview) -> ModelManifest:
    reader = Reader(data)
    values = 0

    def value(depth: int) -> Any:
        nonlocal values
        values += 1
        if values > MAX_CONFIG_VALUES:
            reader.fail(f"config has more than {MAX_CONFIG_VALUES} values")
        first = reader.peek()
        if first in ("{", "[") and depth > MAX_DEPTH:
            reader.fail("config is nested too deeply")
        match first:
            case "{":
                return reader.mapping(lambda _: value(depth + 1))
            case "[":
                return reader.array(lambda: value(depth + 1))
            case '"':
                return reader.string()
            case "t" | "f":
                return reader.boolean()
        return reader.integer(*INT64)

    def config() -> dict[str, Any]:
        return reader.mapping(lambda _: value(3))

    fields = reader.document(
        {
            "format": lambda: reader.constant(MODEL_FORMAT),
            "version": lambda: reader.integer(VERSION, VERSION),
            "architecture": reader.string,
            "config": config,
            "charset": reader.string,
            "tensors": lambda: read_tensors(reader, CODES),
        }
    )
    _nest({t.name: None for t in fields["tensors"]})
    return ModelManifest(*(fields[f] for f in ModelManifest._fields))


def _nest(values: Mapping[str, Any]) -> OrderedDict:
    """Return nested ordered mappings from dotted names."""
    root: OrderedDict = OrderedDict()
    for name, value in values.items():
        *path, last = name.split(".")
        node = root
        for part in path:
            node = node.setdefault(part, OrderedDict())
            if not isinstance(node, OrderedDict):
                raise _conflict(name)
        if last in node:
            raise _conflict(name)
        node[last] = value
    return root


def _conflict(name: str) -> CheckpointError:
    message = f"{name[:80]!r}: a tensor and a group of tensors share a name"
    return CheckpointError("BadManifest", message)
