"""Bytes on disk: reading without trust, replacing a file without losing it.

No knowledge of the format.
"""

import contextlib
import errno
import fcntl
import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from onemodel_jax._checks import fail
from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.format import ALIGNMENT, Source

Path = str | os.PathLike[str]


class MemorySource:
    """The caller's own bytes; views of them are not to be kept."""

    def __init__(self, data: Any):
        self._data = memoryview(data).cast("B").toreadonly()
        self.length = len(self._data)

    def read(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]


class FileSource:
    """An open regular file; each read is a fresh buffer that may be kept."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self.length = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> memoryview:
        block = np.empty(length + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        view = block[start : start + length].data
        done = 0
        while done < length:
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if count == 0:
                message = "the file became shorter while it was read"
                raise CheckpointError("BadHeader", message)
            done += count
        return view


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[Source]:
    """Open a regular file for reading.

    Raises:
      OSError: there is no such file, or it is not a regular file.
    """
    # Without O_NONBLOCK a named pipe would block here for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "not a regular file", os.fspath(path))
        yield FileSource(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_source(source: Path | bytes | bytearray | memoryview) -> Iterator[Source]:
    """Read from bytes-like data, or from the file of a path."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield MemorySource(source)
    else:
        with open_file(source) as opened:
            yield opened


def replace(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    keep: int | None = None,
    fsync: bool = True,
) -> None:
    """Write ``pieces`` to ``path`` so that the old file is lost at no moment.

    A temporary file in the same directory is written, flushed to the disk and renamed
    over ``path``; then the directory is flushed. Whatever fails, ``path`` is the
    old file or the new one, and the temporary file is removed.

    Args:
      path: the file; a symbolic link is followed.
      pieces: the contents, in order; produced while writing.
      keep: how many earlier files to keep, as ``path.1`` (the newest) to ``path.N``.
      fsync: False leaves out the flushes: the rename stays atomic for other
        processes, but a power failure may lose both files.
    """
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int)):
        fail(TypeError, "save", "keep", "an int or None", type(keep).__name__)
    if keep is not None and keep < 0:
        fail(ValueError, "save", "keep", "0 or more", keep)
    target = os.path.realpath(path)
    temporary = _beside(target, "saving")
    descriptor = _open_locked(temporary, target)
    try:
        _write(descriptor, pieces)
        if fsync:
            os.fsync(descriptor)
        if keep:
            _rotate(target, keep)
        os.replace(temporary, target)
    except BaseException:
        if _is_at(descriptor, temporary):
            os.unlink(temporary)
        raise
    finally:
        _unlock(descriptor)
        os.close(descriptor)
    if fsync:
        _flush_directory(os.path.dirname(target))


def _beside(target: str, role: str) -> str:
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{name}.{role}")


def _open_locked(temporary: str, target: str) -> int:
    """Open the temporary file as its only writer; what a killed save left is cut."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o666)
        try:
            _lock(descriptor, target)
            # The writer before us has renamed or removed what we opened.
            if _is_at(descriptor, temporary):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, target: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"save: another writer is saving to {target}; waiting for it"
        warnings.warn(message, RuntimeWarning, stacklevel=5)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        # Some network file systems have no locks: then two writers are on their own.
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise


def _unlock(descriptor: int) -> None:
    # Explicit, because a forked child may still hold a copy of the descriptor.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _write(descriptor: int, pieces: Iterable[bytes | memoryview]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            view = view[os.write(descriptor, view) :]


def _rotate(target: str, keep: int) -> None:
    """Shift path.1 .. path.N by one and link the current file as path.1."""
    first = f"{target}.1"
    if not os.path.exists(target):
        return
    if os.path.exists(first) and os.path.samefile(target, first):
        return  # A save was killed between its link and its rename.
    # Only up to the first gap, so that an interrupted shift loses no generation.
    count = 1
    while count < keep and os.path.exists(f"{target}.{count}"):
        count += 1
    for i in range(count - 1, 0, -1):
        os.replace(f"{target}.{i}", f"{target}.{i + 1}")
    link = _beside(target, "previous")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.link(target, link)
    os.replace(link, first)


def _flush_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
