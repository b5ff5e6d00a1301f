"""The frame of a checkpoint or container: header, manifest, aligned tensor data.

Bytes to NumPy entries and back. No JAX, no knowledge of models, no file names.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from onemodel_jax._checks import describe, fail
from onemodel_jax.checkpoint.errors import CheckpointError, Kind
from onemodel_jax.checkpoint.manifest import (
    ITEM_SIZE,
    MAX_DIMENSION,
    MAX_RANK,
    Tensor,
)

CHECKPOINT_MAGIC = b"ONEMCKPT"
MODEL_MAGIC = b"ONEMODEL"
ALIGNMENT = 64
MAX_MANIFEST = 256 * 2**20

#: magic, version, flags, manifest offset and length, data offset and length,
#: file length, reserved.
HEADER = struct.Struct("<8sII6Q")

DTYPES = {"float32": "f32", "int32": "i32", "int64": "i64", "float16": "f16"}
NUMPY_DTYPES = {"f32": "<f4", "i32": "<i4", "i64": "<i8", "f16": "<f2"}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


class Source(Protocol):
    """Where a reader takes bytes from; a read never passes ``length``."""

    @property
    def length(self) -> int: ...

    def read(self, offset: int, length: int) -> memoryview: ...


class Frame(NamedTuple):
    """A header that has been checked against the real length of the input."""

    manifest_length: int
    data_offset: int
    data_length: int


def align(offset: int) -> int:
    """Return the next multiple of 64 that is not below ``offset``."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def byte_size(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor, as a Python integer that cannot wrap."""
    return math.prod(shape) * ITEM_SIZE[dtype]


def lay_out(
    function: str, entries: Sequence[tuple[str, Any]], codes: Sequence[str], start: int
) -> tuple[list[Tensor], int]:
    """Give each (name, array) its place in the data region.

    Args:
      function: name of the public function, for errors.
      entries: names and arrays (anything with ``dtype`` and ``shape``).
      codes: dtype codes that the file may hold.
      start: end of what is already placed.

    Returns:
      The tensor entries and the end of the last one.

    Raises:
      TypeError: a leaf is no array, or of a dtype that the file cannot hold.
      ValueError: a name occurs twice or is not Unicode text; a shape beyond the
        limits of the format.
    """
    tensors, seen, end = [], set(), start
    for name, array in entries:
        code = _check_entry(function, name, array, codes, seen)
        shape = tuple(int(d) for d in array.shape)
        offset = align(end)
        tensors.append(Tensor(name, code, shape, offset, byte_size(code, shape)))
        end = offset + tensors[-1].length
    return tensors, end


def _check_entry(function, name, array, codes, seen) -> str:
    argument = f"tensor {name!r}"
    check_text(function, argument, name)
    if name in seen:
        fail(ValueError, function, argument, "distinct names", "a second one")
    seen.add(name)
    code = dtype_code(array)
    if code is None or code not in codes:
        expected = "an array of " + " or ".join(DTYPE_NAMES[c] for c in codes)
        fail(TypeError, function, argument, expected, describe(array))
    if len(array.shape) > MAX_RANK or any(d > MAX_DIMENSION for d in array.shape):
        expected = f"rank <= {MAX_RANK}, dimensions <= {MAX_DIMENSION}"
        fail(ValueError, function, argument, expected, describe(array))
    return code


def check_text(function: str, argument: str, text: object) -> None:
    """Raise unless ``text`` is a string without lone surrogates."""
    if not isinstance(text, str):
        fail(TypeError, function, argument, "a string", type(text).__name__)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        fail(ValueError, function, argument, "Unicode text", "a lone surrogate")


def dtype_code(array: Any) -> str | None:
    """Return the dtype code of an array, None if no file can hold it."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        return None
    return DTYPES.get(getattr(array.dtype, "name", ""))


def chunks(
    magic: bytes, manifest: bytes, tensors: Sequence[Tensor], arrays: Sequence[Any]
) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece; a tensor is a view where its layout allows.

    A tensor that is not row-major and little-endian is converted when its turn
    comes, so no more than one converted copy is alive at a time.
    """
    data_offset = align(HEADER.size + len(manifest))
    data_length = tensors[-1].offset + tensors[-1].length if tensors else 0
    yield HEADER.pack(
        *(magic, 1, 0, HEADER.size, len(manifest), data_offset, data_length),
        *(data_offset + data_length, 0),
    )
    yield manifest
    yield bytes(data_offset - HEADER.size - len(manifest))
    position = 0
    for tensor, array in zip(tensors, arrays, strict=True):
        yield bytes(tensor.offset - position)
        yield raw(array, NUMPY_DTYPES[tensor.dtype])
        position = tensor.offset + tensor.length


def raw(array: Any, dtype: str) -> memoryview:
    """Return the elements of ``array`` row-major in ``dtype``'s byte order."""
    flat = np.ascontiguousarray(np.asarray(array), dtype=dtype).reshape(-1)
    return flat.view(np.uint8).data


def refuse(kind: Kind, message: str) -> NoReturn:
    """Raise the error of a file that cannot be read."""
    raise CheckpointError(kind, message)


def read_frame(source: Source, magic: bytes) -> Frame:
    """Check the 64-byte header against the real length of the input.

    Raises:
      CheckpointError: BadHeader.
    """
    if source.length < HEADER.size:
        refuse("BadHeader", f"{source.length} bytes are shorter than a header")
    found = HEADER.unpack(source.read(0, HEADER.size))
    _, _, _, _, manifest_length, data_offset, data_length, file_length, _ = found
    names = ("magic", "version", "flags", "manifest_offset")
    for name, got, want in zip(names, found, (magic, 1, 0, HEADER.size), strict=False):
        if got != want:
            refuse("BadHeader", f"{name}: expected {want!r}, got {got!r}")
    if found[8] != 0:
        refuse("BadHeader", f"reserved: expected 0, got {found[8]}")
    if file_length != source.length:
        refuse("BadHeader", f"file_length {file_length} of {source.length} bytes")
    if manifest_length > MAX_MANIFEST:
        refuse("BadHeader", f"manifest_length {manifest_length} above {MAX_MANIFEST}")
    if data_offset != align(HEADER.size + manifest_length) or data_offset > file_length:
        refuse("BadHeader", f"data_offset {data_offset} does not follow the manifest")
    if data_length != file_length - data_offset:
        refuse("BadHeader", f"data_length {data_length} does not end the file")
    return Frame(manifest_length, data_offset, data_length)


def read_manifest_bytes(source: Source, frame: Frame) -> memoryview:
    """Return the manifest's bytes; the padding behind them must be zero.

    Raises:
      CheckpointError: BadManifest.
    """
    block = source.read(HEADER.size, frame.data_offset - HEADER.size)
    if any(block[frame.manifest_length :]):
        refuse("BadManifest", "the padding behind the manifest is not zero")
    return block[: frame.manifest_length]


def check_layout(tensors: Sequence[Tensor], data_length: int) -> None:
    """Check every offset and length before any data is read.

    Tensors lie in order, each at the first multiple of 64 behind the one before,
    and the last ends the file (up to 63 bytes of padding may follow).

    Raises:
      CheckpointError: BadTensor.
    """
    end = 0
    for t in tensors:
        name, size, start = t.name[:80], byte_size(t.dtype, t.shape), align(end)
        if t.length != size:
            refuse("BadTensor", f"{name!r}: length {t.length}, its shape needs {size}")
        if t.offset != start:
            refuse("BadTensor", f"{name!r}: offset {t.offset}, expected {start}")
        end = start + size
    if data_length not in (end, align(end)):
        refuse(
            "BadTensor", f"the data has {data_length} bytes, the tensors end at {end}"
        )


def read_arrays(
    source: Source, frame: Frame, tensors: Sequence[Tensor]
) -> list[np.ndarray]:
    """Return views of the data region, one a tensor, little-endian.

    Raises:
      CheckpointError: BadTensor, where padding between tensors is not zero.
    """
    data = source.read(frame.data_offset, frame.data_length)
    arrays, end = [], 0
    for t in tensors:
        if any(data[end : t.offset]):
            refuse("BadTensor", f"the padding before {t.name[:80]!r} is not zero")
        end = t.offset + t.length
        flat = np.frombuffer(data[t.offset : end], NUMPY_DTYPES[t.dtype])
        arrays.append(flat.reshape(t.shape))
    if any(data[end:]):
        refuse("BadTensor", "the padding behind the last tensor is not zero")
    return arrays
