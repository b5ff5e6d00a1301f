"""``onemodel hash``: the state hash of a checkpoint."""

import argparse
from typing import Any

from onemodel_jax.checkpoint import CheckpointError, file_hash


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "hash",
        help="print the state hash of a checkpoint",
        description="Check a checkpoint and print the SHA-256 of its state.",
    )
    parser.add_argument("file", help="checkpoint")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the hash."""
    try:
        print(file_hash(args.file))
    except CheckpointError as error:
        raise ValueError(f"{args.file}: {error}") from None
    return 0
