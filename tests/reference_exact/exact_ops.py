"""Every op and loss of the package for check_vjp, and bugs to plant in each."""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from onemodel_jax import losses, ops
from onemodel_jax.ops import LstmParams


class Case(NamedTuple):
    """A call: arguments (floating ones give shapes), its options, and check_vjp's.

    A private custom_vjp ``core`` ("module:name") stands behind the public function.
    """

    core: str
    examples: tuple
    options: dict[str, Any]
    check: dict[str, Any]


def zeros(*shapes):
    return tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)


def ints(*values):
    return jnp.array(values, jnp.int32)


def one_direction(width, hidden):
    return zeros((4 * hidden, width), (4 * hidden, hidden), (4 * hidden,))


FIELD = {"points": "field"}
FAST = {"arithmetic": "fast"}
LOGS = {"points": "logarithms"}


def _linear(x, outputs, options=None, check=FIELD):
    examples = zeros(x, (outputs, x[-1]), (outputs,))
    return Case("onemodel_jax.ops.linear:_linear", examples, options or {}, check)


def _conv(x, outputs, options=None, check=FIELD):
    kernel = (options or {}).get("kernel", (3, 3))
    columns = -(-kernel[0] * kernel[1] * x[-1] // 16) * 16
    examples = zeros(x, (outputs, columns), (outputs,))
    core = "onemodel_jax.ops.convolution:_conv_relu_pool"
    return Case(core, examples, options or {}, check)


def _lstm(x, hidden, options=None, check=FIELD):
    examples = (*zeros(x), *one_direction(x[-1], hidden))
    return Case("onemodel_jax.ops.recurrent:_lstm", examples, options or {}, check)


def _bilstm(x, hidden, options=None, check=FIELD):
    one = LstmParams(*one_direction(x[-1], hidden))
    examples = (*zeros(x), one, one)
    return Case("onemodel_jax.ops.recurrent:_lstm", examples, options or {}, check)


def _ctc(logits, labels, **options):
    core = "onemodel_jax.losses.ctc:_ctc"
    return Case(core, (*zeros(logits), jnp.array(labels, jnp.int32)), options, LOGS)


def _bce(logits, weight=None, options=None, check=None):
    shapes = [logits, logits] if weight is None else [logits, logits, weight]
    core, options = "onemodel_jax.losses.bce:_bce", options or {"reduction": "none"}
    return Case(core, zeros(*shapes), options, check or {})


# Floating points have no kinks here but ReLU's and the pool's, on which no point falls.
# The first case of each is small and ragged; then tails, edges, options.
OPS = {
    "linear": {
        "ragged": _linear((2, 3, 2), 3, {"lengths": ints(3, 1)}),
        "fractions": _linear((1, 2, 1), 2, check={}),
        "one row": _linear((4,), 2),
        "tails": _linear((2, 3, 18), 17),
        "no rows": _linear((2, 0, 3), 2),
        "fast": _linear((2, 3, 2), 3, FAST),
    },
    "conv_relu_pool": {
        "ragged": _conv((2, 4, 5, 1), 2, {"widths": ints(3, 5), "pool": (2, 2)}),
        "fractions": _conv(
            (2, 2, 1), 1, {"kernel": (2, 2), "padding": (1, 0)}, {"jacobian_limit": 40}
        ),
        "tails": _conv((1, 4, 5, 2), 17, {"pool": (2, 2)}),
        "partial windows": _conv((5, 7, 1), 2, {"pool": (2, 3), "padding": (0, 1)}),
        "narrower than the pool": _conv(
            (2, 3, 4, 1), 1, {"widths": ints(1, 4), "pool": (1, 3)}
        ),
        "fast": _conv((1, 4, 5, 1), 2, FAST | {"pool": (2, 2)}),
    },
    "lstm": {
        "ragged": _lstm((2, 3, 2), 2, {"lengths": ints(3, 2)}),
        "fractions": _lstm((2, 1), 1, check={}),
        "reversed, ragged": _lstm(
            (2, 3, 1), 2, {"lengths": ints(1, 3), "reverse": True}
        ),
        "an empty line": _lstm((2, 2, 1), 1, {"lengths": ints(0, 2)}),
        "tails": _lstm((1, 2, 17), 5),
        "fast": _lstm((3, 2), 2, FAST, FIELD | {"opaque": True}),
    },
    "bilstm": {
        "ragged": _bilstm((2, 3, 2), 1, {"lengths": ints(3, 2)}),
        "fractions": _bilstm((2, 1), 1, check={"jacobian_limit": 40}),
        "tails": _bilstm((2, 17), 3),
        "fast": _bilstm((2, 2), 1, FAST, FIELD | {"opaque": True}),
    },
}
"""Name of a public op to its calls."""

LOSSES = {
    "bce_with_logits": {
        "ragged": _bce((2, 2), (2,)),
        "no weight": _bce((3,)),
        "one weight for all": _bce((2, 2), ()),
        "a weight a row": _bce((2, 3), (2, 1), check=FIELD),
        "mean": _bce((2, 2), (2,), {"reduction": "mean"}),
        "sum": _bce((1, 17), (17,), {"reduction": "sum"}, FIELD),
        "no elements": _bce((2, 0), (1,)),
        "fast": _bce((2, 2), (2,), FAST, {"opaque": True}),
    },
    "ctc_loss": {
        "ragged": _ctc(
            (2, 4, 3),
            [[1, 2], [2, 0]],
            lengths=ints(3, 4),
            label_lengths=ints(2, 1),
        ),
        "equal neighbours": _ctc((5, 3), [1, 1, 2]),
        "one alignment": _ctc((3, 2), [1, 1]),
        "no labels": _ctc((3, 3), []),
        "one step": _ctc((1, 3), [2]),
        "mean, one line without alignment": _ctc(
            (2, 3, 2), [[1, 1], [1, 1]], lengths=ints(3, 2), reduction="mean"
        ),
    },
}

EXEMPT: dict[str, str] = {}
"""Name of an op or loss without calls here, to the reason."""


def exported(module):
    """Names of the public functions of a package."""
    return {n for n in module.__all__ if not isinstance(getattr(module, n), type)}


def each(table):
    """(name, label) of every call, for parametrize."""
    return [(name, label) for name, cases in table.items() for label in cases]


def call(name, case):
    """The public function with the options of the case, its inputs by position."""
    function = getattr(ops, name, None) or getattr(losses, name)
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def run(*inputs):
        return function(**dict(zip(names, inputs, strict=False)), **case.options)

    return run


def same(x, *_):
    return x


class Bug(NamedTuple):
    """Changes of the forward value, the cotangent, and one gradient (with its input).

    ``laws`` are those that fail.
    """

    laws: set[str]
    value: Callable = same
    cotangent: Callable = same
    gradient: Callable = same

    @property
    def on_one_gradient(self):
        return self.gradient is not same


PRIMAL, ADJOINT = "forward equals primal", "adjoint"
ZERO, ADDITIVE = "zero-preserving", "additive"

BUGS = {
    "lost factor 2": Bug({ADJOINT}, cotangent=lambda c: c / 2),
    "weight decay inside": Bug(
        {ADJOINT, ZERO, ADDITIVE}, gradient=lambda g, x: g + x / 64
    ),
    "clipped cotangent": Bug(
        {ADJOINT, ADDITIVE}, cotangent=lambda c: jnp.minimum(c, 1.0)
    ),
    "one gradient times 1 + 2^-23": Bug(
        {ADJOINT}, gradient=lambda g, x: g * (1 + 2.0**-23)
    ),
    "squared cotangent": Bug({ADJOINT, ADDITIVE}, cotangent=lambda c: c * c),
    "forward returns another value": Bug({PRIMAL}, value=lambda y: 2 * y),
    "added constant": Bug({ADJOINT, ZERO, ADDITIVE}, gradient=lambda g, x: g + 1.0),
}


def _is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def plant(monkeypatch, core, bug, which=0):
    """Replace a core by itself with a bug; ``which`` of its gradients is changed."""
    module, name = core.split(":")
    good = getattr(import_module(module), name)
    bad = jax.custom_vjp(good.fun, nondiff_argnums=good.nondiff_argnums)

    def forward(*args):
        inputs = [a for i, a in enumerate(args) if i not in good.nondiff_argnums]
        value, residuals = good.fwd(*args)
        return bug.value(value), (residuals, tuple(inputs))

    def backward(*args):
        *static, (residuals, inputs), cotangent = args
        grads = tuple(good.bwd(*static, residuals, bug.cotangent(cotangent)))
        leaves, tree = jax.tree_util.tree_flatten(grads)
        at = [k for k, leaf in enumerate(leaves) if _is_float(leaf)][which]
        leaves[at] = bug.gradient(leaves[at], jax.tree_util.tree_leaves(inputs)[at])
        return jax.tree_util.tree_unflatten(tree, leaves)

    bad.defvjp(forward, backward)
    monkeypatch.setattr(import_module(module), name, bad)


def num_gradients(name, case):
    """How many floating gradients a core returns: its stacked directions are one."""
    floats = [x for x in jax.tree_util.tree_leaves(case.examples) if _is_float(x)]
    return 4 if name == "bilstm" else len(floats)
