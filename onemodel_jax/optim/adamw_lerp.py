"""AdamW as the recognizer uses it: lerp form of the first moment, running powers."""

from collections import OrderedDict
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax._checks import check_arithmetic, fail
from onemodel_jax._tree import OptimizerState, Params, join, split
from onemodel_jax._types import EXACT, Arithmetic, Array
from onemodel_jax.numerics.convert import narrow, widen
from onemodel_jax.numerics.exact import div, mul, sqrt, sub
from onemodel_jax.numerics.guarded import Operations, chain
from onemodel_jax.optim.optimizer import (
    Optimizer,
    Schedule,
    Slots,
    check_float32,
    check_grads,
    check_range,
    check_state,
    from_words,
    initial_rate,
    rate_of,
    words_of,
)


def decays_matrices(tensor: Array) -> bool:
    """Return True for tensors of rank 2 and more: weights decay, biases do not."""
    return tensor.ndim >= 2


def _update(
    o: Operations,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    rest1: Array,
    b2: Array,
    rest2: Array,
    step_size: Array,
    sqrt_c2: Array,
    eps: Array,
    decay: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return the new (p, m, v) of flat tensors; without ``decay`` p does not decay."""

    def first(m: Array, g: Array) -> Array:
        return o.add(m, o.mul(rest1, o.sub(g, m)))

    def second(v: Array, g: Array) -> Array:
        return o.add(o.mul(v, b2), o.mul(rest2, o.mul(g, g)))

    m, v = o.stage(first, m, g), o.stage(second, v, g)
    ratio = o.div(m, o.add(o.div(o.sqrt(v), sqrt_c2), eps))
    p = p if decay is None else o.mul(p, decay)
    return o.sub(p, o.mul(step_size, ratio)), m, v


def _slots(leaves: list[Array]) -> Slots:
    slots: Slots = OrderedDict()
    for slot in ("exp_avg", "exp_avg_sq"):
        for i, leaf in enumerate(leaves):
            slots[f"{slot}.{i}"] = leaf.shape, "float32"
    for slot in ("b1_power", "b2_power"):
        slots[slot] = (2,), "int32"
    return slots


def adamw_lerp(
    learning_rate: float | Schedule = 1e-3,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    decays: Callable[[Array], bool] = decays_matrices,
    arithmetic: Arithmetic = EXACT,
) -> Optimizer:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2), bit for bit the recognizer's.

    Rounding (SPEC, "AdamW, lerp form"): scalars in binary64, each rounded once to
    binary32; then, per element, every operation rounded separately in binary32:

      c1 = 1 - b1^t, c2 = 1 - b2^t             (running products)
      step_size = lr / c1, sqrt_c2 = sqrt(c2)
      p = p (1 - lr wd)                        (tensors that decay)
      m = m + (1 - b1)(g - m)
      v = v b2 + (1 - b2)(g g)
      p = p - step_size (m / (sqrt(v) / sqrt_c2 + eps))

    Args:
      learning_rate: float, or a schedule from the () int32 step to a () float32 rate.
      b1, b2: decay rates in [0, 1), binary64.
      eps: rounded to binary32, where it must be above 0: with 0 a zero gradient would
        give 0/0.
      weight_decay: at least 0, binary64.
      decays: which tensors decay; by default those of rank 2 and more.
      arithmetic: "exact" or "fast".

    Returns:
      Optimizer whose state has the slots ``exp_avg.i``, ``exp_avg_sq.i`` (float32,
      i in parameter order) and ``b1_power``, ``b2_power`` ((2,) int32, the words of
      the binary64 running products).

    Raises:
      TypeError: a hyper-parameter is not a number; in ``init`` and ``step``: a
        parameter, a gradient or a schedule's rate is not float32, or the state has
        another dtype.
      ValueError: a hyper-parameter is out of range; in ``step``: gradients or state
        do not fit the parameters.
    """
    name = "adamw_lerp"
    check_arithmetic(name, arithmetic)
    if not np.float32(check_range(name, "eps", eps, 0.0, float("inf"))) > 0:
        fail(ValueError, name, "eps", "above 0 in float32", repr(eps))
    settings = (
        ("b1", check_range(name, "b1", b1, 0.0, 1.0)),
        ("b2", check_range(name, "b2", b2, 0.0, 1.0)),
        ("eps", float(eps)),
        (
            "weight_decay",
            check_range(name, "weight_decay", weight_decay, 0.0, float("inf")),
        ),
    )

    def init(params: Params) -> OptimizerState:
        check_float32(name, "params", params)
        leaves = jax.tree_util.tree_leaves(params)
        slots: Params = OrderedDict()
        for slot, (shape, dtype) in _slots(leaves).items():
            slots[slot] = jnp.zeros(shape, dtype)
        for slot in ("b1_power", "b2_power"):  # two arrays: a donated state owns both
            with jax.enable_x64(True):
                slots[slot] = words_of(jnp.ones((), jnp.float64))
        rate = initial_rate(name, learning_rate)
        return OptimizerState(jnp.zeros((), jnp.int32), rate, slots, name, settings)

    def scalars(rate: Array, slots: Params) -> tuple[list[Array], Params]:
        """Return what _update takes after the tensors, and the new powers."""
        with jax.enable_x64(True):
            lr = widen(rate)
            powers = {
                "b1_power": mul(from_words(slots["b1_power"]), b1),
                "b2_power": mul(from_words(slots["b2_power"]), b2),
            }
            c1, c2 = (sub(1.0, p) for p in powers.values())
            step_size, decay = div(lr, c1), sub(1.0, mul(lr, weight_decay))
            wide = (1.0 - b1, b2, 1.0 - b2, step_size, sqrt(c2), eps, decay)
            rounded = [narrow(jnp.asarray(value, jnp.float64)) for value in wide]
            return rounded, OrderedDict((k, words_of(p)) for k, p in powers.items())

    def step(
        params: Params, grads: Params, state: OptimizerState
    ) -> tuple[Params, OptimizerState]:
        check_float32(name, "params", params)
        check_grads(name, params, grads)
        leaves, tree = jax.tree_util.tree_flatten(params)
        check_state(name, state, _slots(leaves))
        rate = rate_of(name, learning_rate, state)
        s, powers = scalars(rate, state.slots)
        rows = list(
            zip(
                leaves,
                jax.tree_util.tree_leaves(grads),
                (state.slots[f"exp_avg.{i}"] for i in range(len(leaves))),
                (state.slots[f"exp_avg_sq.{i}"] for i in range(len(leaves))),
                strict=True,
            )
        )
        # Element-wise, so tensors may be laid end to end: one kernel per group.
        new: list = [None] * len(leaves)
        for decay in (True, False):
            chosen = [i for i, p in enumerate(leaves) if decays(p) == decay]
            if chosen:
                flat = [join([rows[i][k] for i in chosen]) for k in range(4)]
                used = s if decay else s[:-1]
                parts = [
                    split(x, [leaves[i].shape for i in chosen])
                    for x in chain(_update, [*flat, *used], arithmetic=arithmetic)
                ]
                for i, triple in zip(chosen, zip(*parts, strict=True), strict=True):
                    new[i] = triple
        names = ("exp_avg", "exp_avg_sq")
        first, second = (
            OrderedDict((f"{name}.{i}", row[k]) for i, row in enumerate(new))
            for k, name in enumerate(names, 1)
        )
        slots = OrderedDict([*first.items(), *second.items(), *powers.items()])
        after = OptimizerState(state.step + 1, rate, slots, name, settings)
        return jax.tree_util.tree_unflatten(tree, [row[0] for row in new]), after

    return Optimizer(init, step)
