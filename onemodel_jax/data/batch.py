"""A line, a padded batch of lines, and whether CTC can align a line at all.

Nothing here reads files or draws numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onemodel_jax._checks import fail

LINE_HEIGHT = 32
PIXELS_PER_STEP = 8
"""Width of one time step: three pools that halve the width, each with floor."""


class Line(NamedTuple):
    """One text line.

    Attributes:
      image: (32, width) float32, ink in [0, 1] on background 0.
      labels: (L,) int32, classes of its characters; 0 is the blank and absent.
    """

    image: np.ndarray
    labels: np.ndarray


class LineBatch(NamedTuple):
    """Lines padded to one width and one label length.

    Attributes:
      images: (B, 32, W, 1) float32; columns from a line's width on are 0.
      widths: (B,) int32, each line's own width.
      labels: (B, L) int32, padded with 0.
      label_lengths: (B,) int32, each line's own number of labels.
    """

    images: np.ndarray
    widths: np.ndarray
    labels: np.ndarray
    label_lengths: np.ndarray


def pad_batch(
    lines: Sequence[Line], width: int, label_length: int, rows: int | None = None
) -> LineBatch:
    """Return ``lines`` as one batch; rows beyond them are blank and unlabelled.

    Args:
      lines: at most ``rows`` lines.
      width: padded width in pixels, at least the widest line's.
      label_length: padded label length, at least the longest line's.
      rows: batch size; default ``len(lines)``. A filler row is background of full
        width with no labels, so that a short last batch keeps the compiled shape.

    Raises:
      ValueError: a line has another height or does not fit, or there are too many.
    """
    rows = len(lines) if rows is None else rows
    if len(lines) > rows:
        fail(ValueError, "pad_batch", "lines", f"at most {rows}", len(lines))
    images = np.zeros((rows, LINE_HEIGHT, width, 1), np.float32)
    widths = np.full(rows, width, np.int32)
    labels = np.zeros((rows, label_length), np.int32)
    label_lengths = np.zeros(rows, np.int32)
    for i, line in enumerate(lines):
        height, own = line.image.shape
        if height != LINE_HEIGHT or own > width:
            expected = f"{LINE_HEIGHT} x at most {width} pixels"
            fail(ValueError, "pad_batch", f"lines[{i}]", expected, line.image.shape)
        if len(line.labels) > label_length:
            expected = f"at most {label_length} labels"
            fail(ValueError, "pad_batch", f"lines[{i}]", expected, len(line.labels))
        images[i, :, :own, 0] = line.image
        widths[i] = own
        labels[i, : len(line.labels)] = line.labels
        label_lengths[i] = len(line.labels)
    return LineBatch(images, widths, labels, label_lengths)


def check_batch_size(function: str, batch_size: int) -> None:
    """Raise TypeError or ValueError unless ``batch_size`` is an integer >= 1."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        fail(TypeError, function, "batch_size", "an integer", repr(batch_size))
    if batch_size < 1:
        fail(ValueError, function, "batch_size", "at least 1", batch_size)


def time_steps(width: int, pixels_per_step: int = PIXELS_PER_STEP) -> int:
    """Return the number of time steps of a line: floor(width / pixels_per_step)."""
    return width // pixels_per_step


def steps_needed(labels: Sequence[int] | np.ndarray) -> int:
    """Return the fewest time steps CTC can align: labels plus equal neighbours.

    At least one, because a line of no time steps has no prediction.
    """
    labels = np.asarray(labels)
    return max(1, len(labels) + int(np.sum(labels[1:] == labels[:-1])))
