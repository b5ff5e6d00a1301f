"""Lines of handwritten digits, drawn to the bit from a seed, a step and a number.

Integers throughout: the one floating operation, ink / 1024, is exact. A line does
not depend on the batch it is in, so a resumed run needs only its step count.
"""

import numpy as np

from onemodel_jax.data.batch import (
    LINE_HEIGHT,
    Line,
    LineBatch,
    check_batch_size,
    pad_batch,
)
from onemodel_jax.data.digits import UNIT, glyphs
from onemodel_jax.nn.generator import Generator, derive

CHARSET = "0123456789"
NUM_CLASSES = 1 + len(CHARSET)
LINE_WIDTH = 320
"""Padded width of every batch: ten glyphs of full width just fit."""
MIN_DIGITS = 4
MAX_DIGITS = 10
MAX_GAP = 8
MAX_JITTER = 2

TRAINING_STREAM = 1
EVALUATION_STREAM = 2
EVALUATION_SEED = 0


def draw_line(stream: int, evaluation: bool = False) -> Line:
    """Return the line of one stream (SPEC, "Digit lines").

    The draws, in order: the number of digits; for each digit its glyph, its vertical
    shift and the gap before it; the gap at the end. A gap that does not fit into the
    320 pixels that the glyphs leave is cut to what is left.

    Args:
      stream: seed of the line's own generator.
      evaluation: True draws from the held-out digits only, False from the others only.

    Raises:
      TypeError, ValueError: ``stream`` is not an integer in 0..2^64-1.
    """
    generator = Generator(stream)
    source = glyphs(bool(evaluation))
    drawn = [
        (
            generator.integers(0, len(source.labels)),
            generator.integers(-MAX_JITTER, MAX_JITTER + 1),
            generator.integers(0, MAX_GAP + 1),
        )
        for _ in range(generator.integers(MIN_DIGITS, MAX_DIGITS + 1))
    ]
    last_gap = generator.integers(0, MAX_GAP + 1)
    canvas = np.zeros((LINE_HEIGHT, LINE_WIDTH), np.uint16)
    free = LINE_WIDTH - sum(int(source.right[k] - source.left[k]) for k, _, _ in drawn)
    x = 0
    for k, shift, gap in drawn:
        gap = min(gap, free)
        free -= gap
        x += gap
        glyph = source.images[k, :, source.left[k] : source.right[k]]
        _place(canvas[:, x : x + glyph.shape[1]], glyph, shift)
        x += glyph.shape[1]
    image = canvas[:, : x + min(last_gap, free)].astype(np.float32) / np.float32(UNIT)
    labels = source.labels[[k for k, _, _ in drawn]].astype(np.int32) + np.int32(1)
    return Line(image, labels)


def _place(window: np.ndarray, glyph: np.ndarray, shift: int) -> None:
    """Write ``glyph`` ``shift`` rows lower; rows that leave the window are lost."""
    down, up = max(shift, 0), max(-shift, 0)
    window[down : LINE_HEIGHT - up] = glyph[up : LINE_HEIGHT - down]


def training_line(seed: int, step: int, number: int) -> Line:
    """Return line ``number`` of training step ``step``, both counted from 0.

    Raises:
      TypeError, ValueError: an argument is not an integer in 0..2^64-1.
    """
    return draw_line(derive(seed, TRAINING_STREAM, step, number))


def evaluation_line(number: int) -> Line:
    """Return held-out line ``number`` from 0; it depends on no seed.

    Raises:
      TypeError, ValueError: ``number`` is not an integer in 0..2^64-1.
    """
    stream = derive(EVALUATION_SEED, EVALUATION_STREAM, number)
    return draw_line(stream, evaluation=True)


def training_batch(seed: int, step: int, batch_size: int) -> LineBatch:
    """Return the lines of training step ``step``, a pure function of the arguments.

    Args:
      seed: the run's seed, 0 to 2^64-1.
      step: number of steps already taken.
      batch_size: B >= 1. Line i is the same whatever B is.

    Returns:
      LineBatch of B lines, padded to W = 320 and L = 10.

    Raises:
      TypeError, ValueError: an argument outside its range.
    """
    check_batch_size("training_batch", batch_size)
    lines = [training_line(seed, step, i) for i in range(batch_size)]
    return pad_batch(lines, LINE_WIDTH, MAX_DIGITS)


def evaluation_lines(count: int) -> list[Line]:
    """Return the first ``count`` held-out lines."""
    return [evaluation_line(i) for i in range(count)]
