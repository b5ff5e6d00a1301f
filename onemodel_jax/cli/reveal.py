"""``onemodel reveal``: the order in which a function sums, found by probing."""

import argparse
import inspect
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax import numerics
from onemodel_jax._checks import fail
from onemodel_jax.cli.target import find
from onemodel_jax.numerics.order import Order
from onemodel_jax.numerics.trees import draw

DOTS: dict[str, Callable[..., Any]] = {"onemodel.dot": numerics.dot, "jnp.dot": jnp.dot}
SUMS: dict[str, Callable[..., Any]] = {"jnp.sum": jnp.sum, "np.sum": np.sum}
KNOWN = ", ".join([*DOTS, *SUMS])


class Probed(NamedTuple):
    """A function by name: a sum of one vector, or a dot product of two."""

    name: str
    function: Callable[..., Any]
    is_dot: bool


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "reveal",
        help="show the order in which a function sums",
        description=(
            "Find the summation tree of a black box by numerical probing and print "
            f"it. Known names: {KNOWN}; or module:function, a function of one float32 "
            "vector (its sum) or of two (their dot product); modules of the current "
            "directory are found."
        ),
    )
    parser.add_argument(
        "names", nargs="*", help="what to probe (onemodel.dot, jnp.sum)"
    )
    parser.add_argument("-n", type=int, default=32, help="number of terms (32)")
    parser.add_argument(
        "--draw",
        metavar="FILE",
        help="also draw them, by default as .png (needs 'plot')",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print each tree; draw them side by side if asked."""
    if not 1 <= args.n <= 1 << 24:
        fail(ValueError, "reveal", "-n", "1 to 2^24", args.n)
    destination = None if args.draw is None else _check_drawing(args.draw)
    probed = [_resolve(name) for name in args.names or ["onemodel.dot", "jnp.sum"]]
    orders = []
    for function in probed:
        order = _reveal(function, args.n)
        orders.append((function.name, order))
        facts = [f"{args.n} terms", f"depth {order.depth()}"]
        facts += [*_rounding(function, order), *_fusion(function, order)]
        print(", ".join([function.name, *facts]))
        print(order)
        print()
    if destination is not None:
        _draw(orders, destination)
        print(f"drew {destination}")
    return 0


def _resolve(name: str) -> Probed:
    if name in DOTS:
        return Probed(name, jax.jit(lambda x, y: DOTS[name](x, y)), True)
    if name in SUMS:
        function = SUMS[name]
        return Probed(name, jax.jit(function) if name == "jnp.sum" else function, False)
    if ":" not in name:
        fail(ValueError, "reveal", "name", f"{KNOWN} or module:function", repr(name))
    _, function = find("reveal", name)
    return Probed(name, function, _takes_two(function))


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return True if the function has two arguments without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not known of every builtin
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in kinds for p in parameters) == 2


def _sum(probed: Probed, n: int) -> Callable[[np.ndarray], Any]:
    """Return the function as a sum: a dot product with ones."""
    ones = np.ones(n, np.float32)
    return (lambda x: probed.function(x, ones)) if probed.is_dot else probed.function


def _reveal(probed: Probed, n: int) -> Order:
    try:
        return numerics.reveal_order(_sum(probed, n), n)
    except ValueError as error:
        text = str(error).removeprefix("reveal_order: sum_fn: ")
        raise ValueError(f"reveal: {probed.name}: {text}") from error


def _rounding(probed: Probed, order: Order) -> list[str]:
    """Say what the sums are rounded to, as far as it is known."""
    if order.size == 1:
        return []
    if order.accumulator == order.result:
        return [f"every sum rounded to {order.accumulator}"]
    if order.accumulator is not None:
        return [f"every sum rounded to {order.accumulator}, the last to {order.result}"]
    found = numerics.reveal_widths(_sum(probed, order.size), order)
    counts = Counter(width.bits for width in found if width.bits is not None)
    kept = ", ".join(
        f"{'all' if math.isinf(bits) else f'{bits:.0f}'} bits in {count}"
        for bits, count in sorted(counts.items())
    )
    return [
        "neither float32 nor float64 additions give its bits"
        + (f" (kept in additions: {kept})" if kept else "")
    ]


def _fusion(probed: Probed, order: Order) -> list[str]:
    if not probed.is_dot or order.size < 2:
        return []
    fused = sum(numerics.reveal_fusion(probed.function, order))
    if fused:
        return [f"{fused} products fused into their addition"]
    # An addition to zero rounds alike, fused or not: one term a lane shows nothing.
    return ["no product seen fused (the first of a lane, added to 0, cannot show it)"]


def _check_drawing(path: str) -> str:
    """Return the file to write: a name without an ending is a PNG.

    Refuse what cannot be drawn before the work.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise ImportError(
            "reveal: --draw: expected matplotlib, install onemodel-jax[plot]"
        ) from None
    given = path
    if not Path(path).suffix:
        path = f"{path.rstrip('.')}.png"
    if given.endswith(os.sep) or Path(given).is_dir() or Path(path).is_dir():
        fail(ValueError, "reveal", "--draw", "a file, no folder", repr(given))
    if not Path(path).parent.is_dir():
        fail(ValueError, "reveal", "--draw", "a file in a folder that exists", path)
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in kinds:
        expected = f"a name that ends in one of {', '.join(sorted(kinds))}"
        fail(ValueError, "reveal", "--draw", expected, path)
    return path


def _draw(orders: list[tuple[str, Order]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(orders), figsize=(6 * len(orders), 4), squeeze=False
    )
    for (name, order), where in zip(orders, axes[0], strict=True):
        draw(order, where)
        where.set_title(f"{name}, {order.size} terms")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
