"""Reading held-out lines with a recognizer and measuring what was read."""

from collections.abc import Callable, Sequence

import numpy as np

from onemodel_jax import data
from onemodel_jax._tree import Params
from onemodel_jax.data import Line
from onemodel_jax.models import crnn


def read_lines(
    forward: Callable,
    config: crnn.CrnnConfig,
    params: Params,
    lines: Sequence[Line],
    *,
    width: int,
    batch: int,
) -> list[list[int]]:
    """Return the labels read from each line by best-path decoding.

    Args:
      forward: compiled function (params, images, widths) -> logits.
      config: sizes of the recognizer.
      params: its parameters.
      lines: what to read; a short last batch is filled up, so one shape compiles.
      width: padded width of every batch.
      batch: lines of a batch.
    """
    readings = []
    longest = max((len(line.labels) for line in lines), default=0)
    for start in range(0, len(lines), batch):
        chunk = list(lines[start : start + batch])
        padded = data.pad_batch(chunk, width, longest, rows=batch)
        logits = np.asarray(forward(params, padded.images, padded.widths))
        steps = np.asarray(crnn.time_steps(config, padded.widths))
        for logit, count in zip(logits[: len(chunk)], steps, strict=False):
            readings.append(data.greedy_decode(logit[:count]))
    return readings


def error_rate(lines: Sequence[Line], readings: Sequence[Sequence[int]]) -> float:
    """Return the character error rate of ``readings`` against the lines' labels."""
    return data.character_error_rate([list(line.labels) for line in lines], readings)
