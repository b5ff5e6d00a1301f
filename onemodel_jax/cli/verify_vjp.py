"""``onemodel verify --vjp module:function``: check a VJP exactly, print the report.

Examples come from ``VJP_EXAMPLES`` beside the function or from shapes on the command
line; only shapes and dtypes of floating leaves matter (SPEC, "Lifting").
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from onemodel_jax._checks import describe, fail
from onemodel_jax.cli.target import find
from onemodel_jax.reference.exact.check import check_vjp

NAME = "verify --vjp"
ATTRIBUTE = "VJP_EXAMPLES"


def run(
    target: str,
    *,
    shapes: str | None = None,
    points: str = "fractions",
    opaque: bool = False,
    expectation: str = "adjoint",
    low: float = -3.0,
    high: float = 3.0,
    trials: int = 2,
    seed: int = 0,
) -> int:
    """Check the VJP of a function and print the report.

    Args:
      target: ``module:function``, the function possibly dotted (``Class.method``);
        modules of the current directory are found.
      shapes: float32 arguments, e.g. ``"2,3 3,2"``; ``()`` is a scalar. Default: the
        tuple ``VJP_EXAMPLES`` of the function, or of its module: a mapping from the
        function's name to a tuple, or one tuple.
      points, opaque, expectation, low, high, trials, seed: as for
        :func:`onemodel_jax.reference.exact.check.check_vjp`.

    Returns:
      0 if every law held, 1 if one failed.

    Raises:
      ImportError: there is no such module.
      ValueError: no such function, no examples, shapes or options that mean nothing.
      TypeError: not a function, or one that uses what has no exact meaning.
    """
    module, function = find(NAME, target)
    name = target.partition(":")[2]
    examples = (
        _examples(module, function, name) if shapes is None else parse_shapes(shapes)
    )
    report = check_vjp(
        function,
        *examples,
        points=points,
        opaque=opaque,
        expectation=expectation,
        low=low,
        high=high,
        trials=trials,
        seed=seed,
    )
    print(report)
    return 0 if report.ok else 1


def _examples(module: Any, function: Any, name: str) -> tuple[Any, ...]:
    """Return the declared examples of a function: its own, then its module's."""
    found = getattr(function, ATTRIBUTE, getattr(module, ATTRIBUTE, None))
    if isinstance(found, Mapping):
        found = found.get(name)
    if found is None:
        expected = f"--shapes, or {ATTRIBUTE} of the function or its module"
        fail(ValueError, NAME, "examples", expected, "neither")
    if not isinstance(found, tuple | list):
        fail(TypeError, NAME, ATTRIBUTE, "a tuple of arguments", describe(found))
    return tuple(found)


def parse_shapes(text: str) -> tuple[Any, ...]:
    """Return float32 zeros for ``"2,3 3,2"``; ``()`` is a scalar."""
    shapes = [_parse_shape(word) for word in text.split()]
    if not shapes:
        fail(ValueError, NAME, "--shapes", "at least one shape", repr(text))
    return tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)


def _parse_shape(word: str) -> tuple[int, ...]:
    if word == "()":
        return ()
    sizes = word.split(",")
    if not all(size.isascii() and size.isdigit() for size in sizes):
        fail(ValueError, NAME, "--shapes", "sizes such as 2,3 or ()", repr(word))
    return tuple(map(int, sizes))
