"""``onemodel train``: train the line recognizer, save it, print its state hash."""

import argparse
import dataclasses
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from onemodel_jax._checks import fail
from onemodel_jax._tree import TrainState
from onemodel_jax.checkpoint import save, state_hash
from onemodel_jax.cli import session
from onemodel_jax.cli.evaluation import error_rate, read_lines
from onemodel_jax.cli.progress import Progress
from onemodel_jax.models.crnn import DIGITS
from onemodel_jax.training import make_train_step, predict

DEFAULTS = {
    "steps": 500,
    "seed": 0,
    "batch": 16,
    "lr": 2e-3,
    "arithmetic": "exact",
}
MEASURED_LINES = 64
FINAL_LINES = 256


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "train",
        help="train the line recognizer",
        description=(
            "Train the recognizer on the bundled handwritten digit lines, or on your "
            "own, and print the hash of the final state: the same on every machine."
        ),
    )
    parser.add_argument("--steps", type=int, help="steps of the run (500)")
    parser.add_argument("--seed", type=int, help="of weights and lines (0)")
    parser.add_argument("--batch", type=int, help="lines of a step (16)")
    parser.add_argument("--lr", type=float, help="peak learning rate (0.002)")
    parser.add_argument(
        "--arithmetic", choices=("exact", "fast"), help="defined bits, or XLA's (exact)"
    )
    parser.add_argument("--out", default="digits.ckpt", help="checkpoint to write")
    parser.add_argument("--resume", metavar="FILE", help="go on from a checkpoint")
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="save and stop")
    parser.add_argument(
        "--save-every", type=int, default=100, metavar="N", help="steps (100)"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="your own lines: 32-pixel images, labels.txt"
    )
    parser.add_argument("--charset", help="characters of your lines (0123456789)")
    parser.add_argument(
        "--invert", action="store_true", help="your lines are dark ink on light"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; return 0 when done, 130 when interrupted after saving."""
    settings, lines = _settings(args)
    counts = {
        "steps": settings.steps,
        "batch": settings.batch,
        "save-every": args.save_every,
        "stop-at": 1 if args.stop_at is None else args.stop_at,
    }
    for name, value in counts.items():
        if not 1 <= value < 1 << 31:
            fail(ValueError, "train", f"--{name}", "1 to 2^31 - 1", value)
    if not 0 < settings.learning_rate < float("inf"):
        expected = "above 0 and finite"
        fail(ValueError, "train", "--lr", expected, settings.learning_rate)
    folder = os.path.dirname(os.path.abspath(args.out))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        fail(ValueError, "train", "--out", "a folder that can be written", folder)
    state = session.fresh_state(settings)
    if args.resume:
        state = session.load_state(args.resume, state)
    return _train(args, settings, lines, state)


def _settings(args: argparse.Namespace) -> tuple[session.Settings, session.Lines]:
    """Return the run's settings: the stored ones on resume, else flags and defaults."""
    given = {k: getattr(args, k) for k in DEFAULTS if getattr(args, k) is not None}
    if args.resume:
        stored = session.read_settings(args.resume)
        lines = _lines(args, stored.charset)
        names = {"lr": "learning_rate"}
        for flag, value in given.items():
            kept = getattr(stored, names.get(flag, flag))
            if value != kept:
                expected = f"{kept}, as in {args.resume}"
                fail(ValueError, "train", f"--{flag}", expected, value)
        if lines.fingerprint != stored.fingerprint:
            expected = f"the lines that {args.resume} was trained on"
            fail(ValueError, "train", "--data", expected, args.data or "the bundled")
        return stored, lines
    lines = _lines(args, "0123456789")
    chosen = DEFAULTS | given
    if not 0 <= chosen["seed"] < 1 << 64:
        fail(ValueError, "train", "--seed", "0 to 2^64 - 1", chosen["seed"])
    config = dataclasses.replace(DIGITS, num_classes=1 + len(lines.charset))
    settings = session.Settings(
        seed=chosen["seed"],
        batch=chosen["batch"],
        steps=chosen["steps"],
        learning_rate=chosen["lr"],
        config=config,
        charset=lines.charset,
        fingerprint=lines.fingerprint,
        arithmetic=chosen["arithmetic"],
    )
    return settings, lines


def _lines(args: argparse.Namespace, charset: str) -> session.Lines:
    if args.data is None and (args.charset or args.invert):
        fail(ValueError, "train", "--data", "a directory for --charset, --invert", None)
    return session.open_lines(
        args.data, args.charset or charset, args.invert, FINAL_LINES
    )


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying in the middle of a step."""
    received: list[int] = []
    handled = (signal.SIGINT, signal.SIGTERM)

    def note(number: int, _frame: object) -> None:
        received.append(number)

    before = [signal.signal(s, note) for s in handled]
    try:
        yield received
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)


def _train(
    args: argparse.Namespace,
    settings: session.Settings,
    lines: session.Lines,
    state: TrainState,
) -> int:
    config, batch = settings.config, settings.batch
    step = make_train_step(
        config,
        session.optimizer_for(settings),
        max_norm=session.MAX_NORM,
        arithmetic=settings.arithmetic,
    )
    forward = predict(config, arithmetic=settings.arithmetic)
    extra = session.to_extra(settings)
    done = int(state.optimizer.step) if state.optimizer is not None else 0
    last = settings.steps
    if args.stop_at is not None:
        last = min(last, args.stop_at)
    _describe(settings, lines, state, done)

    def measure(count: int) -> float:
        held_out = lines.held_out[:count]
        readings = read_lines(
            forward, config, state.params, held_out, width=lines.width, batch=batch
        )
        return error_rate(held_out, readings)

    keep = 1  # an earlier run's file of the same name becomes NAME.1
    saved = -1
    with _interruptible() as received, Progress(last, done, batch) as progress:
        while done < last and not received:
            drawn = lines.batch(settings.seed, done, batch)
            state, metrics = step(state, *drawn)
            done += 1
            loss = float(metrics.loss)
            progress.step(done, loss)
            if done % args.save_every == 0 and done < last:
                save(args.out, state, extra, keep=keep)
                keep, saved = None, done
            if progress.wants_error_rate(done) and done < last:
                progress.error_rate(measure(MEASURED_LINES))
        if saved != done:
            save(args.out, state, extra, keep=keep)
    digest = state_hash(state, extra)
    if received:
        print(f"interrupted at step {done}; saved. Go on with: {_again(args)}")
    else:
        rate = measure(FINAL_LINES)
        count = min(FINAL_LINES, len(lines.held_out))
        print(f"character error rate on {count} held-out lines: {100 * rate:.2f} %")
    print(f"checkpoint {args.out} after step {done} of {settings.steps}")
    print(f"state hash {digest}", flush=True)
    return 130 if received else 0


def _again(args: argparse.Namespace) -> str:
    """Return the command that goes on with an interrupted run."""
    command = ["onemodel", "train", "--resume", args.out, "--out", args.out]
    if args.data is not None:
        command += ["--data", args.data] + ["--invert"] * args.invert
    return shlex.join(command)


def _describe(
    settings: session.Settings, lines: session.Lines, state: TrainState, done: int
) -> None:
    leaves = jax.tree_util.tree_leaves(state.params)
    count = sum(int(np.prod(p.shape)) for p in leaves)
    source = "bundled digit lines"
    if lines.train is not None:
        source = f"{len(lines.train.lines)} lines of your own"
    start = f", from step {done}" if done else ""
    print(
        f"{count:,} parameters, {source}, batch {settings.batch}, "
        f"seed {settings.seed}, {settings.arithmetic} arithmetic{start}"
    )
    print("compiling the step (about a minute on two cores) ...", flush=True)
