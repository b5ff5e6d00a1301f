"""Compile random programs of exact operations and compare every bit with NumPy."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax.cli.battery_programs import Program, draw, expected, generate, traced

MODES = ("jit", "vmap", "scan", "custom_vjp")
BATCH = 3
GROUP = 16  # programs compiled as one


class Failure(NamedTuple):
    """A program with a wrong bit; ``fuzz(seed, 1, first=index)`` repeats it.

    That runs the program alone, under ``mode`` and the three others.
    """

    seed: int
    index: int
    mode: str
    message: str
    program: Program

    def __str__(self) -> str:
        where = f"seed {self.seed}, program {self.index}, {self.mode}"
        return f"{where}: {self.message}\n{self.program}"


def _batched(program: Program, seed: int, index: int) -> list[np.ndarray]:
    """Return the inputs with a leading axis: the program's own, then fresh draws."""
    rng = np.random.default_rng([seed, index, 1])
    fresh = [
        [draw(rng, x.shape, program.dtype) for x in program.inputs]
        for _ in range(BATCH - 1)
    ]
    return [np.stack(v) for v in zip(program.inputs, *fresh, strict=True)]


def _in_custom_vjp(program: Program, inputs: list[Any]) -> list[Any]:
    """Run a program inside the backward pass of a custom VJP.

    The results leave as the cotangents of probes that have their shapes.
    """

    def run(inputs: list[Any], probes: list[Any]) -> Any:
        return jnp.float32(0)

    def forward(inputs: list[Any], probes: list[Any]) -> tuple[Any, Any]:
        return run(inputs, probes), (inputs, traced(program, inputs))

    def backward(residuals: Any, grad: Any) -> Any:
        inputs, first = residuals
        again = traced(program, inputs)
        # Both passes must agree: a forward bit that differs shows as a NaN.
        results = [
            jnp.where(jnp.all(_bits(a) == _bits(b)), a, jnp.nan).astype(a.dtype)
            for a, b in zip(again, first, strict=True)
        ]
        return [jnp.zeros_like(v) for v in inputs], results

    wrapped = jax.custom_vjp(run)
    wrapped.defvjp(forward, backward)
    probes = [jnp.zeros_like(v) for v in traced(program, inputs)]
    return jax.grad(wrapped, argnums=1)(inputs, probes)


def _bits(x: Any) -> Any:
    """Return the bits, NaN as one class."""
    x = jnp.where(x != x, jnp.nan, x)
    integer = jnp.int32 if x.dtype == jnp.float32 else jnp.int64
    return jax.lax.bitcast_convert_type(x, integer)


def _apply(program: Program, mode: str, inputs: list[Any]) -> list[Any]:
    """Return the results of a program on batched inputs, with a leading batch axis."""
    one: Callable[[list[Any]], list[Any]] = lambda v: traced(program, v)  # noqa: E731
    if mode == "vmap":
        return jax.vmap(one)(inputs)
    if mode == "scan":
        return jax.lax.scan(lambda c, v: (c, one(v)), 0, inputs)[1]
    if mode == "custom_vjp":
        out = _in_custom_vjp(program, [v[0] for v in inputs])
    else:
        out = one([v[0] for v in inputs])
    return [jnp.asarray(v)[None] for v in out]


def difference(got: np.ndarray, want: np.ndarray) -> str | None:
    """Return None if the bits are equal (NaN as one class), else a description."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    unsigned = np.uint32 if got.dtype == np.float32 else np.uint64
    a, b = (np.ascontiguousarray(v).reshape(-1) for v in (got, want))
    bad = (a.view(unsigned) != b.view(unsigned)) & ~(np.isnan(a) & np.isnan(b))
    if not bad.any():
        return None
    k = int(np.argmax(bad))
    return f"element {k}: {float(a[k]).hex()} instead of {float(b[k]).hex()}"


def mode_of(index: int, turn: int) -> str:
    """Return the mode of a program in a turn; in turns 0 to 3 it has every one."""
    return MODES[(index // 2 + turn) % len(MODES)]


def _check_group(seed: int, indices: list[int], turn: int) -> list[Failure]:
    programs = [generate(seed, k) for k in indices]
    modes = [mode_of(k, turn) for k in indices]
    inputs = [_batched(p, seed, k) for p, k in zip(programs, indices, strict=True)]

    def run(inputs: list[list[Any]]) -> list[list[Any]]:
        trios = zip(programs, modes, inputs, strict=True)
        return [_apply(p, mode, values) for p, mode, values in trios]

    wide = any(p.dtype == "float64" for p in programs)
    with jax.enable_x64(wide):
        got = jax.jit(run)(inputs)
    failures = []
    for program, mode, values, results, index in zip(
        programs, modes, inputs, got, indices, strict=True
    ):
        for k in range(results[0].shape[0] if results else 0):
            want = expected(program, [v[k] for v in values])
            for result, one in zip(results, want, strict=True):
                message = difference(np.asarray(result)[k], one)
                if message:
                    failures.append(Failure(seed, index, mode, message, program))
    return failures


def fuzz(
    seed: int,
    count: int,
    *,
    first: int = 0,
    turns: Sequence[int] = tuple(range(len(MODES))),
    progress: Callable[[int], None] | None = None,
) -> list[Failure]:
    """Check programs ``first`` to ``first + count - 1`` of a seed.

    Even indices are float32 and run with 64-bit types off, odd ones float64. In turn t
    a program runs under mode (index // 2 + t) mod 4 of jit, vmap, scan and custom VJP;
    the turns of one program are compiled apart. Inputs are hard operands.

    Args:
      seed, first: not negative; together with an index they fix a program.
      count: number of programs.
      turns: by default 0 to 3, each program under all four modes; a single one gives
        each program one mode.
      progress: called with the number of programs done, after all turns of some.

    Returns:
      The failures; empty if every bit is right.
    """
    failures: list[Failure] = []
    for start in range(first, first + count, 2 * GROUP):
        block = range(start, min(start + 2 * GROUP, first + count))
        for parity, turn in itertools.product((0, 1), turns):
            indices = [k for k in block if k % 2 == parity]
            if indices:
                failures += _check_group(seed, indices, turn)
        if progress:
            progress(block.stop - first)
    return failures
