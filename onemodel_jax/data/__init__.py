"""Bundled digit lines, a user's own lines, and the measures of a recognizer."""

from onemodel_jax.data.batch import (
    LINE_HEIGHT,
    PIXELS_PER_STEP,
    Line,
    LineBatch,
    pad_batch,
    steps_needed,
    time_steps,
)
from onemodel_jax.data.lines import (
    CHARSET,
    LINE_WIDTH,
    MAX_DIGITS,
    NUM_CLASSES,
    draw_line,
    evaluation_line,
    evaluation_lines,
    training_batch,
    training_line,
)

__all__ = [
    "CHARSET",
    "LINE_HEIGHT",
    "LINE_WIDTH",
    "MAX_DIGITS",
    "NUM_CLASSES",
    "PIXELS_PER_STEP",
    "Line",
    "LineBatch",
    "draw_line",
    "evaluation_line",
    "evaluation_lines",
    "pad_batch",
    "steps_needed",
    "time_steps",
    "training_batch",
    "training_line",
]
