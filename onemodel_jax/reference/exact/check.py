"""check_vjp: verdicts without tolerance on the VJP of any JAX function.

Each verdict is an equality in a field, tested at random points and, if it fails,
reduced to a small counterexample. A polynomial identity of degree d that is false
survives a point with probability at most d / n (Schwartz-Zippel), n being the number of
values a coordinate is drawn from: 24577 fractions, or 6 * 2^40 residues, by default
(SPEC, "Lifting").
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from onemodel_jax._checks import check_option, fail
from onemodel_jax.reference.exact.carriers import (
    Carrier,
    Undefined,
    rationals,
)
from onemodel_jax.reference.exact.evidence import Evidence, simplify
from onemodel_jax.reference.exact.lift import Lifted
from onemodel_jax.reference.exact.logarithms import logarithms
from onemodel_jax.reference.exact.machine import Machine
from onemodel_jax.reference.exact.opaque import duals, with_opaque
from onemodel_jax.reference.exact.report import Report
from onemodel_jax.reference.exact.shadowed import shadowed_field
from onemodel_jax.reference.exact.tensors import (
    Pack,
    Shape,
    Tensor,
    Tensors,
    same_pack,
)

GRIDS = {"fractions": 2**12, "field": 2**40, "logarithms": 2**12}
"""Points are multiples of one over this: coarse where digits cost, fine elsewhere."""
_CARRIERS = {
    "fractions": rationals,
    "field": shadowed_field,
    "logarithms": logarithms,
}
VECTORS = (-3.0, 3.0)
"""Tangents and cotangents are drawn from this interval."""
INTEGERS = (-2048.0, 2048.0)
"""Beside logarithms they are integers, so that their products are powers."""
ATTEMPTS = 200
"""Points tried before a domain is called unreachable."""

VERDICTS = {
    "adjoint": ("primal", "adjoint", "zero", "additive", "jacobian"),
    "stated derivative": ("primal", "adjoint", "zero", "additive", "jacobian"),
    "zero-preserving": ("primal", "zero"),
}
LAWS = {
    "primal": "forward equals primal",
    "adjoint": "adjoint",
    "zero": "zero-preserving",
    "additive": "additive",
    "jacobian": "transposed Jacobian",
}

Found = dict[str, Any] | None
"""What a verdict found at a point: None, or both sides of a failed equality."""


def check_vjp(
    fn: Callable[..., Any],
    *examples: Any,
    nondiff_argnums: Sequence[int] = (),
    expectation: str | Callable[..., Any] = "adjoint",
    opaque: bool = False,
    points: str = "fractions",
    low: float = -3.0,
    high: float = 3.0,
    trials: int = 2,
    seed: int = 0,
    jacobian_limit: int = 24,
    budget: int = 200,
) -> Report:
    """Check the VJP of ``fn`` exactly: no rounding, no tolerance.

    Args:
      fn: a function of JAX arrays (pytrees allowed) with JAX's or its own VJP.
      *examples: arguments; floating leaves give shapes only, all others are
        environment and keep their values.
      nondiff_argnums: positions of arguments that are passed on as they are.
      expectation: ``"adjoint"``: the VJP is the transposed derivative of fn.
        ``"zero-preserving"``: a declared non-derivative such as clipping; only the
        primal and the zero cotangent are checked. A function ``jvp(args, tangents)``:
        a declared derivative, e.g. the identity of a straight-through estimator.
      opaque: allow exp, log, sqrt, tanh, logistic, sin and cos as opaque functions;
        otherwise they are refused. This package's exact operations always are.
      points: ``"fractions"``, or ``"field"``: residues mod 2^61 - 1, for size, and for
        rules that use r * r = x for r = sqrt(x), which fractions do not keep; or
        ``"logarithms"``: inputs are ln q, for programs in the log domain, whose exp
        and log are then exact.
      low, high: floating inputs are drawn from this interval.
      trials: number of random points.
      seed: of the points and of the opaque values.
      jacobian_limit: the whole Jacobian is compared if inputs and outputs together
        have at most so many elements.
      budget: how often a failed equality is evaluated again to simplify its
        counterexample.

    Returns:
      A report; ``report.ok`` is True if every verdict the expectation asks for held.

    Raises:
      Refused: fn uses a primitive that has no exact meaning here, named.
      ValueError: a bad option, or no point of the domain was found.
      TypeError: no floating input or output.
    """
    kind = "stated derivative" if callable(expectation) else expectation
    check_option("check_vjp", "expectation", kind, tuple(VERDICTS))
    check_option("check_vjp", "points", points, tuple(GRIDS))
    if trials < 1:
        fail(ValueError, "check_vjp", "trials", "at least 1", trials)
    if not low < high:
        fail(ValueError, "check_vjp", "low, high", "low < high", (low, high))
    lifted = Lifted(fn, examples, nondiff_argnums)
    base = _CARRIERS[points]()
    stated = lifted.stated(expectation) if callable(expectation) else None
    sizes = sum(_size(s) for s in lifted.shapes + lifted.out_shapes)
    evidence: dict[str, Evidence] = {}
    notes: set[str] = set()
    for trial in range(trials):
        names = VERDICTS[kind]
        if sizes > jacobian_limit or trial > 0:
            names = tuple(n for n in names if n != "jacobian")
        carrier = base if base.logs else with_opaque(base, seed + trial)
        bench = _Bench(lifted, carrier, opaque, stated, budget)
        rng = Random(f"{seed}/{trial}")
        found = _trial(bench, names, rng, (low, high), GRIDS[points])
        evidence = {k: _merge(evidence.get(k), found.get(k)) for k in evidence | found}
        notes |= bench.notes
    return Report(
        name=_name(fn),
        signature=lifted.signature,
        expectation=kind,
        points=f"{trials} in {base.name}",
        evidence=evidence,
        missing=tuple(LAWS[n] for n in VERDICTS[kind] if LAWS[n] not in evidence),
        notes=tuple(sorted(notes)),
    )


def _name(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
    return name or type(fn).__name__


def _size(shape: Shape) -> int:
    return int(np.prod(shape, dtype=int))


def _merge(old: Evidence | None, new: Evidence | None) -> Evidence:
    """The first failure, or the sum of the cases."""
    if old is None or new is None:
        return new if old is None else old  # type: ignore[return-value]
    if not old:
        return old
    cases = old.cases + new.cases
    return Evidence(old.law, new.holds, cases, new.counterexample)


def draw(
    carrier: Carrier,
    shape: Shape,
    rng: Random,
    interval: tuple[float, float],
    grid: int,
) -> Tensor:
    """Multiples of 1/grid in the interval, distinct if there are enough of them."""
    low, high = map(Fraction, interval)
    first, last = math.ceil(low * grid), math.floor(high * grid)
    if first > last:
        fail(ValueError, "check_vjp", "low, high", f"1/{grid} apart", interval)
    count, choices = _size(shape), range(first, last + 1)
    distinct = count <= len(choices)
    picked = rng.sample(choices, count) if distinct else rng.choices(choices, k=count)
    return Tensors(carrier).numbers(shape, [Fraction(n, grid) for n in picked])


def _point(
    carrier: Carrier,
    shape: Shape,
    rng: Random,
    interval: tuple[float, float],
    grid: int,
) -> Tensor:
    """A point of the interval: on the grid, or the logarithm of one that is."""
    if not carrier.logs:
        return draw(carrier, shape, rng, interval, grid)
    low, high = map(math.exp, interval)
    return Tensors(carrier).opaque("log", draw(carrier, shape, rng, (low, high), grid))


class _Bench:
    """Everything a verdict needs: the function, the carrier, two machines."""

    def __init__(
        self, lifted: Lifted, carrier: Carrier, opaque: bool, stated: Any, budget: int
    ):
        self.f = lifted
        self.budget = budget
        self.t = Tensors(carrier)
        self.m = Machine(carrier, opaque)
        self.over_duals = Machine(duals(carrier), opaque)
        self._stated = stated

    @property
    def notes(self) -> set[str]:
        """What both machines assumed."""
        return self.m.notes | self.over_duals.notes

    def tangent(self, xs: Pack, dxs: Pack) -> Pack:
        """The derivative that the pullback must transpose."""
        if self._stated is not None:
            return self._stated(self.m, xs, dxs)
        return self.f.tangent(self.over_duals, xs, dxs)

    def pull(self, xs: Pack, cts: Pack) -> Pack:
        """The pullback."""
        return self.f.pullback(self.m, xs, cts)

    def named(self, xs: Pack, cts: Pack = (), what: str = "cotangent") -> dict:  # type: ignore[assignment]
        """Name a point and a pack over the outputs for a counterexample."""
        point = dict(zip(self.f.names, xs, strict=True))
        names = [f"{what} of {n}" for n in self.f.out_names]
        return point | dict(zip(names, cts))  # noqa: B905


def _trial(
    bench: _Bench,
    names: Sequence[str],
    rng: Random,
    interval: tuple[float, float],
    grid: int,
) -> dict[str, Evidence]:
    """Run the verdicts at one random point of the domain."""
    carrier = bench.t.carrier
    f = bench.f
    vectors, fine = (INTEGERS, 1) if carrier.logs else (VECTORS, grid)
    for _ in range(ATTEMPTS):
        groups = [
            [_point(carrier, s, rng, interval, grid) for s in f.shapes],
            [draw(carrier, s, rng, vectors, fine) for s in f.shapes],
            [draw(carrier, s, rng, vectors, fine) for s in f.out_shapes],
            [draw(carrier, s, rng, vectors, fine) for s in f.out_shapes],
        ]
        try:
            return {LAWS[n]: _verdict(bench, n, groups) for n in names}
        except Undefined as error:
            reason = error
    fail(
        ValueError,
        "check_vjp",
        "low, high",
        "an interval with points in the domain of fn",
        f"{interval} ({reason})",
    )


def _verdict(bench: _Bench, name: str, groups: Sequence[Pack]) -> Evidence:
    """One verdict at one point; a failure is simplified first."""
    test = _TESTS[name]
    flat = [a for group in groups for a in group]

    def at(pack: Pack) -> Found:
        rest = iter(pack)
        return test(bench, *([next(rest) for _ in group] for group in groups))

    found = at(flat)
    if found is None:
        return Evidence(LAWS[name], True, _cases(bench, name))
    carrier, budget = bench.t.carrier, bench.budget
    small = simplify(carrier, flat, lambda trial: at(trial) is not None, budget)
    return Evidence(LAWS[name], False, _cases(bench, name), at(small) or found)


def _cases(bench: _Bench, name: str) -> int:
    """How many equalities of the field a verdict compares."""
    inputs = sum(map(_size, bench.f.shapes))
    outputs = sum(map(_size, bench.f.out_shapes))
    counts = {"primal": outputs, "adjoint": 1, "jacobian": inputs * outputs}
    return counts.get(name, inputs)


def _primal(bench: _Bench, xs: Pack, dxs: Pack, a: Pack, b: Pack) -> Found:
    want, got = bench.f.primal(bench.m, xs), bench.f.forward(bench.m, xs)
    if same_pack(want, got):
        return None
    return bench.named(xs) | {"primal": want, "forward": got}


def _adjoint(bench: _Bench, xs: Pack, dxs: Pack, a: Pack, b: Pack) -> Found:
    left = bench.t.dot_list(bench.tangent(xs, dxs), a)
    right = bench.t.dot_list(dxs, bench.pull(xs, a))
    if left == right:
        return None
    tangents = {f"tangent of {n}": d for n, d in zip(bench.f.names, dxs, strict=True)}
    sides = {"<derivative, cotangent>": left, "<tangent, pullback>": right}
    return bench.named(xs, a) | tangents | sides


def _zero(bench: _Bench, xs: Pack, dxs: Pack, a: Pack, b: Pack) -> Found:
    pulled = bench.pull(xs, bench.t.zero_pack(bench.f.out_shapes))
    if same_pack(pulled, bench.t.zero_pack(bench.f.shapes)):
        return None
    return bench.named(xs) | {"pullback of 0": pulled}


def _additive(bench: _Bench, xs: Pack, dxs: Pack, a: Pack, b: Pack) -> Found:
    add = bench.t.add
    both = bench.pull(xs, [add(u, v) for u, v in zip(a, b, strict=True)])
    first, second = bench.pull(xs, a), bench.pull(xs, b)
    apart = [add(u, v) for u, v in zip(first, second, strict=True)]
    if same_pack(both, apart):
        return None
    names = bench.named(xs, a, "a") | bench.named(xs, b, "b")
    return names | {"pullback(a + b)": both, "pullback(a) + pullback(b)": apart}


def _jacobian(bench: _Bench, xs: Pack, dxs: Pack, a: Pack, b: Pack) -> Found:
    f, t = bench.f, bench.t
    rows = {
        (o, q): bench.pull(xs, t.single(f.out_shapes, o, t.basis(shape, q)))
        for o, shape in enumerate(f.out_shapes)
        for q in range(_size(shape))
    }
    for i, shape in enumerate(f.shapes):
        for p in range(_size(shape)):
            columns = bench.tangent(xs, t.single(f.shapes, i, t.basis(shape, p)))
            for (o, q), row in rows.items():
                true, given = columns[o].reshape(-1)[q], row[i].reshape(-1)[p]
                if true != given:
                    entry = f"element {q} of {f.out_names[o]}"
                    entry += f" by element {p} of {f.names[i]}"
                    sides = {"entry": entry, "derivative": true, "pullback": given}
                    return bench.named(xs) | sides
    return None


_TESTS: dict[str, Callable[..., Found]] = {
    "primal": _primal,
    "adjoint": _adjoint,
    "zero": _zero,
    "additive": _additive,
    "jacobian": _jacobian,
}
