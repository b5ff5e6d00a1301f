"""Models to and from safetensors and NumPy's .npz, bit for bit.

The model alone: parameters and buffers under their dotted names. Optimizer state is
not exchanged; a checkpoint carries it. A dtype that the format lacks is refused.
"""

import errno
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy

from onemodel_jax._checks import describe, fail
from onemodel_jax._types import PyTree
from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.format import check_text, refuse
from onemodel_jax.checkpoint.state import fill_model, model_entries, to_leaf
from onemodel_jax.checkpoint.storage import Path, open_file, replace

_INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
NPZ_DTYPES = ("bool", *_INTEGERS, "float16", "float32", "float64")
SAFETENSORS_CODES = {
    **{name: name.upper().replace("INT", "I").replace("UI", "U") for name in _INTEGERS},
    **{"float16": "F16", "float32": "F32", "float64": "F64"},
    **{"bool": "BOOL", "bfloat16": "BF16"},
}
# Zip's epoch: the bytes must not depend on the time of day.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def export_safetensors(path: Path, state: PyTree) -> None:
    """Write the model part of ``state`` as a safetensors file, atomically.

    Args:
      path: the file; replaced whole or not at all.
      state: a TrainState, or any tree of arrays (bool, integers, float16, bfloat16,
        float32 or float64).

    Raises:
      TypeError: a leaf of a dtype that the format lacks.
      ValueError: names that are not distinct.
      ImportError: the optional package safetensors is not installed.
      OSError: the file cannot be written.
    """
    library = _safetensors("export_safetensors")
    arrays = _arrays("export_safetensors", state, tuple(SAFETENSORS_CODES))
    replace(path, [library.numpy.save(arrays)])


def import_safetensors(path: Path, like: PyTree) -> PyTree:
    """Read a safetensors file into a new tree of ``like``'s structure.

    Args:
      path: the file.
      like: template: a TrainState or tree of arrays or ``jax.ShapeDtypeStruct``; its
        names, dtypes and shapes must be the file's. A TrainState's optimizer is
        handed through unchanged.

    Returns:
      The tree, in JAX arrays; NumPy arrays where JAX would narrow the dtype.

    Raises:
      CheckpointError: BadManifest for a file that the format refuses, Mismatch for
        one that is not of the target.
      ImportError, OSError: as the names say.
    """
    library = _safetensors("import_safetensors")
    wanted = _wanted("import_safetensors", like, tuple(SAFETENSORS_CODES))
    with open_file(path), _refusals():
        with library.safe_open(path, framework="numpy") as file:

            def entry(name: str) -> tuple[str, tuple[int, ...]]:
                part = file.get_slice(name)
                return part.get_dtype(), tuple(part.get_shape())

            expected = {n: (SAFETENSORS_CODES[d], s) for n, (d, s) in wanted.items()}
            _compare(expected, list(file.keys()), entry)
            values = {name: to_leaf(file.get_tensor(name)) for name in wanted}
    return fill_model(like, values)


def export_npz(path: Path, state: PyTree) -> None:
    """Write the model part of ``state`` as an uncompressed .npz file, atomically.

    The same state gives the same bytes: members in the state order, dates fixed.
    Args and raises as ``export_safetensors``, without bfloat16.
    """
    arrays = _arrays("export_npz", state, NPZ_DTYPES)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", _ZIP_DATE)
            with archive.open(member, "w", force_zip64=True) as stream:
                npy.write_array(stream, array, version=(1, 0), allow_pickle=False)
    replace(path, [buffer.getbuffer()])


def import_npz(path: Path, like: PyTree) -> PyTree:
    """Read an .npz file into a new tree of ``like``'s structure.

    Every member's dtype and shape are compared with the template's before its data
    is read. Args, returns and raises as ``import_safetensors``.
    """
    wanted = _wanted("import_npz", like, NPZ_DTYPES)
    with open_file(path), _refusals():
        with zipfile.ZipFile(path) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist()]
            _compare(wanted, names, lambda name: _npy_entry(archive, name))
            values = {name: to_leaf(_npy_array(archive, name)) for name in wanted}
    return fill_model(like, values)


def _npy_entry(archive: zipfile.ZipFile, name: str) -> tuple[str, tuple[int, ...]]:
    with archive.open(f"{name}.npy") as stream:
        version = npy.read_magic(stream)
        readers = {
            (1, 0): npy.read_array_header_1_0,
            (2, 0): npy.read_array_header_2_0,
        }
        if version not in readers:
            refuse("BadManifest", f"{name!r}: .npy version {version}")
        shape, _, dtype = readers[version](stream)
        return dtype.name, tuple(shape)


def _npy_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as stream:
        array = npy.read_array(stream, allow_pickle=False)
        if stream.read(1):
            refuse("BadManifest", f"{name!r}: bytes behind the array")
        return np.ascontiguousarray(array).reshape(array.shape)


def _arrays(function: str, state: PyTree, dtypes: Sequence[str]) -> dict:
    """Return row-major little-endian arrays by name, in the state order."""
    arrays = {}
    for name, leaf in model_entries(state):
        _check_leaf(function, name, leaf, dtypes, arrays)
        array = np.asarray(leaf)
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        arrays[name] = little
    return arrays


def _wanted(
    function: str, like: PyTree, dtypes: Sequence[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    wanted = {}
    for name, leaf in model_entries(like):
        _check_leaf(function, name, leaf, dtypes, wanted)
        wanted[name] = (leaf.dtype.name, tuple(leaf.shape))
    return wanted


def _check_leaf(function, name, leaf, dtypes, seen) -> None:
    check_text(function, "tensor name", name)
    if name in seen:
        fail(ValueError, function, f"tensor {name!r}", "distinct names", "a second one")
    if getattr(getattr(leaf, "dtype", None), "name", None) not in dtypes:
        expected = "an array of " + ", ".join(dtypes)
        fail(TypeError, function, f"tensor {name!r}", expected, describe(leaf))


def _compare(wanted: Mapping[str, Any], names: list[str], entry: Callable) -> None:
    if sorted(names) != sorted(wanted):
        odd = sorted(set(names) ^ set(wanted)) or ["a name that occurs twice"]
        refuse("Mismatch", f"names differ from the target's, first {odd[0][:80]!r}")
    for name, want in wanted.items():
        got = entry(name)
        if got != want:
            refuse("Mismatch", f"{name!r}: expected {want}, got {got}")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn whatever a foreign reader says of a damaged file into a BadManifest."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        # A damaged archive makes the zip reader seek before the start of the file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise CheckpointError("BadManifest", str(error)[:200]) from error


def _safetensors(function: str) -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        message = f"{function}: needs the package safetensors (extra: exchange)"
        raise ImportError(message) from error
    return safetensors
