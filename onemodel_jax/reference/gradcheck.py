"""Check a VJP against central differences, in float64 only.

(f(x + eps) - f(x - eps)) / (2 eps) amplifies the rounding of f by 1 / (2 eps): about
1e-10 in float64, but 0.06 in float32, which would hide any fault. Hence float32 is
refused. Reverse mode, first order.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = (np.floating, np.complexfloating)


@dataclass(frozen=True)
class GradcheckReport:
    """The outcome: true exactly if every entry of the Jacobian is within tolerance.

    Attributes:
      passed: whether all entries agree.
      failures: number of entries that do not.
      entries: number of entries compared.
      input, output: where the worst entry is, as in ``arguments[0]['w'][1, 2]``.
      analytic, numeric: its two values.
      error, allowed: |analytic - numeric|, and atol + rtol |numeric|.
    """

    passed: bool
    failures: int
    entries: int
    input: str
    output: str
    analytic: float
    numeric: float
    error: float
    allowed: float

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        verdict = (
            "passed" if self.passed else f"{self.failures} of {self.entries} wrong"
        )
        return (
            f"{verdict}; worst: d {self.output} / d {self.input}: analytic "
            f"{self.analytic!r}, numeric {self.numeric!r}, error {self.error:.3g}, "
            f"allowed {self.allowed:.3g}"
        )


def _fail(error: type[Exception], argument: str, expected: str, got: object) -> None:
    raise error(f"gradcheck: {argument}: expected {expected}, got {got}")


def _leaves(tree: Any, root: str) -> list[tuple[str, np.ndarray]]:
    """Return (path, array) of the tree's leaves, refusing floats but float64."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    out = []
    for path, leaf in paths:
        name = root + jax.tree_util.keystr(path)
        value = np.array(leaf)  # a copy: entries will be moved
        if value.dtype.kind not in "fciub" or value.dtype.name == "bfloat16":
            _fail(TypeError, name, "an array", type(leaf).__name__)
        if issubclass(value.dtype.type, FLOATS) and value.dtype != np.float64:
            _fail(TypeError, name, "float64", value.dtype)
        out.append((name, value))
    return out


def gradcheck(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> GradcheckReport:
    """Compare every entry of the Jacobian by ``jax.vjp`` with central differences.

    Entries agree where |analytic - numeric| <= atol + rtol |numeric|; a NaN never
    agrees. Integer and boolean leaves are passed on and not differentiated.

    Args:
      function: takes ``*arguments``, returns an array or a pytree of arrays.
      arguments: arrays or pytrees of arrays; floating leaves are float64.
      eps: the step of the difference, positive.
      atol, rtol: not negative.

    Returns:
      A :class:`GradcheckReport`, which is true if all entries agree.

    Raises:
      TypeError: a floating leaf of the arguments or the result is not float64, the
        arguments are no list or tuple, or another parameter is of a wrong type.
      ValueError: nothing to differentiate, or a tolerance or eps out of range.

    Example:
      >>> bool(gradcheck(jnp.sin, [np.array([0.5, 1.0])]))
      True
    """
    if not callable(function):
        _fail(TypeError, "function", "a callable", type(function).__name__)
    if not isinstance(arguments, (list, tuple)):
        expected = "a list or tuple of arguments"
        _fail(TypeError, "arguments", expected, type(arguments).__name__)
    for name, value in (("eps", eps), ("atol", atol), ("rtol", rtol)):
        expected = "a finite number " + ("> 0" if name == "eps" else ">= 0")
        if not isinstance(value, numbers.Real):
            _fail(TypeError, name, expected, type(value).__name__)
        if not 0 <= value < math.inf or (name == "eps" and value == 0):
            _fail(ValueError, name, expected, value)
    leaves = _leaves(tuple(arguments), "arguments")
    moving = [i for i, (_, leaf) in enumerate(leaves) if leaf.dtype == np.float64]
    if not sum(leaves[i][1].size for i in moving):
        _fail(ValueError, "arguments", "at least one float64 number", "none")
    structure = jax.tree_util.tree_structure(tuple(arguments))

    def call(*values: Any) -> Any:
        """The function of the moving leaves alone."""
        full = [jnp.asarray(leaf) for _, leaf in leaves]
        for index, value in zip(moving, values, strict=True):
            full[index] = jnp.asarray(value)
        return function(*jax.tree_util.tree_unflatten(structure, full))

    names = _entry_names([leaves[i] for i in moving])
    with jax.enable_x64(True):
        return _compare(call, [leaves[i][1] for i in moving], names, eps, atol, rtol)


def _compare(
    call: Callable[..., Any],
    values: list[np.ndarray],
    names_in: list[str],
    eps: float,
    atol: float,
    rtol: float,
) -> GradcheckReport:
    results = _leaves(call(*values), "result")
    names_out = _entry_names([r for r in results if r[1].dtype == np.float64])
    if not names_out:
        _fail(ValueError, "result", "at least one float64 number", "none")

    def flat(*values: Any) -> list[Any]:
        leaves = [jnp.asarray(v) for v in jax.tree_util.tree_leaves(call(*values))]
        return [v for v in leaves if v.dtype == np.float64]

    analytic = _analytic(flat, values)
    numeric = _numeric(flat, values, eps)
    with np.errstate(all="ignore"):
        error, allowed = np.abs(analytic - numeric), atol + rtol * np.abs(numeric)
        bad = ~(error <= allowed)
        share = error / np.where(allowed > 0, allowed, 1.0)
    score = np.where(np.isnan(share), np.inf, share)
    score = np.where(bad, score, -1.0) if bad.any() else score
    row, column = np.unravel_index(int(np.argmax(score)), score.shape)
    count = int(np.count_nonzero(bad))
    figures = [float(m[row, column]) for m in (analytic, numeric, error, allowed)]
    names = names_in[int(column)], names_out[int(row)]
    return GradcheckReport(count == 0, count, bad.size, *names, *figures)


def _entry_names(leaves: list[tuple[str, np.ndarray]]) -> list[str]:
    """Return a name for every number of the leaves, in order."""
    names = []
    for path, leaf in leaves:
        for at in np.ndindex(leaf.shape):
            names.append(path + (str(list(at)) if at else ""))
    return names


def _concatenate(parts: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.ravel(np.asarray(p)) for p in parts)])


def _analytic(flat: Callable[..., list[Any]], values: list[np.ndarray]) -> np.ndarray:
    """Return the Jacobian (outputs, inputs), one pull-back a row."""
    outputs, pull = jax.vjp(flat, *(jnp.asarray(v) for v in values))
    rows = []
    for index, output in enumerate(outputs):
        for entry in range(output.size):
            seeds = [np.zeros(o.shape) for o in outputs]
            seeds[index].reshape(-1)[entry] = 1.0
            rows.append(_concatenate(pull([jnp.asarray(s) for s in seeds])))
    return np.stack(rows)


def _numeric(
    flat: Callable[..., list[Any]], values: list[np.ndarray], eps: float
) -> np.ndarray:
    """Return the Jacobian (outputs, inputs), two evaluations a column."""
    columns = []
    for index, value in enumerate(values):
        for entry in range(value.size):
            sides = []
            for step in (eps, -eps):
                moved = [v.copy() for v in values]
                moved[index].reshape(-1)[entry] += step
                sides.append(_concatenate(flat(*moved)))
            columns.append((sides[0] - sides[1]) / (2 * eps))
    return np.stack(columns, axis=1)
