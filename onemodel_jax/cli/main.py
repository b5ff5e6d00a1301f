"""Entry point of ``onemodel``: the parser, and one line for every error."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence

COMMANDS = (
    "train",
    "eval",
    "export",
    "inspect",
    "hash",
    "verify",
    "reveal",
    "bench",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every subcommand; each module adds its own."""
    parser = argparse.ArgumentParser(
        prog="onemodel", description="Training in JAX whose every bit is defined."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"onemodel_jax.cli.{name}")
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; 2 for a user's error."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:  # the reader went away: nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"onemodel {args.command}: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(_line(args.command, str(error)), file=sys.stderr)
        return 2


def _line(command: str, error: str) -> str:
    """Return an error with the command before it, once: some begin with its name."""
    named = re.match(rf"{command}( --?\w+)?: ", error)
    return f"onemodel {error}" if named else f"onemodel {command}: {error}"


if __name__ == "__main__":
    sys.exit(main())
