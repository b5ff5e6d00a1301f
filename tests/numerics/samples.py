"""Operations under test and the operands they are tried on."""

import functools
import os
import re
from pathlib import Path

import jax
import numpy as np

from onemodel_jax import numerics
from onemodel_jax.reference.lanes import arithmetic as reference
from tests.support import hard_values, special_values

ARITY = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "sqrt": 1,
    "fma": 3,
    "maximum": 2,
    "minimum": 2,
}
WIDTHS = {"float32": np.float32, "float64": np.float64}
CASES = [(name, width) for name in ARITY for width in WIDTHS]


def _allowed(flag, *limits):
    """Whether this process may use a CPU feature that the ISA ``limits`` exclude."""
    pattern = f"xla_cpu_max_isa=({'|'.join(limits)})( |$)"
    cpu = Path("/proc/cpuinfo")
    barred = re.search(pattern, os.environ.get("XLA_FLAGS", ""))
    return not barred and cpu.exists() and f" {flag} " in cpu.read_text()


HAS_AVX = _allowed("avx", "SSE4_2")
HAS_FMA = _allowed("fma", "SSE4_2", "AVX")


def exact(name, *operands):
    """Run an exact operation in a context where float64 arguments stay float64."""
    with jax.enable_x64(True):
        return jax.jit(getattr(numerics, name))(*operands)


@functools.cache
def special_tuples(name, width):
    """Every tuple of special values, as flat arrays, one an operand."""
    values = special_values(WIDTHS[width])
    grids = np.meshgrid(*[values] * ARITY[name], indexing="ij")
    return [g.ravel() for g in grids]


@np.errstate(all="ignore")
def near_edges(rng, n, dtype):
    """Operands whose products and quotients crowd the bottom and the top."""
    info = np.finfo(dtype)
    low, high = info.minexp, info.maxexp
    total = np.where(rng.random(n) < 0.7, low, high - 1) + rng.integers(-4, 5, n)
    first = rng.integers(low // 2, high // 2, n)
    second = np.clip(total - first, low, high - 1)
    parts = [1 + rng.random(n) for _ in range(2)]
    short = rng.random(n) < 0.3  # few bits: exact ties at the edge
    parts = [np.where(short, np.round(p * 16) / 16, p) for p in parts]
    x, y = (np.ldexp(p, e) for p, e in zip(parts, (first, second), strict=True))
    y = np.where(rng.random(n) < 0.5, y, 1 / y)
    sign = rng.choice([-1.0, 1.0], n)
    return (x * sign).astype(dtype), y.astype(dtype)


def cancelling(rng, x, y):
    """Addends next to -(x y): the sum is the product's rounding error, or a few ulp."""
    with np.errstate(all="ignore"):
        near = -(x * y)
        moved = near + np.spacing(near) * rng.integers(-2, 3, x.shape).astype(x.dtype)
    return np.where(rng.random(x.shape) < 0.5, near, moved).astype(x.dtype)


def near_ties(rng, n, dtype):
    """Pairs whose sums lie on or one unit beside the middle of two neighbours."""
    bits = np.finfo(dtype).nmant
    whole = rng.integers(1 << bits, 1 << (bits + 1), n).astype(dtype)
    half = (rng.integers(0, 4, n) + 0.5).astype(dtype)
    tail = rng.choice([-1, 0, 1], n) * np.ldexp(1.0, -rng.integers(3, bits, n))
    return whole, (half + tail.astype(dtype)).astype(dtype)


def hard_tuple(name, width, n, seed=0):
    """Operands of one operation: special tuples, then n hard ones."""
    rng = np.random.default_rng([seed, ARITY[name]])
    dtype = WIDTHS[width]
    x, y, z = (hard_values(rng, n, dtype) for _ in range(3))
    quarter = n // 4
    x[:quarter], y[:quarter] = near_edges(rng, quarter, dtype)
    ties = slice(quarter, 2 * quarter)
    x[ties], y[ties] = near_ties(rng, quarter, dtype)
    if name == "fma":
        near = slice(0, 3 * quarter, 2)
        z[near] = cancelling(rng, x[near], y[near])
    elif name in ("add", "sub"):
        third = slice(2 * quarter, 3 * quarter)
        y[third] = cancelling(rng, x[third], np.ones_like(x[third]))
    picked = [x, y, z][: ARITY[name]]
    special = special_tuples(name, width)
    return [np.concatenate(pair) for pair in zip(special, picked, strict=True)]


@np.errstate(all="ignore")
def expected(name, *operands):
    """Return the reference's result, operands broadcast."""
    return getattr(reference, name)(*np.broadcast_arrays(*operands))
