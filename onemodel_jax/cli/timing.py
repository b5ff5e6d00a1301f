"""Timing in turn: on a shared machine only ratios within one run mean anything."""

import time
from collections.abc import Callable
from typing import Any


def interleave(
    runs: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, list[float]]:
    """Time each function in turn, ``rounds`` times; seconds by name.

    Every second round goes backwards, so that none always comes after the same one.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(rounds):
        for name in list(runs)[:: -1 if k % 2 else 1]:
            start = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - start)
    return times
