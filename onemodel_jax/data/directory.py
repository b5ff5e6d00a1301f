"""A user's own lines: a directory of images and `labels.txt`.

All of it is read and checked before anything is returned; nothing is skipped
silently. There is no augmentation and no splitting.
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onemodel_jax._checks import fail
from onemodel_jax.data.batch import (
    PIXELS_PER_STEP,
    Line,
    LineBatch,
    check_batch_size,
    pad_batch,
    steps_needed,
    time_steps,
)
from onemodel_jax.data.images import SUFFIXES, read_image
from onemodel_jax.data.lines import CHARSET
from onemodel_jax.nn.generator import Generator, check_word, derive

LABELS_FILE = "labels.txt"
ORDER_STREAM = 3


class LineSet(NamedTuple):
    """Lines of a directory, in the order of its `labels.txt`.

    Attributes:
      lines: one or more lines.
      names: file name of each line.
      charset: class c is character ``charset[c - 1]``.
      width: the widest line's width, rounded up to a multiple of 8.
      label_length: the longest line's number of labels.
    """

    lines: tuple[Line, ...]
    names: tuple[str, ...]
    charset: str
    width: int
    label_length: int


def load_lines(
    directory: str | Path,
    charset: str = CHARSET,
    invert: bool = False,
    pixels_per_step: int = PIXELS_PER_STEP,
) -> LineSet:
    """Return all lines of ``directory`` (SPEC, "Own lines").

    Args:
      directory: holds `labels.txt` (UTF-8, ``name<TAB or space>text`` a line) and
        every image it names, and no other ``.png`` or ``.npy`` file.
      charset: the characters a text may have, each once, in class order from 1.
      invert: True for dark ink on a light ground.
      pixels_per_step: width of one time step of the model to be trained.

    Raises:
      ValueError: the first fault found, naming the file and, for a label, the line.
      ImportError: a PNG and no Pillow; the text names the extra to install.
    """
    directory = Path(directory)
    if not charset or len(set(charset)) != len(charset):
        expected = "one or more different characters"
        fail(ValueError, "load_lines", "charset", expected, repr(charset))
    images = _image_names(directory)
    entries = _read_labels(directory, images, charset)
    unlabelled = sorted(images - {name for _, name, _ in entries})
    if unlabelled:
        where = str(directory / unlabelled[0])
        fail(ValueError, "load_lines", where, f"a line in {LABELS_FILE}", "none")
    lines = []
    for where, name, text in entries:
        labels = np.array([1 + charset.index(c) for c in text], np.int32)
        image = read_image(directory / name, invert)
        steps, need = time_steps(image.shape[1], pixels_per_step), steps_needed(labels)
        if steps < need:
            expected = f"at most {steps} time steps for {name}"
            fail(ValueError, "load_lines", where, expected, f"{text!r} needing {need}")
        lines.append(Line(image, labels))
    widest = max(line.image.shape[1] for line in lines)
    return LineSet(
        lines=tuple(lines),
        names=tuple(name for _, name, _ in entries),
        charset=charset,
        width=-(-widest // PIXELS_PER_STEP) * PIXELS_PER_STEP,
        label_length=max(len(line.labels) for line in lines),
    )


def _image_names(directory: Path) -> set[str]:
    """Return the image files of ``directory``; names that start with a dot are not."""
    if not directory.is_dir():
        fail(ValueError, "load_lines", str(directory), "a directory", "none")
    return {
        path.name
        for path in directory.iterdir()
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    }


def _read_labels(
    directory: Path, images: set[str], charset: str
) -> list[tuple[str, str, str]]:
    """Return (place in the file, image name, text) of each line of `labels.txt`."""
    path = directory / LABELS_FILE
    if not path.is_file():
        fail(ValueError, "load_lines", str(path), "a file", "none")
    rows = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    entries: dict[str, tuple[str, str, str]] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{path} line {number}"
        name, text = _split_row(where, row.removesuffix(b"\r"))
        if not name and not text:
            continue
        if name not in images:
            expected = f"a {' or '.join(SUFFIXES)} file of {directory}"
            fail(ValueError, "load_lines", where, expected, repr(name))
        if name in entries:
            fail(ValueError, "load_lines", where, "each image once", repr(name))
        _check_text(where, text, charset)
        entries[name] = (where, name, text)
    if not entries:
        fail(ValueError, "load_lines", str(path), "one line or more", "none")
    return list(entries.values())


def _split_row(where: str, row: bytes) -> tuple[str, str]:
    """Split at the first tab, or at the first space where there is no tab."""
    try:
        text = row.decode("utf-8")
    except UnicodeDecodeError:
        fail(ValueError, "load_lines", where, "UTF-8", repr(row))
    name, _, label = text.partition("\t" if "\t" in text else " ")
    return name, label


def _check_text(where: str, text: str, charset: str) -> None:
    if not text:
        fail(ValueError, "load_lines", where, "a label after the name", "none")
    for character in text:
        if character not in charset:
            expected = f"characters of {charset!r}"
            fail(ValueError, "load_lines", where, expected, repr(character))


def directory_batch(
    line_set: LineSet, seed: int, step: int, batch_size: int
) -> LineBatch:
    """Return the lines of training step ``step``, a pure function of the arguments.

    The lines of all epochs stand in one row, each epoch in its own order; the batch
    is the ``batch_size`` lines from position ``step * batch_size``, so it may span
    epochs and is always full.

    Args:
      line_set: what ``load_lines`` returned.
      seed: the run's seed, 0 to 2^64-1.
      step: number of steps already taken.
      batch_size: B >= 1.

    Returns:
      LineBatch of B lines, padded to the set's width and label length.

    Raises:
      TypeError, ValueError: an argument outside its range.
    """
    check_batch_size("directory_batch", batch_size)
    first = check_word("directory_batch", "step", step) * int(batch_size)
    count = len(line_set.lines)
    indices = []
    for position in range(first, first + batch_size):
        epoch, place = divmod(position, count)
        order = _order(count, derive(seed, ORDER_STREAM, epoch))
        indices.append(int(order[place]))
    lines = [line_set.lines[i] for i in indices]
    return pad_batch(lines, line_set.width, line_set.label_length)


@lru_cache(maxsize=4)
def _order(count: int, stream: int) -> np.ndarray:
    """Return one epoch's order; cached because each of its batches asks for it."""
    return Generator(stream).permutation(count)
