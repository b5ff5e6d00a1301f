"""Arithmetic whose every bit is defined: operations, functions, lane sums."""

from onemodel_jax.numerics.elementary import (
    cos_pi,
    exp,
    exp64,
    log,
    log64,
    sigmoid,
    tanh,
)
from onemodel_jax.numerics.exact import (
    add,
    div,
    fma,
    maximum,
    minimum,
    mul,
    sqrt,
    sub,
)
from onemodel_jax.numerics.lanes import dot, lane_sum, matmul

__all__ = [
    "add",
    "cos_pi",
    "div",
    "dot",
    "exp",
    "exp64",
    "fma",
    "lane_sum",
    "log",
    "log64",
    "matmul",
    "maximum",
    "minimum",
    "mul",
    "sigmoid",
    "sqrt",
    "sub",
    "tanh",
]
