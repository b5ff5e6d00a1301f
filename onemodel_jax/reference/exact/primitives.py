"""Exact meanings of arithmetic primitives, JAX's own and this package's.

The package's exact operations round a real operation once; here they are that
operation. Rounding is ignored everywhere else as well: a conversion between floating
types is the identity.
"""

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from onemodel_jax.reference.exact.carriers import Special, special_of
from onemodel_jax.reference.exact.machine import (
    Machine,
    Refused,
    Rule,
    Value,
    is_exact,
    structural,
)
from onemodel_jax.reference.exact.tensors import Tensor, map_elements


def _binary(name: str) -> Rule:
    return lambda m, p, x, params: getattr(m.t, name)(*x)


def _comparison(test: Callable[[np.ndarray], Any]) -> Rule:
    return lambda m, p, x, params: np.asarray(test(m.compare(*x)), dtype=bool)


def _larger(m: Machine, a: Tensor, b: Tensor) -> Tensor:
    return m.t.where(m.compare(a, b) >= 0, a, b)


def _smaller(m: Machine, a: Tensor, b: Tensor) -> Tensor:
    return m.t.where(m.compare(a, b) <= 0, a, b)


def _clamp(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    low, middle, high = x
    return _smaller(m, _larger(m, middle, low), high)


def _power(m: Machine, x: Tensor, n: int) -> Tensor:
    result = m.t.full(x.shape, m.carrier.one)
    for _ in range(abs(n)):
        result = m.t.mul(result, x)
    return result if n >= 0 else m.t.inverse(result)


def _general_power(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Tensor:
    """x ** y where y is one small integer, whatever its dtype."""
    base, exponent = x
    for n in range(-16, 17):
        image = m.carrier.number(n)
        wanted = n if not is_exact(exponent) else image
        if exponent.size and all(y == wanted for y in exponent.flat):
            return _power(m, base, n)
    raise Refused("pow with an exponent that is not one small integer")


def _signs(m: Machine, x: Tensor) -> Tensor:
    return m.t.numbers(x.shape, map(int, m.compare(x, m.t.number(0)).flat))


def _absolute(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.mul(_signs(m, x[0]), x[0])


def _rounded(m: Machine, x: Tensor, how: Callable[[Fraction, int], int]) -> Tensor:
    """An integer from each element and its floor; locally constant."""
    floor = m.carrier.need("floor")

    def one(element: Any) -> Any:
        below = floor(element)
        rest = m.carrier.add(element, m.carrier.number(-below))
        half = m.compare(m.t.full((), rest), m.t.number(Fraction(1, 2)))
        return m.carrier.number(how(Fraction(int(half[()])), below))

    return map_elements(one, x)


def _ceil(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.neg(_floor(m, p, [m.t.neg(x[0])], params))


def _floor(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return _rounded(m, x[0], lambda half, below: below)


def _round(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    """Nearest; a half goes to even, or away from zero, as ``rounding_method`` says."""
    even = int(params["rounding_method"]) == 1

    def nearest(half: Fraction, below: int) -> int:
        if half:
            return below + (half > 0)
        up = below % 2 == 1 if even else below >= 0
        return below + up

    return _rounded(m, x[0], nearest)


def _convert(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Value:
    """Float to float is the identity; int to float exact; float to int truncates."""
    (value,), kind = x, params["new_dtype"]
    if not is_exact(value) and not jnp.issubdtype(kind, jnp.floating):
        return value.astype(kind)
    if jnp.issubdtype(kind, jnp.floating):
        m.notes.add("conversions between floating types are the identity")
        return (
            value if is_exact(value) else m.t.numbers(value.shape, map(int, value.flat))
        )
    if kind == np.bool_:
        return m.compare(value, m.t.number(0)) != 0
    sign = m.compare(value, m.t.number(0))
    floor = m.carrier.need("floor")
    size = [floor(e) for e in m.t.mul(_signs(m, value), value).flat]
    return (sign * np.array(size, object).reshape(value.shape)).astype(kind)


def _constant(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    drop = m.carrier.constant
    return x[0] if drop is None else map_elements(drop, x[0])


def _dot_general(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    a = [chr(97 + k) for k in range(x[0].ndim)]
    b = [chr(65 + k) for k in range(x[1].ndim)]
    pairs = zip((*left, *left_batch), (*right, *right_batch), strict=True)
    for i, j in pairs:
        b[j] = a[i]
    batch = [a[i] for i in left_batch]
    rest = [s for k, s in enumerate(a) if k not in (*left, *left_batch)]
    rest += [s for k, s in enumerate(b) if k not in (*right, *right_batch)]
    out = "".join(batch + rest)
    return m.t.contract(f"{''.join(a)},{''.join(b)}->{out}", *x)


def _note(m: Machine, name: str) -> str:
    if m.carrier.logs:
        return f"{name} is exact: inputs are logarithms of fractions"
    if name != "sqrt":
        return f"{name} is opaque"
    if m.carrier.roots:
        return "sqrt is a square root mod p"
    return 'sqrt is opaque: r * r need not be its argument (points="field" has roots)'


def opaque_rule(name: str, always: bool = False) -> Rule:
    """The opaque function ``name``: always, or only where the caller allows it."""

    def rule(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
        if not (always or m.opaque):
            raise Refused(f"primitive {p.name} is transcendental; pass opaque=True")
        if m.carrier.opaque is None:
            raise Refused(f"primitive {p.name} over {m.carrier.name}")
        m.notes.add(_note(m, name))
        return m.t.opaque(name, x[0])

    return rule


def _expm1(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.sub(OPAQUE["exp"](m, p, x, params), m.t.number(1))


def _log1p(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return OPAQUE["log"](m, p, [m.t.add(x[0], m.t.number(1))], params)


def _exact_log1p(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return PACKAGE["exact_log64"](m, p, [m.t.add(x[0], m.t.number(1))], params)


def _rsqrt(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.inverse(OPAQUE["sqrt"](m, p, x, params))


def _elementwise_select(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Value:
    which, *cases = x
    return map_elements(lambda k, *options: options[int(k)], which, *cases)


def _finite(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Value:
    size = map_elements(lambda e: not _is_special(e), x[0])
    return size.astype(bool)


def _is_special(element: Any) -> bool:
    value = element[0] if isinstance(element, tuple) else element
    return special_of(value) is not None


def _fma(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.add(m.t.mul(x[0], x[1]), x[2])


def _identity(m: Machine, p: Any, x: Sequence[Value], params: Any) -> Any:
    return list(x)


def _bitcast(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Value:
    """Words of a number are the number; bytes are those of the nearest float32."""
    (value,), shape = x, params["out_shape"]
    if np.dtype(params["new_dtype"]).itemsize >= 4:
        if len(shape) > value.ndim:
            return np.stack([value] * shape[-1], -1)
        if len(shape) < value.ndim:
            return _joined(value)
        return value
    m.notes.add("bytes of a real number are those of the nearest float32")
    near = [_near(e) for e in value.flat]
    near = np.array(near, np.float32).reshape(value.shape)
    return np.asarray(p.bind(near, new_dtype=params["new_dtype"]))


def _joined(words: Tensor) -> Tensor:
    """Both words of each number back to the number."""
    if any(row[0] != row[-1] for row in words.reshape(-1, words.shape[-1])):
        raise Refused("words of different numbers joined to one")
    return words[..., 0]


def _near(element: Any) -> float:
    value = element[0] if isinstance(element, tuple) else element
    return float(getattr(value, "near", value))


def _lane_matmul(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    return m.t.contract("gmk,gnk->gmn", *x)


def _row_maximum(m: Machine, p: Any, x: Sequence[Tensor], params: Any) -> Tensor:
    least = m.t.full(x[0].shape[:-1], m.carrier.number(Special(-np.inf)))
    return functools.reduce(
        functools.partial(_larger, m), np.moveaxis(x[0], -1, 0), least
    )


ARITHMETIC: dict[str, Rule] = {
    "add": _binary("add"),
    "add_any": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "div": _binary("div"),
    "neg": _binary("neg"),
    "square": lambda m, p, x, params: m.t.mul(x[0], x[0]),
    "integer_pow": lambda m, p, x, params: _power(m, x[0], params["y"]),
    "pow": _general_power,
    "max": lambda m, p, x, params: _larger(m, *x),
    "min": lambda m, p, x, params: _smaller(m, *x),
    "clamp": _clamp,
    "abs": _absolute,
    "sign": lambda m, p, x, params: _signs(m, x[0]),
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "eq": _comparison(lambda s: s == 0),
    "ne": _comparison(lambda s: s != 0),
    "lt": _comparison(lambda s: s < 0),
    "le": _comparison(lambda s: s <= 0),
    "gt": _comparison(lambda s: s > 0),
    "ge": _comparison(lambda s: s >= 0),
    "is_finite": _finite,
    "select_n": _elementwise_select,
    "convert_element_type": structural(_convert),
    "reduce_precision": _identity,
    "copy": _identity,
    "copy_p": _identity,
    "optimization_barrier": _identity,
    "bitcast_convert_type": _bitcast,
    "stop_gradient": _constant,
    "dot_general": _dot_general,
}

OPAQUE: dict[str, Rule] = {
    "exp": opaque_rule("exp"),
    "log": opaque_rule("log"),
    "sqrt": opaque_rule("sqrt"),
    "tanh": opaque_rule("tanh"),
    "logistic": opaque_rule("sigmoid"),
    "sin": opaque_rule("sin"),
    "cos": opaque_rule("cos"),
    "expm1": _expm1,
    "log1p": _log1p,
    "rsqrt": _rsqrt,
}

PACKAGE: dict[str, Rule] = {
    "exact_add": _binary("add"),
    "exact_sub": _binary("sub"),
    "exact_mul": _binary("mul"),
    "exact_div": _binary("div"),
    "exact_fma": _fma,
    "exact_maximum": ARITHMETIC["max"],
    "exact_minimum": ARITHMETIC["min"],
    "exact_convert": _identity,
    "lane_matmul": _lane_matmul,
    "block_sum": lambda m, p, x, params: m.t.sum(x[0], [-1]),
    "row_maximum": _row_maximum,
    "exact_sqrt": opaque_rule("sqrt", always=True),
    "exact_exp64": opaque_rule("exp", always=True),
    "exact_exp": opaque_rule("exp", always=True),
    "exact_log64": opaque_rule("log", always=True),
    "exact_log": opaque_rule("log", always=True),
    "exact_log1p64": _exact_log1p,
    "exact_cos_pi": opaque_rule("cos_pi", always=True),
    "exact_sigmoid": opaque_rule("sigmoid", always=True),
    "exact_tanh": opaque_rule("tanh", always=True),
}
