"""``onemodel bench``: the price of exactness, measured side by side in one run.

Ratios are what counts: absolute times mean nothing on a shared machine.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from onemodel_jax import data
from onemodel_jax._checks import fail
from onemodel_jax._types import EXACT, FAST, Arithmetic
from onemodel_jax.cli import session
from onemodel_jax.cli.bench_checkpoint import bench_checkpoint
from onemodel_jax.cli.bench_numerics import bench_numerics
from onemodel_jax.cli.timing import interleave
from onemodel_jax.models.crnn import DIGITS
from onemodel_jax.training import make_train_step

WHAT = ("step", "numerics", "checkpoint")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bench",
        help="measure the price of exactness",
        description="Time exact against fast arithmetic in one run, in turn.",
    )
    parser.add_argument("what", nargs="?", default="step", choices=WHAT)
    parser.add_argument("--batch", type=int, default=16, help="step: lines (16)")
    parser.add_argument(
        "--size", type=int, default=4_000_000, help="numerics: elements (4,000,000)"
    )
    parser.add_argument(
        "--mebibytes", type=int, default=512, help="checkpoint: size of the state (512)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (15)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen benchmark."""
    for name in ("batch", "size", "mebibytes", "rounds"):
        if getattr(args, name) < 1:
            fail(ValueError, "bench", f"--{name}", "at least 1", getattr(args, name))
    if args.what == "numerics":
        return bench_numerics(args.size, args.rounds)
    if args.what == "checkpoint":
        return bench_checkpoint(args.mebibytes, args.rounds)
    return bench_step(args.batch, args.rounds)


class Contender(NamedTuple):
    """A compiled step, what runs it once, and the seconds its compilation took."""

    run: Callable[[], None]
    compile_seconds: float


def _contender(arithmetic: Arithmetic, batch: int) -> Contender:
    settings = session.Settings(
        0, batch, 500, 2e-3, DIGITS, data.CHARSET, 0, arithmetic=arithmetic
    )
    step = make_train_step(
        DIGITS,
        session.optimizer_for(settings),
        max_norm=session.MAX_NORM,
        arithmetic=arithmetic,
    )
    state = session.fresh_state(settings)
    drawn = [jax.device_put(x) for x in data.training_batch(0, 0, batch)]
    start = time.perf_counter()
    compiled = step.lower(state, *drawn).compile()  # type: ignore[attr-defined]
    seconds = time.perf_counter() - start
    box = [state]

    def once() -> None:
        box[0], metrics = compiled(box[0], *drawn)
        jax.block_until_ready((box[0], metrics))

    once()
    return Contender(once, seconds)


def bench_step(batch: int, rounds: int) -> int:
    """Time the exact training step of the digits model against the fast one."""
    contenders = {name: _contender(name, batch) for name in (EXACT, FAST)}
    times = interleave({k: c.run for k, c in contenders.items()}, rounds)
    print(f"digits model, batch {batch}, {rounds} rounds in turn")
    print(f"{'':8}{'compile s':>10}{'median ms':>11}{'min ms':>9}{'lines/s':>9}")
    for name, seconds in times.items():
        median = float(np.median(seconds))
        print(
            f"{name:8}{contenders[name].compile_seconds:10.1f}{1e3 * median:11.1f}"
            f"{1e3 * min(seconds):9.1f}{batch / median:9.0f}"
        )
    pairs = np.array(times[EXACT]) / np.array(times[FAST])
    print(f"exact / fast: median of the pairs {np.median(pairs):.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak resident memory of both together: {peak:.2f} GiB")
    return 0
