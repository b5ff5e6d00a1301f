"""The JSON manifest of a checkpoint: its fields, its compact text, its strict reader.

The reader follows the schema field by field, so what it builds is bounded by the
schema and not by the input: a nested, duplicate, unknown or fractional item fails
where it stands. No tensor data, no JAX.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.json_reader import Reader

CHECKPOINT_FORMAT = "onemodel-checkpoint"
VERSION = 1
MAX_DEPTH = 32
MAX_RANK = 32
MAX_DIMENSION = 2**31 - 1
INT64 = (-(2**63), 2**63 - 1)
STEP = (0, 2**31 - 1)
LEARNING_RATE = "learning_rate"

#: Bytes of one element by dtype code. ``f16`` occurs in model containers only.
ITEM_SIZE = {"f32": 4, "i32": 4, "i64": 8, "f16": 2}


class Tensor(NamedTuple):
    """One tensor entry; ``offset`` counts from the start of the data region."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class Optimizer(NamedTuple):
    """The optimizer part: ``hyper`` pairs a name with a bit pattern."""

    kind: str
    step: int
    hyper: tuple[tuple[str, int], ...]
    state: tuple[Tensor, ...]


class Manifest(NamedTuple):
    """What a checkpoint says of itself; ``extra`` is sorted by key."""

    model: tuple[Tensor, ...]
    optimizer: Optimizer | None
    extra: dict[str, int]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in file order: the model's, then the optimizer's."""
        return self.model + (self.optimizer.state if self.optimizer else ())


def ordinal(key: str) -> bytes:
    """Sort key that compares strings by their UTF-16 code units."""
    return key.encode("utf-16-be")


def encode(manifest: Manifest) -> bytes:
    """Return the compact UTF-8 text of ``manifest``, fields in the stated order."""
    fields: dict = {"format": CHECKPOINT_FORMAT, "version": VERSION}
    fields["model"] = tensor_fields(manifest.model)
    if manifest.optimizer is not None:
        kind, step, hyper, state = manifest.optimizer
        fields["optimizer"] = {
            "kind": kind,
            "step": step,
            "hyper": [{"name": name, "bits": bits} for name, bits in hyper],
            "state": tensor_fields(state),
        }
    keys = sorted(manifest.extra, key=ordinal)
    fields["extra"] = [{"key": k, "value": manifest.extra[k]} for k in keys]
    return compact(fields)


def compact(fields: dict) -> bytes:
    """Return JSON without spaces, non-ASCII characters as themselves, in UTF-8."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8")


def tensor_fields(tensors: Sequence[Tensor]) -> list[dict]:
    """Return tensor entries as JSON objects in the stated field order."""
    return [{**t._asdict(), "shape": list(t.shape)} for t in tensors]


def decode(data: bytes | memoryview) -> Manifest:
    """Parse the bytes of a manifest.

    Raises:
      CheckpointError: BadManifest.
    """
    reader = Reader(data)
    fields = reader.document(
        {
            "format": lambda: reader.constant(CHECKPOINT_FORMAT),
            "version": lambda: reader.integer(VERSION, VERSION),
            "model": lambda: read_tensors(reader, ("f32", "i32", "i64")),
            "optimizer": lambda: _read_optimizer(reader),
            "extra": lambda: _read_extra(reader),
        },
        optional=("optimizer",),
    )
    return Manifest(fields["model"], fields.get("optimizer"), fields["extra"])


def read_tensors(reader: Reader, dtypes: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Read an array of tensor entries whose names are distinct."""

    def dtype() -> str:
        code = reader.string()
        return code if code in dtypes else reader.fail(f"unknown dtype {code[:20]!r}")

    fields = {
        "name": reader.string,
        "dtype": dtype,
        "shape": lambda: _read_shape(reader),
        "offset": lambda: reader.integer(*INT64),
        "length": lambda: reader.integer(*INT64),
    }
    tensors = reader.array(lambda: Tensor(**reader.object(fields)))
    _check_distinct((t.name for t in tensors), "tensor")
    return tuple(tensors)


def _read_shape(reader: Reader) -> tuple[int, ...]:
    dimension = lambda: reader.integer(0, MAX_DIMENSION)  # noqa: E731
    return tuple(reader.array(dimension, limit=MAX_RANK))


def _read_optimizer(reader: Reader) -> Optimizer:
    fields = {
        "kind": reader.string,
        "step": lambda: reader.integer(*STEP),
        "hyper": lambda: tuple(reader.array(lambda: _read_hyper(reader))),
        "state": lambda: read_tensors(reader, ("f32", "i32", "i64")),
    }
    optimizer = Optimizer(**reader.object(fields))
    _check_distinct((name for name, _ in optimizer.hyper), "hyper-parameter")
    return optimizer


def _read_hyper(reader: Reader) -> tuple[str, int]:
    fields = {"name": reader.string, "bits": lambda: reader.integer(0, 2**64 - 1)}
    item = reader.object(fields)
    if item["name"] == LEARNING_RATE and item["bits"] >= 2**32:
        reader.fail("the learning rate has more than 32 bits")
    return item["name"], item["bits"]


def _read_extra(reader: Reader) -> dict[str, int]:
    fields = {"key": reader.string, "value": lambda: reader.integer(*INT64)}
    items = reader.array(lambda: reader.object(fields))
    keys = [ordinal(item["key"]) for item in items]
    if any(a >= b for a, b in zip(keys, keys[1:], strict=False)):
        reader.fail("extra is not sorted by distinct keys")
    return {item["key"]: item["value"] for item in items}


def _check_distinct(names, what: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise CheckpointError("BadManifest", f"duplicate {what} {name[:80]!r}")
        seen.add(name)
