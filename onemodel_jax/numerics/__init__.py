"""Arithmetic whose every bit is defined: operations, functions, lane sums."""

from onemodel_jax.numerics.compare import Closeness, allclose, closeness
from onemodel_jax.numerics.elementary import (
    cos_pi,
    exp,
    exp64,
    log,
    log1p64,
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
from onemodel_jax.numerics.floats import (
    from_bfloat16,
    from_float16,
    saturating_cast,
    to_bfloat16,
    to_float16,
)
from onemodel_jax.numerics.lanes import dot, lane_sum, matmul
from onemodel_jax.numerics.layout import describe
from onemodel_jax.numerics.order import Order, reveal_fusion, reveal_order
from onemodel_jax.numerics.reduce import block_sum, mean, var
from onemodel_jax.numerics.stable import log_softmax, logsumexp, softmax
from onemodel_jax.numerics.widths import reveal_widths

__all__ = [
    "Closeness",
    "Order",
    "add",
    "allclose",
    "block_sum",
    "closeness",
    "cos_pi",
    "describe",
    "div",
    "dot",
    "exp",
    "exp64",
    "fma",
    "from_bfloat16",
    "from_float16",
    "lane_sum",
    "log",
    "log1p64",
    "log64",
    "log_softmax",
    "logsumexp",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "mul",
    "reveal_fusion",
    "reveal_order",
    "reveal_widths",
    "saturating_cast",
    "sigmoid",
    "softmax",
    "sqrt",
    "sub",
    "tanh",
    "to_bfloat16",
    "to_float16",
    "var",
]
