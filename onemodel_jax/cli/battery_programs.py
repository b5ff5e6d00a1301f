"""Random programs of exact operations, and their values by the NumPy reference.

A program is a list of nodes over a few inputs: exact operations with shared operands,
constants, selects, reshapes, transposes, slices, broadcasts, scans, lane products and
sums. Program ``(seed, index)`` is always the same one. Nothing here compares: see
``battery_fuzz``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax import numerics
from onemodel_jax.reference.lanes import arithmetic, elementary, lanes, reductions

BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
ARITY = {**dict.fromkeys(BINARY, 2), "sqrt": 1, "fma": 3}
FUNCTIONS = {
    "float32": ("exp", "log", "sigmoid", "tanh"),
    "float64": ("exp64", "log64", "cos_pi"),
}
SUMS = {
    "float32": ("matmul", "dot", "lane_sum", "block_sum"),
    "float64": ("block_sum",),
}
TERMS = (5, 16, 17, 35)  # of a sum: within a round of 16 lanes, whole, with a tail
_LARGEST = 96  # elements of one node


class Node(NamedTuple):
    """One step of a program.

    Attributes:
      kind: "input", "constant", "operation", "select", "scan", "sum", or a
        movement: "reshape", "transpose", "slice", "broadcast".
      name: the exact operation of an operation, a scan or a sum.
      operands: earlier nodes.
      parameter: the constant, the mask, the new shape, the slice, or the shapes of
        a sum's operands, which are filled with the nodes' elements in turn.
    """

    kind: str
    name: str
    operands: tuple[int, ...]
    parameter: Any

    def __str__(self) -> str:
        operands = ", ".join(f"v{k}" for k in self.operands)
        shown = self.parameter
        if isinstance(shown, np.ndarray) and shown.dtype.kind == "f":
            shown = [float(v).hex() for v in shown.ravel()]
        extra = "" if shown is None else f" {shown}"
        return f"{self.name or self.kind}({operands}){extra}"


class Program(NamedTuple):
    """A random program; the results are the nodes that no other node reads."""

    dtype: str
    inputs: list[np.ndarray]
    nodes: list[Node]

    @property
    def results(self) -> list[int]:
        read = {k for node in self.nodes for k in node.operands}
        return [k for k in range(len(self.nodes)) if k not in read]

    def __str__(self) -> str:
        return "\n".join(f"v{k} = {node}" for k, node in enumerate(self.nodes))


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return hard operands: all bit patterns, ties, extremes, subnormals, specials."""
    kind = np.dtype(dtype)
    info, n = np.finfo(kind), int(np.prod(shape))
    whole = rng.integers(1 << info.nmant, 2 << info.nmant, n).astype(np.float64)
    sign = rng.choice([-1.0, 1.0], n)
    choice = int(rng.integers(6))
    with np.errstate(all="ignore"):
        if choice == 0:
            raw = rng.integers(0, 256, n * kind.itemsize, np.uint8)
            return raw.view(kind).reshape(shape)
        if choice == 1:
            values = rng.standard_normal(n)
        elif choice == 2:  # sums of such numbers land on ties and beside them
            values = sign * rng.integers(1, 9, n) * 2.0 ** rng.integers(-3, 25, n) / 2
        elif choice == 3:
            end = rng.choice([info.minexp, info.maxexp - 1], n) - info.nmant
            values = sign * np.ldexp(whole, end + rng.integers(-3, 1, n))
        elif choice == 4:
            values = sign * np.ldexp(whole, info.minexp - rng.integers(1, 50, n) - 20)
        else:
            special = [0.0, 1.0, 0.5, 3.0, np.inf, float(info.max), float(info.tiny)]
            values = rng.choice([*special, float(info.smallest_subnormal)], n) * sign
            values = np.where(rng.random(n) < 0.1, np.nan, values)
        return np.asarray(values).astype(kind).reshape(shape)


def _related(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return -x moved by a few units in the last place, for cancellation."""
    bits = x.view(np.int32 if x.dtype == np.float32 else np.int64)
    with np.errstate(all="ignore"):
        return -(bits + rng.integers(-2, 3, x.shape).astype(bits.dtype)).view(x.dtype)


def generate(seed: int, index: int) -> Program:
    """Return program ``index`` of a seed: float32 for even indices, else float64."""
    rng = np.random.default_rng([seed, index])
    dtype = ("float32", "float64")[index % 2]
    rows, columns = ((3, 5), (2, 4), (4, 1), (1, 7))[int(rng.integers(4))]
    shapes = [(rows, columns), (columns,), (rows, 1), ()]
    inputs = [draw(rng, (rows, columns), dtype)]
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.3:
            inputs.append(_related(rng, inputs[0]))
        else:
            inputs.append(draw(rng, shapes[rng.integers(4)], dtype))
    nodes = [Node("input", "", (), k) for k in range(len(inputs))]
    known = [x.shape for x in inputs]
    for _ in range(int(rng.integers(3, 10))):
        node = _random_node(rng, known, dtype)
        known.append(_shape(node, known))
        nodes.append(node)
    return Program(dtype, inputs, nodes)


def _shape(node: Node, known: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of a node by running it on zeros."""
    zeros: list[Any] = [np.zeros(s) for s in known]
    if node.kind == "constant":
        return node.parameter.shape
    operands = [zeros[k] for k in node.operands]
    if node.kind in ("operation", "select"):
        extra = [node.parameter] if node.parameter is not None else []
        return np.broadcast_shapes(*(np.shape(v) for v in [*operands, *extra]))
    if node.kind == "scan":
        return operands[0].shape
    if node.kind == "sum":
        free = (shape[:-1] for shape in node.parameter)
        return () if node.name == "dot" else sum(free, ())
    return _move(node, operands[0], np).shape


def _random_node(
    rng: np.random.Generator, known: Sequence[tuple[int, ...]], dtype: str
) -> Node:
    kinds = ["operation"] * 12 + ["constant", "constant", "select", "scan", "scan"]
    kinds += ["reshape", "transpose", "slice", "broadcast"]
    kinds += ["sum"] * (3 if dtype == "float32" else 1)
    kind = str(rng.choice(kinds))
    first = _pick(rng, known)
    shape = known[first]
    if kind == "constant":
        return Node(kind, "", (), draw(rng, ((), shape)[int(rng.integers(2))], dtype))
    if kind == "select":
        mask = rng.random(shape) < 0.5 if rng.random() < 0.5 else None
        return Node(kind, "", (first, *_partners(rng, known, shape, 1)), mask)
    if kind == "scan" and shape:
        name = str(rng.choice(BINARY))
        start = [k for k, s in enumerate(known) if s in ((), shape[1:])]
        if start:
            return Node(kind, name, (first, int(rng.choice(start))), None)
    if kind == "sum":
        return _random_sum(rng, known, first, dtype)
    if kind == "reshape":
        new = [(-1,), (*shape, 1), (1, *shape)][int(rng.integers(3))]
        return Node(kind, "", (first,), new)
    if kind == "slice" and shape:
        step = int(rng.choice([-1, 1, 2]))
        return Node(kind, "", (first,), slice(None, None, step))
    if kind == "broadcast" and 2 * int(np.prod(shape)) <= _LARGEST:
        return Node(kind, "", (first,), (2, *shape))
    if kind == "transpose":
        return Node(kind, "", (first,), None)
    names = [*ARITY, *ARITY, *FUNCTIONS[dtype]]
    name = str(rng.choice(names))
    more = _partners(rng, known, shape, ARITY.get(name, 1) - 1)
    return Node("operation", name, (first, *more), None)


def _random_sum(
    rng: np.random.Generator, known: Sequence[Any], first: int, dtype: str
) -> Node:
    name = str(rng.choice(SUMS[dtype]))
    terms, rows = int(rng.choice(TERMS)), int(rng.choice([1, 3]))
    if name == "matmul":
        columns = int(rng.choice([1, 2, 17])) if rows == 1 else 2
        shapes = ((rows, terms), (columns, terms))
    elif name == "dot":
        shapes = ((terms,), (terms,))
    else:
        shapes = ((rows, terms),)
    operands = (first, _pick(rng, known))[: len(shapes)]
    return Node("sum", name, operands, shapes)


def _pick(rng: np.random.Generator, known: Sequence[Any]) -> int:
    """Pick a node, later ones more often."""
    return int(max(rng.integers(len(known)), rng.integers(len(known))))


def _partners(
    rng: np.random.Generator,
    known: Sequence[tuple[int, ...]],
    shape: tuple[int, ...],
    count: int,
) -> list[int]:
    """Pick nodes that broadcast with ``shape`` and each other; one may come twice."""
    chosen: list[int] = []
    while len(chosen) < count:
        fits = []
        for k, other in enumerate(known):
            try:
                joined = np.broadcast_shapes(shape, other)
            except ValueError:
                continue
            if np.prod(joined) <= _LARGEST:
                fits.append(k)
        chosen.append(int(rng.choice(fits)))
        shape = np.broadcast_shapes(shape, known[chosen[-1]])
    return chosen


def _move(node: Node, x: Any, module: Any) -> Any:
    if node.kind == "reshape":
        return x.reshape(node.parameter)
    if node.kind == "transpose":
        return x.T
    if node.kind == "slice":
        return x[node.parameter]
    return module.broadcast_to(x, node.parameter)


def _run(
    program: Program,
    inputs: Sequence[Any],
    operation: Callable[..., Any],
    scan: Callable[..., Any],
    module: Any,
) -> list[Any]:
    """Evaluate a program and return its results; ``module`` is numpy or jax.numpy."""
    values: list[Any] = []
    for node in program.nodes:
        operands = [values[k] for k in node.operands]
        if node.kind == "input":
            value = inputs[node.parameter]
        elif node.kind == "constant":
            value = node.parameter
        elif node.kind == "operation":
            value = operation(node.name, *operands)
        elif node.kind == "sum":
            filled = map(module.resize, operands, node.parameter)
            value = operation(node.name, *filled)
        elif node.kind == "select":
            x, y = operands
            mask = x != x if node.parameter is None else node.parameter
            value = module.where(mask, x, y)
        elif node.kind == "scan":
            value = scan(node.name, *operands)
        else:
            value = _move(node, operands[0], module)
        values.append(value)
    return [values[k] for k in program.results]


def _numpy_operation(name: str, *operands: Any) -> np.ndarray:
    if name in SUMS["float32"]:
        module = reductions if name == "block_sum" else lanes
        return getattr(module, name)(*operands)
    module = arithmetic if name in ARITY else elementary
    return getattr(module, name)(*np.broadcast_arrays(*operands))


def _numpy_scan(name: str, x: np.ndarray, start: np.ndarray) -> np.ndarray:
    carry, rows = np.broadcast_to(start, x.shape[1:]), []
    for row in x:
        carry = _numpy_operation(name, carry, row)
        rows.append(carry)
    return np.stack(rows) if rows else x


def expected(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the results by the NumPy reference."""
    with np.errstate(all="ignore"):
        return [
            np.asarray(v)
            for v in _run(program, inputs, _numpy_operation, _numpy_scan, np)
        ]


def _jax_operation(name: str, *operands: Any) -> Any:
    if name == "block_sum":
        return numerics.block_sum(*operands, axis=-1)
    return getattr(numerics, name)(*operands)


def _jax_scan(name: str, x: Any, start: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        carry = _jax_operation(name, carry, row)
        return carry, carry

    first = jnp.broadcast_to(jnp.asarray(start), x.shape[1:])
    return jax.lax.scan(step, first, jnp.asarray(x))[1]


def traced(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """Return the results by the exact operations, for use under a transformation."""
    return _run(program, inputs, _jax_operation, _jax_scan, jnp)
