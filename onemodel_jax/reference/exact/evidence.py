"""What a law returns: that it held on so many cases, or a minimal counterexample."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onemodel_jax.reference.exact.carriers import Carrier, Undefined
from onemodel_jax.reference.exact.tensors import Pack, Tensor


@dataclass(frozen=True)
class Evidence:
    """The outcome of one law.

    Attributes:
      law: what was claimed.
      holds: whether it held on every case.
      cases: how many equalities were compared.
      counterexample: name to tensor, element or text, in reading order; empty if the
        law held.
    """

    law: str
    holds: bool
    cases: int
    counterexample: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        if self.holds:
            return f"{self.law}: holds ({self.cases} cases)"
        lines = [f"{self.law}: FAILS"]
        lines += [f"  {k} = {show(v)}" for k, v in self.counterexample.items()]
        return "\n".join(lines)


def show(value: Any) -> str:
    """Print a tensor as nested brackets, packs as lists, anything else with str."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return show(value[()])
        return "[" + ", ".join(show(part) for part in value) + "]"
    if isinstance(value, list):
        return "(" + ", ".join(show(part) for part in value) + ")"
    return str(value)


def simplify(
    carrier: Carrier,
    pack: Sequence[Tensor],
    fails: Callable[[Pack], bool],
    budget: int = 200,
) -> Pack:
    """Replace tensors, then elements, by 0 or 1 as long as ``fails`` stays true.

    Args:
      carrier: of the elements.
      pack: a point at which ``fails`` is true.
      fails: may raise Undefined, which counts as false.
      budget: how many times ``fails`` may be called.
    """
    best = [a.copy() for a in pack]
    left = budget
    for k, a in enumerate(best):
        spots: list[Any] = [...] if a.size > 1 else []
        spots += list(np.ndindex(*a.shape))
        for spot in spots:
            for value in (carrier.zero, carrier.one):
                if left <= 0:
                    return best
                trial = [b.copy() for b in best]
                _put(trial[k], spot, value)
                if _equal(trial[k], best[k]):
                    break
                left -= 1
                if _still(fails, trial):
                    best = trial
                    break
    return best


def _put(a: Tensor, spot: Any, value: Any) -> None:
    if spot is ...:
        flat = a.reshape(-1)
        for i in range(flat.size):
            flat[i] = value
    else:
        a[spot] = value


def _equal(a: Tensor, b: Tensor) -> bool:
    return all(x == y for x, y in zip(a.flat, b.flat, strict=True))


def _still(fails: Callable[[Pack], bool], trial: Pack) -> bool:
    try:
        return fails(trial)
    except Undefined:
        return False
