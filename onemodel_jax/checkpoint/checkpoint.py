"""Checkpoints: save and load a training state bit for bit (SPEC, "Checkpoints").

Not here: schedules and dropout, which are functions of the state and have none.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from onemodel_jax._types import PyTree
from onemodel_jax.checkpoint.format import (
    CHECKPOINT_MAGIC,
    Frame,
    Source,
    check_layout,
    chunks,
    read_arrays,
    read_frame,
    read_manifest_bytes,
)
from onemodel_jax.checkpoint.manifest import Manifest, decode, encode
from onemodel_jax.checkpoint.state import (
    check_entries,
    check_optimizer,
    from_arrays,
    target_of,
    to_manifest,
)
from onemodel_jax.checkpoint.storage import (
    MemorySource,
    Path,
    open_file,
    open_source,
    replace,
)

Buffer = bytes | bytearray | memoryview


def save(
    path: Path,
    state: PyTree,
    extra: Mapping[str, int] | None = None,
    keep: int | None = None,
    *,
    fsync: bool = True,
) -> None:
    """Write ``state`` to ``path`` so that the old file is lost at no moment.

    The bytes are written to a temporary file beside ``path``, flushed, and renamed
    over it. The tensors are streamed: no second copy of the state is made.

    Args:
      path: the file; replaced whole or not at all.
      state: a TrainState, or any tree of float32, int32 and int64 arrays.
      extra: the caller's own integers by name, such as a sample counter.
      keep: how many earlier files to keep as ``path.1`` (newest) to ``path.N``.
      fsync: False leaves out the flushes to the disk; a power failure may then
        lose both files.

    Raises:
      TypeError: a leaf of another dtype, or an extra that is no integer.
      ValueError: names that are not distinct; values outside the format's range.
      OSError: the file cannot be written; ``path`` is unchanged.
    """
    replace(path, _pieces("save", state, extra), keep, fsync)


def dumps(state: PyTree, extra: Mapping[str, int] | None = None) -> bytes:
    """Return the bytes that ``save`` writes: the same for the same state.

    Args and raises as ``save``.
    """
    return b"".join(_pieces("dumps", state, extra))


def state_hash(state: PyTree, extra: Mapping[str, int] | None = None) -> str:
    """Return the SHA-256 of ``dumps(state, extra)`` in hexadecimal.

    Computed piece by piece, without a copy of the state.
    """
    digest = hashlib.sha256()
    for piece in _pieces("state_hash", state, extra):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(
    function: str, state: PyTree, extra: Mapping[str, int] | None
) -> Iterator[bytes | memoryview]:
    manifest, arrays = to_manifest(function, state, extra)
    return chunks(CHECKPOINT_MAGIC, encode(manifest), manifest.tensors, arrays)


def load(path: Path, like: PyTree) -> tuple[PyTree, dict[str, int]]:
    """Read a checkpoint into a new tree of ``like``'s structure.

    The file is not trusted: every check comes before any memory is asked for that
    the manifest names (SPEC, "Checkpoint reading"). ``like`` is never changed.

    Args:
      path: a checkpoint.
      like: template: a TrainState or tree with the same names, dtypes and shapes in
        the same order; leaves are arrays or ``jax.ShapeDtypeStruct``. A TrainState
        whose optimizer is None takes the model alone from any file.

    Returns:
      The state and the extra integers. Leaves are JAX arrays; int64 leaves are
      NumPy arrays unless JAX has 64-bit types enabled. The learning rate and the
      step come from the file; kind and settings must equal the template's.

    Raises:
      CheckpointError: BadHeader, BadManifest, Mismatch or BadTensor, in that order.
      OSError: the file cannot be read.
      TypeError, ValueError: the template itself is no target for a checkpoint.
    """
    target = target_of("load", like)
    with open_file(path) as source:
        return _load(source, like, target, private=True)


def loads(data: Buffer, like: PyTree) -> tuple[PyTree, dict[str, int]]:
    """Read a checkpoint from bytes: as ``load``; the result shares no memory."""
    return _load(MemorySource(data), like, target_of("loads", like), private=False)


def _load(source, like, target, private) -> tuple[PyTree, dict[str, int]]:
    frame, manifest = _read_head(source)
    check_entries(target, manifest)
    check_layout(manifest.tensors, frame.data_length)
    check_optimizer(target, manifest)
    arrays = read_arrays(source, frame, manifest.tensors)
    return from_arrays(like, manifest, arrays, private), manifest.extra


def _read_head(source: Source) -> tuple[Frame, Manifest]:
    frame = read_frame(source, CHECKPOINT_MAGIC)
    return frame, decode(read_manifest_bytes(source, frame))


def read_manifest(source: Path | Buffer) -> Manifest:
    """Read what a checkpoint says of itself, without a template and without data.

    Args:
      source: a path, or the bytes of a checkpoint.

    Returns:
      The manifest: tensor entries, optimizer entry or None, extra integers.

    Raises:
      CheckpointError: BadHeader, BadManifest or BadTensor (offsets and lengths).
      OSError: the file cannot be read.
    """
    with open_source(source) as opened:
        frame, manifest = _read_head(opened)
        check_layout(manifest.tensors, frame.data_length)
        return manifest


def read_tensors(source: Path | Buffer) -> tuple[Manifest, list[Any]]:
    """Read a checkpoint without a template: the manifest and NumPy arrays.

    The arrays follow ``manifest.tensors``, little-endian and read-only. Raises as
    ``read_manifest``.
    """
    with open_source(source) as opened:
        frame, manifest = _read_head(opened)
        check_layout(manifest.tensors, frame.data_length)
        return manifest, read_arrays(opened, frame, manifest.tensors)


def file_hash(source: Path | Buffer) -> str:
    """Return the state hash of a checkpoint: SHA-256 of its canonical bytes.

    For a file that ``save`` wrote this is the SHA-256 of the file. Raises as
    ``read_manifest``.
    """
    manifest, arrays = read_tensors(source)
    digest = hashlib.sha256()
    for piece in chunks(CHECKPOINT_MAGIC, encode(manifest), manifest.tensors, arrays):
        digest.update(piece)
    return digest.hexdigest()
