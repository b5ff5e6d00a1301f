"""``onemodel verify``: does this machine give the documented bits?"""

import argparse
import os
import platform
import sys
from importlib.metadata import version
from typing import Any

import jax

from onemodel_jax import data
from onemodel_jax._checks import fail
from onemodel_jax._tree import TrainState
from onemodel_jax._types import EXACT
from onemodel_jax.cli import session, verify_vjp
from onemodel_jax.cli.battery import count_different, run_battery
from onemodel_jax.cli.battery_fuzz import MODES, fuzz
from onemodel_jax.cli.machine import num_threads, own_isa
from onemodel_jax.models.crnn import DIGITS
from onemodel_jax.numerics import engines
from onemodel_jax.numerics.lanes import emulated_only
from onemodel_jax.training import make_train_step

BATCH = 4
FUZZED = 12


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "verify",
        help="check this machine, or a VJP",
        description="Check that this machine gives the documented bits.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--step",
        action="store_true",
        help="one training step with the fast engines equals the emulated one",
    )
    what.add_argument(
        "--arithmetic",
        action="store_true",
        help="what XLA does to naive code here, and that the library holds",
    )
    what.add_argument(
        "--fuzz",
        type=int,
        metavar="COUNT",
        help="random programs of exact operations under four modes, against NumPy",
    )
    what.add_argument(
        "--vjp",
        metavar="MODULE:FUNCTION",
        help="check a hand-written VJP exactly, over the rationals",
    )
    parser.add_argument("--batch", type=int, default=BATCH, help=f"lines ({BATCH})")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    parser.add_argument("--shapes", help="for --vjp: float32 arguments, '2,3 3,2'")
    parser.add_argument(
        "--points",
        choices=("fractions", "field", "logarithms"),
        default="fractions",
        help="for --vjp: field for large functions, logarithms for the log domain",
    )
    parser.add_argument(
        "--opaque",
        action="store_true",
        help="for --vjp: let exp, log, sqrt, tanh be opaque exact functions",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen check; 0 if all is equal, 1 if anything differs."""
    if args.batch < 1:
        fail(ValueError, "verify", "--batch", "at least 1", args.batch)
    if not 0 <= args.seed < 1 << 64:
        fail(ValueError, "verify", "--seed", "0 to 2^64 - 1", args.seed)
    if args.vjp is not None:
        return verify_vjp.run(
            args.vjp,
            shapes=args.shapes,
            points=args.points,
            opaque=args.opaque,
            seed=args.seed,
        )
    if args.arithmetic:
        return verify_arithmetic(args.seed)
    if args.fuzz is not None:
        if args.fuzz < 1:
            fail(ValueError, "verify", "--fuzz", "at least 1", args.fuzz)
        return verify_programs(args.seed, args.fuzz)
    return verify_step(args.seed, args.batch)


def verify_programs(seed: int, count: int) -> int:
    """Run random programs under all modes; print each failure with what repeats it."""
    failures = fuzz(seed, count, progress=_show_progress if count > FUZZED else None)
    for failure in failures:
        print(failure)
    wrong = len({(failure.index, failure.mode) for failure in failures})
    modes = ", ".join(MODES)
    print(f"{count} random programs, seed {seed}, each under {modes}: {wrong} differ")
    return 1 if failures else 0


def _show_progress(done: int) -> None:
    print(f"{done} programs", file=sys.stderr)


def verify_arithmetic(seed: int) -> int:
    """Print the hazards of naive code on this machine, and the library's results."""
    flags = os.environ.get("XLA_FLAGS", "none")
    target = " ".join(filter(None, (platform.machine(), own_isa())))
    print(
        f"jax {jax.__version__}, jaxlib {version('jaxlib')}, {target}, "
        f"{num_threads()} threads, XLA_FLAGS {flags}"
    )
    shape = (1, 80, 250, 80)
    with jax.enable_x64(True):
        engine = next(
            (
                candidate.__name__
                for candidate in (engines.forced, engines.checked)
                if engines.certified(candidate, *shape)
            ),
            "emulated",
        )
    print(f"engine behind products: {engine}")
    rows = run_battery()
    print(f"{'computation':26}{'jax.numpy differs':>19}{'onemodel_jax differs':>22}")
    for row in rows:
        print(f"{row.name:26}{100 * row.naive:17.2f} %{row.ours:22}")
    wrong = sum(row.ours for row in rows)
    print("holds: every bit as IEEE 754 says" if not wrong else f"{wrong} bits wrong")
    return max(verify_programs(seed, FUZZED), 1 if wrong else 0)


def one_step(seed: int, batch: int) -> TrainState:
    """Return the state of the digits model after one exact training step."""
    settings = session.Settings(
        seed, batch, 500, 2e-3, DIGITS, data.CHARSET, 0, arithmetic=EXACT
    )
    step = make_train_step(
        DIGITS, session.optimizer_for(settings), max_norm=session.MAX_NORM
    )
    drawn = data.training_batch(seed, 0, batch)
    return step(session.fresh_state(settings), *drawn)[0]


def verify_step(seed: int, batch: int) -> int:
    """Compare one step with the engines as chosen and with the emulated one only."""
    chosen = one_step(seed, batch)
    with emulated_only():
        emulated = one_step(seed, batch)
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(chosen),
        jax.tree_util.tree_leaves(emulated),
        strict=True,
    )
    tensors = different = 0
    for (path, got), want in pairs:
        tensors += 1
        count = count_different(got, want)
        if count:
            different += 1
            print(f"{jax.tree_util.keystr(path)}: {count} of {got.size} differ")
    print(f"one step, {batch} lines: {tensors} tensors, {different} differ")
    return 1 if different else 0
