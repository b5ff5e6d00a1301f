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
from onemodel_jax.data.directory import LineSet, directory_batch, load_lines
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
from onemodel_jax.data.metrics import (
    character_error_rate,
    edit_distance,
    greedy_decode,
    line_text,
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
    "LineSet",
    "character_error_rate",
    "directory_batch",
    "draw_line",
    "edit_distance",
    "evaluation_line",
    "evaluation_lines",
    "greedy_decode",
    "line_text",
    "load_lines",
    "pad_batch",
    "steps_needed",
    "time_steps",
    "training_batch",
    "training_line",
]
