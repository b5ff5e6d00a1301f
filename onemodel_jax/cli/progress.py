"""Progress of a training run: a bar on a terminal, plain lines elsewhere.

The bar is tqdm's, if the extra ``demo`` is installed.
"""

import sys
import time
from types import TracebackType

try:
    from tqdm import tqdm
except ImportError:  # the extra is optional
    tqdm = None

PLAIN_EVERY = 25
MEASURE_EVERY = 50


class Progress:
    """Shows loss, character error rate and lines a second while training."""

    def __init__(self, last: int, done: int, batch: int):
        """Start at step ``done`` of ``last``, with ``batch`` lines a step."""
        self._last, self._batch = last, batch
        self._start, self._started_at = done, 0.0
        self._rate = ""
        self._bar = None
        if tqdm is not None and sys.stdout.isatty():
            self._bar = tqdm(total=last, initial=done, unit="step", file=sys.stdout)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def wants_error_rate(self, done: int) -> bool:
        """Return True at the steps after which the error rate is measured."""
        return done % MEASURE_EVERY == 0

    def error_rate(self, rate: float) -> None:
        """Take the newest character error rate on held-out lines, a fraction."""
        self._rate = f"{100 * rate:.1f} %"

    def step(self, done: int, loss: float) -> None:
        """Show step ``done``; the first step's time is compilation and not counted."""
        now = time.perf_counter()
        if not self._started_at:
            self._started_at, self._start = now, done
        passed = now - self._started_at
        speed = (done - self._start) * self._batch / passed if passed else 0.0
        if self._bar is not None:
            self._bar.update(1)
            self._bar.set_postfix(
                loss=f"{loss:.3f}", cer=self._rate or "-", lines_per_s=f"{speed:.0f}"
            )
        elif done % PLAIN_EVERY == 0 or done == self._last or done == 1:
            rate = f"  character error rate {self._rate}" if self._rate else ""
            print(
                f"step {done}/{self._last}  loss {loss:.4f}  {speed:.0f} lines/s{rate}",
                flush=True,
            )
