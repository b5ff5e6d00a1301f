"""``onemodel bench numerics``: exact operations beside naive jax.numpy, in one run."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax import numerics
from onemodel_jax._types import EXACT, FAST, Arithmetic
from onemodel_jax.cli.timing import interleave
from onemodel_jax.optim import adamw_lerp

UNARY = ("sqrt", "exp", "log", "sigmoid", "tanh")
BINARY = ("add", "sub", "mul", "div", "maximum")


def bench_numerics(size: int, rounds: int) -> int:
    """Print nanoseconds per element of each operation, exact and naive, and ratios."""
    rng = np.random.default_rng(0)
    x, y, z = (
        jnp.asarray(np.abs(rng.standard_normal(size, np.float32))) for _ in range(3)
    )
    print(f"{size:,} float32 elements, {rounds} rounds in turn; ns per element")
    print(f"{'':34}{'exact':>8}{'naive':>8}{'ratio':>8}")
    for name in UNARY:
        _row(name, _pair(getattr(numerics, name)), (x,), rounds)
    for name in BINARY:
        _row(name, _pair(getattr(numerics, name)), (x, y), rounds)
    _row("fma", _pair(numerics.fma), (x, y, z), rounds)
    moments = [jnp.asarray(rng.standard_normal(size, np.float32)), z]
    _adamw("AdamW step", x, y, moments, rounds)
    for every in (10_000, 1):
        chosen = jnp.arange(size) % every == 0
        tiny = jnp.where(chosen, jnp.float32(1e-40), moments[0])
        _adamw(f"AdamW, 1 in {every:,} subnormal", x, y, [tiny, z], rounds)
    return 0


def _pair(function: Callable) -> dict[str, Callable]:
    def compiled(arithmetic: Arithmetic) -> Callable:
        return jax.jit(lambda *v: function(*v, arithmetic=arithmetic))

    return {arithmetic: compiled(arithmetic) for arithmetic in (EXACT, FAST)}


def _adamw(name: str, params: Any, grads: Any, moments: list, rounds: int) -> None:
    size = params.size
    optimizers = {a: adamw_lerp(1e-3, arithmetic=a) for a in (EXACT, FAST)}
    params, grads = OrderedDict(p=params), OrderedDict(p=grads)
    state = optimizers[EXACT].init(params)
    state.slots.update(zip(("exp_avg.0", "exp_avg_sq.0"), moments, strict=True))
    runs = {a: jax.jit(o.step) for a, o in optimizers.items()}
    _row(name, runs, (params, grads, state), rounds, size)


def _wait_for(run: Callable, operands: tuple) -> None:
    jax.block_until_ready(run(*operands))


def _row(
    name: str,
    runs: dict[str, Callable],
    operands: tuple,
    rounds: int,
    size: int | None = None,
) -> None:
    calls = {key: partial(_wait_for, run, operands) for key, run in runs.items()}
    for call in calls.values():
        call()
    times = interleave(calls, rounds)
    count = operands[0].size if size is None else size
    exact, naive = (1e9 * float(np.median(times[k])) / count for k in (EXACT, FAST))
    ratio = float(np.median(np.array(times[EXACT]) / np.array(times[FAST])))
    print(f"{name:34}{exact:8.2f}{naive:8.2f}{ratio:8.2f}")
