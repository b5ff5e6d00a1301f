"""``onemodel eval``: measure a trained recognizer on held-out lines."""

import argparse
from typing import Any

from onemodel_jax import data
from onemodel_jax._checks import fail
from onemodel_jax.cli import session
from onemodel_jax.cli.evaluation import error_rate, read_lines
from onemodel_jax.training import predict

BATCH = 16


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "eval",
        help="measure a recognizer on held-out lines",
        description="Read held-out lines with a checkpoint's recognizer.",
    )
    parser.add_argument("file", help="training checkpoint or model container")
    parser.add_argument("--lines", type=int, default=256, help="how many (256)")
    parser.add_argument("--show", type=int, default=5, help="readings shown (5)")
    parser.add_argument("--data", metavar="DIR", help="read ALL lines of a directory")
    parser.add_argument(
        "--invert", action="store_true", help="your lines are dark ink on light"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print readings, error rate and line accuracy."""
    if args.lines < 1:
        fail(ValueError, "eval", "--lines", "at least 1", args.lines)
    model = session.load_recognizer(args.file)
    if args.data is None:
        lines, width = data.evaluation_lines(args.lines), data.LINE_WIDTH
    else:
        own = data.load_lines(args.data, charset=model.charset, invert=args.invert)
        lines, width = list(own.lines), own.width
    readings = read_lines(
        predict(model.config),
        model.config,
        model.params,
        lines,
        width=width,
        batch=BATCH,
    )
    pairs = list(zip(lines, readings, strict=True))
    for line, reading in pairs[: args.show]:
        truth = data.line_text(line.labels, model.charset)
        read = data.line_text(reading, model.charset)
        print(f"{truth:>12}  read as  {read}{'' if truth == read else '   <-'}")
    whole = sum(list(line.labels) == list(reading) for line, reading in pairs)
    rate = error_rate(lines, readings)
    print(f"{len(lines)} lines, {whole} read without a fault")
    print(f"character error rate {100 * rate:.2f} %")
    return 0
