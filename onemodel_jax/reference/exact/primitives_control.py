"""Exact meanings of calls and control flow: everything is run, loops step by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from onemodel_jax.reference.exact.machine import (
    CALLS,
    Machine,
    Refused,
    Rule,
    Value,
    is_exact,
    structural,
)
from onemodel_jax.reference.exact.tensors import tensor

MAX_STEPS = 100_000
"""A while loop that takes more steps is refused."""


def _call(m: Machine, p: Any, x: Sequence[Value], params: Any) -> list[Value]:
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    return m.run(inner, x)


def _cond(m: Machine, p: Any, x: Sequence[Value], params: Any) -> list[Value]:
    index, *rest = x
    branches = params["branches"]
    return m.run(branches[min(max(int(index[()]), 0), len(branches) - 1)], rest)


def _while(m: Machine, p: Any, x: Sequence[Value], params: Any) -> list[Value]:
    split = params["cond_nconsts"]
    both = split + params["body_nconsts"]
    tests, consts, carry = x[:split], x[split:both], list(x[both:])
    for _ in range(MAX_STEPS):
        (go_on,) = m.run(params["cond_jaxpr"], [*tests, *carry])
        if not go_on[()]:
            return carry
        carry = m.run(params["body_jaxpr"], [*consts, *carry])
    raise Refused(f"while loop of more than {MAX_STEPS} steps")


def _scan_sizes(params: Any) -> tuple[int, int]:
    """Numbers of constants and carries, in either spelling of the parameters."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _scan(m: Machine, p: Any, x: Sequence[Value], params: Any) -> list[Value]:
    num_consts, num_carry = _scan_sizes(params)
    consts = x[:num_consts]
    carry = list(x[num_consts : num_consts + num_carry])
    rows = x[num_consts + num_carry :]
    length, jaxpr = params["length"], params["jaxpr"]
    steps = range(length)
    emitted: list[list[Value]] = []
    for k in reversed(steps) if params["reverse"] else steps:
        out = m.run(jaxpr, [*consts, *carry, *(_row(r, k) for r in rows)])
        carry = out[:num_carry]
        emitted.append(out[num_carry:])
    if params["reverse"]:
        emitted.reverse()
    avals = getattr(jaxpr, "jaxpr", jaxpr).outvars[num_carry:]
    stacked = [
        _stack([step[j] for step in emitted], var.aval) for j, var in enumerate(avals)
    ]
    return carry + stacked


def _row(value: Value, k: int) -> Value:
    row = value[k]
    if isinstance(row, np.ndarray) or not is_exact(value):
        return row if hasattr(row, "dtype") else np.asarray(row)
    return tensor((), [row])


def _stack(values: list[Value], aval: Any) -> Value:
    if values:
        return np.stack(values)
    exact = np.dtype(aval.dtype).kind not in "biu"
    return np.empty((0, *aval.shape), object if exact else aval.dtype)


CONTROL: dict[str, Rule] = {
    **{name: structural(_call) for name in CALLS},
    "cond": structural(_cond),
    "while": structural(_while),
    "scan": structural(_scan),
}
