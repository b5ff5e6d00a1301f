"""``onemodel reveal``: the order in which a function sums, found by probing."""

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax import numerics
from onemodel_jax._checks import fail
from onemodel_jax.numerics.trees import Order, draw

Vector = np.ndarray


def _dots() -> dict[str, Callable[[Vector, Vector], Any]]:
    """Return the dot products that the command knows by name."""
    return {
        "onemodel.dot": jax.jit(lambda x, y: numerics.dot(x, y)),
        "jnp.dot": jax.jit(lambda x, y: jnp.dot(x, y)),
    }


def _sums() -> dict[str, Callable[[Vector], Any]]:
    """Return the sums that the command knows by name."""
    return {"jnp.sum": jax.jit(lambda x: jnp.sum(x)), "np.sum": np.sum}


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    names = ", ".join([*_dots(), *_sums()])
    parser = commands.add_parser(
        "reveal",
        help="show the order in which a function sums",
        description=(
            "Find the summation tree of a black box by numerical probing and print it. "
            f"Known names: {names}; or module:function of one float32 vector."
        ),
    )
    parser.add_argument(
        "names", nargs="*", help="what to probe (onemodel.dot, jnp.sum)"
    )
    parser.add_argument("-n", type=int, default=32, help="number of terms (32)")
    parser.add_argument("--draw", metavar="FILE", help="also draw them (needs 'plot')")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print each tree; draw them side by side if asked."""
    names = args.names or ["onemodel.dot", "jnp.sum"]
    orders = [(name, _reveal(name, args.n)) for name in names]
    for name, order in orders:
        print(f"{name}, {args.n} terms, depth {order.depth()}{_fusion(name, order)}")
        print(order)
        print()
    if args.draw:
        _draw(orders, args.draw)
        print(f"drew {args.draw}")
    return 0


def _reveal(name: str, n: int) -> Order:
    ones = np.ones(n, np.float32) if n > 0 else np.ones(0, np.float32)
    dots = _dots()
    if name in dots:
        return numerics.reveal_order(lambda x: dots[name](x, ones), n)
    known = _sums().get(name)
    if known is not None:
        return numerics.reveal_order(known, n)
    function = _import(name)
    try:
        return numerics.reveal_order(function, n)
    except (LookupError, RuntimeError, ArithmeticError) as error:
        fail(ValueError, "reveal", name, f"a sum of {n} numbers", repr(error))


def _fusion(name: str, order: Order) -> str:
    dots = _dots()
    if name not in dots or order.size < 2:
        return ""
    fused = sum(numerics.reveal_fusion(dots[name], order))
    return f", {fused} products fused into their addition"


def _import(name: str) -> Callable[[Vector], Any]:
    module, _, function = name.partition(":")
    if not function:
        known = ", ".join([*_dots(), *_sums()])
        fail(ValueError, "reveal", "name", f"{known} or module:function", name)
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    except SyntaxError as error:
        fail(ValueError, "reveal", "name", "a module of Python", error)
    for part in function.split("."):
        if not hasattr(found, part):
            fail(ValueError, "reveal", "name", f"a function of {module}", function)
        found = getattr(found, part)
    return found


def _draw(orders: list[tuple[str, Order]], path: str) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise ImportError(
            "reveal: --draw: expected matplotlib, install onemodel-jax[plot]"
        ) from None
    figure, axes = pyplot.subplots(
        1, len(orders), figsize=(6 * len(orders), 4), squeeze=False
    )
    for (name, order), where in zip(orders, axes[0], strict=True):
        draw(order, where)
        where.set_title(f"{name}, {order.size} terms")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
