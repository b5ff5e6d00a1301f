"""``onemodel verify``: does this machine give the documented bits?"""

import argparse
from typing import Any

import jax
import numpy as np

from onemodel_jax import data
from onemodel_jax._checks import fail
from onemodel_jax._tree import TrainState
from onemodel_jax._types import EXACT
from onemodel_jax.cli import session
from onemodel_jax.models.crnn import DIGITS
from onemodel_jax.numerics.lanes import emulated_only
from onemodel_jax.training import make_train_step

BATCH = 4


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "verify",
        help="check this machine",
        description="Check that this machine gives the documented bits.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--step",
        action="store_true",
        help="one training step with the fast engines equals the emulated one",
    )
    parser.add_argument("--batch", type=int, default=BATCH, help=f"lines ({BATCH})")
    parser.add_argument("--seed", type=int, default=0, help="of weights and lines (0)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the chosen check; 0 if all is equal, 1 if anything differs."""
    if args.batch < 1:
        fail(ValueError, "verify", "--batch", "at least 1", args.batch)
    return verify_step(args.seed, args.batch)


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
        count = _count_different(np.asarray(got), np.asarray(want))
        if count:
            different += 1
            print(f"{jax.tree_util.keystr(path)}: {count} of {got.size} differ")
    print(f"one step, {batch} lines: {tensors} tensors, {different} differ")
    return 1 if different else 0


def _count_different(got: np.ndarray, want: np.ndarray) -> int:
    same = got.view(np.uint32) == want.view(np.uint32)
    if got.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(want)
    return int(np.sum(~same))
