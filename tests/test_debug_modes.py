"""Everything public runs under JAX's strict promotion and under its search for NaN."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax import losses, numerics, ops, optim

F, D = np.float32, np.float64
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5)).astype(F)
Y = np.abs(X) + F(0.1)
WIDE = Y.astype(D)
BITS = np.arange(0, 0x7C00, 1000, dtype=np.uint16)
LABELS = np.array([[1, 2], [3, 1]], np.int32)


def ones(*shapes):
    return [np.ones(shape, F) for shape in shapes]


def pulled(function):
    """Return the function of a value and of all gradients."""

    def run(*operands):
        value, pull = jax.vjp(function, *operands)
        return value, pull(jnp.ones_like(value))

    return run


def one_sum(x):
    return x.sum(dtype=F)


def step(arithmetic):
    optimizer = optim.adamw_lerp(0.1, arithmetic=arithmetic)

    def run(params, grads):
        grads, _ = optim.clip_by_dots(grads, 1.0, arithmetic=arithmetic)
        return optimizer.step(params, grads, optimizer.init(params))

    return run


BOTH = {"add": 2, "sub": 2, "mul": 2, "div": 2, "maximum": 2, "minimum": 2}
BOTH |= {"sqrt": 1, "fma": 3, "to_float16": 1, "to_bfloat16": 1}
REDUCTIONS = ["block_sum", "mean", "var", "softmax", "log_softmax", "logsumexp"]

#: Traceable: a name to a function and its operands.
TRACED = {}
for name, count in BOTH.items():
    TRACED[name] = getattr(numerics, name), [Y] * count
    TRACED[f"{name} of float64"] = getattr(numerics, name), [WIDE] * count
for name in REDUCTIONS:
    TRACED[name] = pulled(getattr(numerics, name)), [X]
    TRACED[f"{name} of float64"] = pulled(getattr(numerics, name)), [WIDE]
for name in ("exp", "log", "sigmoid", "tanh", "lane_sum"):
    TRACED[name] = getattr(numerics, name), [Y]
for name in ("exp64", "log64", "log1p64", "cos_pi"):
    TRACED[name] = getattr(numerics, name), [WIDE]
for name in ("from_float16", "from_bfloat16"):
    TRACED[name] = getattr(numerics, name), [BITS]
for name, x in [("saturating_cast", Y), ("saturating_cast of float64", WIDE)]:
    TRACED[name] = lambda x: numerics.saturating_cast(x, "uint8"), [x]
GATES = ones((8, 5), (8, 2), (8,))
TRACED |= {
    "dot": (numerics.dot, [X[0], Y[0]]),
    "matmul": (numerics.matmul, [X, Y]),
    "linear": (pulled(ops.linear), ones((2, 4, 5), (3, 5), (3,))),
    "conv_relu_pool": (
        pulled(lambda *v: ops.conv_relu_pool(*v, pool=(2, 2))),
        ones((1, 4, 6, 2), (3, 32), (3,)),
    ),
    "lstm": (pulled(ops.lstm), [*ones((2, 3, 5)), *GATES]),
    "bilstm": (
        pulled(ops.bilstm),
        [*ones((2, 3, 5)), ops.LstmParams(*GATES), ops.LstmParams(*GATES)],
    ),
    "ctc_loss": (
        pulled(lambda z: losses.ctc_loss(z, LABELS, reduction="mean")),
        ones((2, 5, 4)),
    ),
    "bce_with_logits": (pulled(losses.bce_with_logits), [X, Y]),
    "bce_with_logits of float64": (pulled(losses.bce_with_logits), [WIDE, WIDE]),
    "step": (step("exact"), [OrderedDict(w=X, b=X[0])] * 2),
    "fast step": (step("fast"), [OrderedDict(w=X, b=X[0])] * 2),
}

#: On the host.
HOST = {
    "describe": lambda: numerics.describe(F(1.5)),
    "allclose": lambda: numerics.allclose(X, X),
    "closeness": lambda: numerics.closeness(X, X),
    "reveal_order": lambda: numerics.reveal_order(one_sum, 3),
    "reveal_fusion": lambda: numerics.reveal_fusion(
        lambda x, y: (x * y).sum(), numerics.reveal_order(one_sum, 3)
    ),
    "reveal_widths": lambda: numerics.reveal_widths(
        one_sum, numerics.reveal_order(one_sum, 3)
    ),
}
CLASSES = {"Closeness", "Order", "LstmParams"}


def test_the_cases_are_all_public_functions():
    public = {*numerics.__all__, *losses.__all__, *ops.__all__} - CLASSES
    assert public <= {*TRACED, *HOST}


@pytest.mark.parametrize("name", TRACED)
def test_strict_promotion_finds_nothing_implicit_in(name):
    function, operands = TRACED[name]
    wide = any(x.dtype == D for x in jax.tree.leaves(operands))
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("strict"):
        jax.jit(function).lower(*operands)


@pytest.mark.parametrize("name", HOST)
def test_strict_promotion_and_the_search_for_nan_allow(name):
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        HOST[name]()


#: Of many eager operations, each of which is compiled.
LONG = {"bilstm", "conv_relu_pool", "lstm"}
EAGER = [
    pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
    for name in TRACED
    if "float64" not in name
]


@pytest.mark.parametrize("name", EAGER)
def test_of_finite_numbers_no_eager_operation_makes_a_nan_in(name):
    function, operands = TRACED[name]
    wide = any(x.dtype == D for x in jax.tree.leaves(operands))
    with jax.enable_x64(wide), jax.debug_nans(True):
        jax.block_until_ready(function(*operands))
