"""Timing in turn: on a shared machine only ratios within one run mean anything."""

import time
from collections.abc import Callable
from typing import Any


def interleave(
    runs: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, list[float]]:
    """Time each function in turn, ``rounds`` times; seconds by name."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, function in runs.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times
