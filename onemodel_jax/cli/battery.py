"""The battery behind ``onemodel verify --arithmetic``: naive code beside the library.

Every row is compiled twice, once as plain jax.numpy and once with the exact
operations, and both are compared with NumPy's IEEE arithmetic on the same operands.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax import numerics as exact
from onemodel_jax._types import EXACT, FAST, Arithmetic
from onemodel_jax.optim import adamw_lerp
from onemodel_jax.reference.lanes import elementary, lanes
from onemodel_jax.reference.lanes.optimizer import adamw_lerp_init, adamw_lerp_step

SIZE = 20_000
F = np.float32


class Row(NamedTuple):
    """One comparison: what is computed, and the share of results that differ."""

    name: str
    naive: float
    ours: int


class Case(NamedTuple):
    """A computation written plainly and exactly, and in NumPy if that is not plain."""

    name: str
    naive: Callable[..., Any]
    ours: Callable[..., Any]
    truth: Callable[..., Any] | None = None
    operands: str = "ordinary"


def _adamw(arithmetic: Arithmetic) -> Callable[..., Any]:
    """Return (parameters, gradients, moment) -> parameters and moments after a step."""

    def step(p: Any, g: Any, m: Any) -> Any:
        optimizer = adamw_lerp(arithmetic=arithmetic)
        state = optimizer.init(OrderedDict(p=p))
        state.slots.update({"exp_avg.0": m, "exp_avg_sq.0": jnp.abs(m)})
        params, after = optimizer.step(OrderedDict(p=p), OrderedDict(p=g), state)
        moments = [after.slots[name] for name in ("exp_avg.0", "exp_avg_sq.0")]
        return jnp.concatenate([params["p"], *moments])

    return step


def _reference_adamw(p: Any, g: Any, m: Any) -> Any:
    state = adamw_lerp_init([p])._replace(m=[m], v=[np.abs(m)])
    options = {"learning_rate": 1e-3, "decayed": [False]}
    params, after = adamw_lerp_step([p], [g], state, **options)
    return np.concatenate([params[0], after.m[0], after.v[0]])


def _cases() -> list[Case]:
    third, big = F(1 / 3), F(1e6)
    add, sub, mul, div = exact.add, exact.sub, exact.mul, exact.div
    return [
        Case(
            "a*b + c",
            lambda x, y, z: x * y + z,
            lambda x, y, z: add(mul(x, y), z),
        ),
        Case(
            "1 - x*x",
            lambda x, y, z: F(1) - x * x,
            lambda x, y, z: sub(F(1), mul(x, x)),
        ),
        Case(
            "(x + 1e6) - 1e6",
            lambda x, y, z: (x + big) - big,
            lambda x, y, z: sub(add(x, big), big),
        ),
        Case(
            "(x * 3) * (1/3)",
            lambda x, y, z: (x * F(3)) * third,
            lambda x, y, z: mul(mul(x, F(3)), third),
        ),
        Case(
            "x / 3",
            lambda x, y, z: x / F(3),
            lambda x, y, z: div(x, F(3)),
        ),
        Case(
            "x / y[0]",
            lambda x, y, z: x / y[0],
            lambda x, y, z: div(x, y[0]),
        ),
        Case(
            "(x / y) / z",
            lambda x, y, z: (x / y) / z,
            lambda x, y, z: div(div(x, y), z),
        ),
        Case(
            "x / sqrt(y)",
            lambda x, y, z: x / jnp.sqrt(jnp.abs(y)),
            lambda x, y, z: div(x, exact.sqrt(jnp.abs(y))),
            lambda x, y, z: x / np.sqrt(np.abs(y)),
        ),
        Case(
            "x + 0 at -0",
            lambda x, y, z: x * F(0) + F(0),
            lambda x, y, z: add(mul(x, F(0)), F(0)),
        ),
        Case(
            "x * y, subnormal",
            lambda x, y, z: x * y,
            lambda x, y, z: mul(x, y),
            operands="tiny",
        ),
        Case(
            "x * y, huge, inf and NaN",
            lambda x, y, z: x * y,
            lambda x, y, z: mul(x, y),
            operands="huge",
        ),
        Case(
            "x*y - z, the same",
            lambda x, y, z: x * y - z,
            lambda x, y, z: sub(mul(x, y), z),
            operands="huge",
        ),
        Case(
            "max(z, 0), z subnormal",
            lambda x, y, z: jnp.maximum(z, F(0)),
            lambda x, y, z: exact.maximum(z, F(0)),
            lambda x, y, z: np.maximum(z, F(0)),
            operands="tiny",
        ),
        Case(
            "exp(x)",
            lambda x, y, z: jnp.exp(x),
            lambda x, y, z: exact.exp(x),
            lambda x, y, z: elementary.exp(x),
        ),
        Case(
            "tanh(x)",
            lambda x, y, z: jnp.tanh(x),
            lambda x, y, z: exact.tanh(x),
            lambda x, y, z: elementary.tanh(x),
        ),
        Case("AdamW step", _adamw(FAST), _adamw(EXACT), _reference_adamw),
        Case(
            "AdamW, subnormal moments",
            _adamw(FAST),
            _adamw(EXACT),
            _reference_adamw,
            operands="tiny",
        ),
        Case(
            "sums of 125",
            lambda x, y, z: jnp.sum(x.reshape(-1, 125), axis=1),
            lambda x, y, z: exact.lane_sum(x.reshape(-1, 125)),
            lambda x, y, z: lanes.lane_sum(x.reshape(-1, 125)),
        ),
        Case(
            "products 80 x 250 x 80",
            lambda x, y, z: x.reshape(80, 250) @ y.reshape(80, 250).T,
            lambda x, y, z: exact.matmul(x.reshape(80, 250), y.reshape(80, 250)),
            lambda x, y, z: lanes.matmul(x.reshape(80, 250), y.reshape(80, 250)),
        ),
    ]


def _operands(kind: str) -> tuple[np.ndarray, ...]:
    """Return x, y, z (SIZE,): normal variates, scaled to the bottom or to the top.

    At the top about a third of the products overflow, and one operand in ten is an
    infinity, a NaN or a zero.
    """
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal((3, SIZE)).astype(F)
    if kind == "tiny":
        scale = F(2.0) ** rng.integers(-70, -60, (2, SIZE)).astype(F)
        x, y, z = x * scale[0], y * scale[1], z * F(2.0**-130)
    if kind == "huge":
        x, y, z = np.ldexp(x, 63), np.ldexp(y, 65), np.ldexp(z, 125)
        special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], F)
        x, y, z = (
            np.where(rng.random(SIZE) < 0.1, rng.choice(special, SIZE), v)
            for v in (x, y, z)
        )
    return x, y, z


def count_different(got: Any, want: Any) -> int:
    """Return how many 32-bit elements differ in their bits; NaN is one class."""
    got, want = np.asarray(got), np.asarray(want)
    same = got.view(np.uint32) == want.view(np.uint32)
    return int(np.sum(~(same | (np.isnan(got) & np.isnan(want)))))


def run_battery() -> list[Row]:
    """Return one row per computation; ``ours`` must be 0 in each."""
    rows = []
    for case in _cases():
        operands = _operands(case.operands)
        with np.errstate(all="ignore"):
            want = np.asarray((case.truth or case.naive)(*operands), F)
        naive, ours = (
            count_different(jax.jit(f)(*operands), want)
            for f in (case.naive, case.ours)
        )
        rows.append(Row(case.name, naive / want.size, ours))
    return rows
