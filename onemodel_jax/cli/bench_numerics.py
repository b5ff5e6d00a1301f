"""``onemodel bench numerics``: exact operations beside naive jax.numpy, in one run.

Each call writes over the results of the call before, which it is given to: what a
fresh buffer costs depends on what ran before, not on the operation.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax import numerics
from onemodel_jax._types import EXACT, FAST, Arithmetic
from onemodel_jax.cli.timing import interleave
from onemodel_jax.optim import adamw_lerp

UNARY = ("sqrt", "exp", "log", "sigmoid", "tanh")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
WARM = 2  # untimed calls


def bench_numerics(size: int, rounds: int) -> int:
    """Print nanoseconds per element of each operation, exact and naive, and ratios."""
    rng = np.random.default_rng(0)
    x, y, z = (
        jnp.asarray(np.abs(rng.standard_normal(size, np.float32))) for _ in range(3)
    )
    print(f"{size:,} float32 elements, {rounds} rounds in turn; ns per element")
    print(f"{'':28} {'exact':>10} {'naive':>10} {'ratio':>7}")
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
    def plain(arithmetic: Arithmetic) -> Callable:
        return lambda *v: function(*v, arithmetic=arithmetic)

    return {arithmetic: plain(arithmetic) for arithmetic in (EXACT, FAST)}


def _adamw(name: str, params: Any, grads: Any, moments: list, rounds: int) -> None:
    size = params.size
    optimizers = {a: adamw_lerp(1e-3, arithmetic=a) for a in (EXACT, FAST)}
    params, grads = OrderedDict(p=params), OrderedDict(p=grads)
    state = optimizers[EXACT].init(params)
    state.slots.update(zip(("exp_avg.0", "exp_avg_sq.0"), moments, strict=True))
    steps = {a: o.step for a, o in optimizers.items()}
    _row(name, steps, (params, grads, state), rounds, size)


class _InPlace:
    """A compiled function that writes its results over those of its last call."""

    def __init__(self, function: Callable, operands: tuple) -> None:
        def run(old: Any, operands: tuple) -> Any:
            return function(*operands)

        self._run = jax.jit(run, donate_argnums=0, keep_unused=True)
        self._operands = operands
        shapes = jax.eval_shape(function, *operands)
        self._last = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def __call__(self) -> None:
        self._last = jax.block_until_ready(self._run(self._last, self._operands))


def _row(
    name: str,
    functions: dict[str, Callable],
    operands: tuple,
    rounds: int,
    size: int | None = None,
) -> None:
    calls = {key: _InPlace(f, operands) for key, f in functions.items()}
    interleave(calls, WARM)
    times = interleave(calls, rounds)
    count = operands[0].size if size is None else size
    exact, naive = (1e9 * float(np.median(times[k])) / count for k in (EXACT, FAST))
    ratio = float(np.median(np.array(times[EXACT]) / np.array(times[FAST])))
    print(f"{name:28} {exact:10.2f} {naive:10.2f} {ratio:7.2f}")
