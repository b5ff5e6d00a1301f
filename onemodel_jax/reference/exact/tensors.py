"""Tensors over a carrier: object arrays, and the few operations everything uses.

A tensor is a NumPy array of dtype object whose elements belong to the carrier; its
shape is its type. A pack is a list of tensors, one per shape of a context.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np

from onemodel_jax.reference.exact.carriers import Carrier

Shape = tuple[int, ...]
Tensor = np.ndarray
Pack = list[np.ndarray]


def tensor(shape: Shape, elements: Iterable[Any]) -> Tensor:
    """Build a tensor from its elements in row-major order."""
    flat = np.empty(math.prod(shape), object)
    for i, element in enumerate(elements):
        flat[i] = element
    return flat.reshape(shape)


def scalar(element: Any) -> Tensor:
    """Build a tensor of shape ()."""
    return tensor((), [element])


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if shapes and all elements are equal."""
    return a.shape == b.shape and all(x == y for x, y in zip(a.flat, b.flat))  # noqa: B905


def same_pack(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Return True if both packs have equal tensors."""
    return len(a) == len(b) and all(map(same, a, b))


def map_elements(function: Callable[..., Any], *arrays: Tensor) -> Tensor:
    """Apply a function element by element, broadcasting shapes."""
    with np.errstate(invalid="ignore"):  # quiet NaN of carriers that have one
        result = np.frompyfunc(function, len(arrays), 1)(*arrays)
    if isinstance(result, np.ndarray) and result.dtype == object:
        return result
    return scalar(result)


class Tensors:
    """Array arithmetic over one carrier. Sums are row-major left folds from zero."""

    def __init__(self, carrier: Carrier):
        self.carrier = carrier

    def full(self, shape: Shape, element: Any) -> Tensor:
        """A tensor of equal elements."""
        return tensor(shape, [element] * math.prod(shape))

    def zeros(self, shape: Shape) -> Tensor:
        """The zero tensor."""
        return self.full(shape, self.carrier.zero)

    def zero_pack(self, shapes: Sequence[Shape]) -> Pack:
        """The zero tensor of every shape."""
        return [self.zeros(shape) for shape in shapes]

    def single(self, shapes: Sequence[Shape], position: int, value: Tensor) -> Pack:
        """``value`` at ``position``, zeros elsewhere; ValueError on a wrong shape."""
        if value.shape != tuple(shapes[position]):
            raise ValueError(f"single: expected {shapes[position]}, got {value.shape}")
        pack = self.zero_pack(shapes)
        pack[position] = value
        return pack

    def basis(self, shape: Shape, index: int) -> Tensor:
        """One at the flat ``index``, zero elsewhere."""
        unit = self.zeros(shape)
        unit.reshape(-1)[index] = self.carrier.one
        return unit

    def sample(self, shape: Shape, rng: Random) -> Tensor:
        """Random elements."""
        draw = self.carrier.sample
        return tensor(shape, [draw(rng) for _ in range(math.prod(shape))])

    def numbers(self, shape: Shape, values: Iterable[int | Fraction]) -> Tensor:
        """Images of rationals, row-major."""
        return tensor(shape, [self.carrier.number(v) for v in values])

    def number(self, value: int | Fraction) -> Tensor:
        """The image of one rational, of shape (), which broadcasts."""
        return scalar(self.carrier.number(value))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, broadcasting."""
        return map_elements(self.carrier.add, a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a * b, broadcasting."""
        return map_elements(self.carrier.mul, a, b)

    def neg(self, a: Tensor) -> Tensor:
        """-a; needs a ring."""
        return map_elements(self.carrier.need("neg"), a)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """a + (-b); needs a ring."""
        return self.add(a, self.neg(b))

    def inverse(self, a: Tensor) -> Tensor:
        """1 / a; needs inverses."""
        return map_elements(self.carrier.need("inverse"), a)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """a * (1 / b); needs inverses."""
        return self.mul(a, self.inverse(b))

    def opaque(self, name: str, a: Tensor) -> Tensor:
        """A named opaque function of every element."""
        function = self.carrier.need("opaque")
        return map_elements(lambda x: function(name, x), a)

    def signs(self, a: Tensor) -> np.ndarray:
        """Signs of all elements, an int array; needs an order."""
        sign = self.carrier.need("sign")
        return np.array([sign(x) for x in a.flat], int).reshape(a.shape)

    def where(self, condition: np.ndarray, a: Tensor, b: Tensor) -> Tensor:
        """Elements of a where the condition holds, of b elsewhere."""
        return map_elements(lambda c, x, y: x if c else y, condition, a, b)

    def fold(self, elements: Iterable[Any]) -> Any:
        """Left fold of + from zero."""
        total, add = self.carrier.zero, self.carrier.add
        for element in elements:
            total = add(total, element)
        return total

    def sum(self, a: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
        """Sum over axes, in row-major order of the summed indices."""
        axes = [axis % a.ndim for axis in axes]
        rest = [axis for axis in range(a.ndim) if axis not in axes]
        lead = tuple(a.shape[axis] for axis in rest)
        rows = a.transpose(*rest, *sorted(axes)) if a.ndim else a
        width = math.prod(a.shape[axis] for axis in axes)
        rows = rows.reshape(math.prod(lead), width)
        total = tensor(lead, [self.fold(row) for row in rows])
        return np.expand_dims(total, tuple(axes)) if keep else total

    def mean(self, a: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
        """Sum over axes divided by the number of terms; needs inverses."""
        count = math.prod(a.shape[axis] for axis in axes)
        return self.div(self.sum(a, axes, keep), self.number(count))

    def dot(self, a: Tensor, b: Tensor) -> Any:
        """The pairing of two tensors of one shape: an element of the carrier."""
        if a.shape != b.shape:
            raise ValueError(f"dot: expected one shape, got {a.shape} and {b.shape}")
        mul = self.carrier.mul
        return self.fold(mul(x, y) for x, y in zip(a.flat, b.flat, strict=True))

    def dot_list(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Any:
        """The pairing of two packs: the sum of the pairings of their tensors."""
        return self.fold(self.dot(x, y) for x, y in zip(a, b, strict=True))

    def contract(self, spec: str, a: Tensor, b: Tensor) -> Tensor:
        """Einstein sum of two operands, e.g. ``"mk,nk->mn"``; no repeated letter."""
        inputs, out = spec.split("->")
        left, right = inputs.split(",")
        size = dict(zip(left + right, a.shape + b.shape, strict=True))
        summed = [x for x in dict.fromkeys(left + right) if x not in out]
        order = out + "".join(summed)
        whole = self.mul(_spread(a, left, order), _spread(b, right, order))
        whole = np.broadcast_to(whole, tuple(size[x] for x in order))
        return self.sum(whole, range(len(out), len(order)))

    def add_at(self, total: Tensor, positions: np.ndarray, values: Tensor) -> None:
        """Add each value to the flat position of ``total`` given for it; -1 is none."""
        flat, add = total.reshape(-1), self.carrier.add
        for position, value in zip(positions.flat, values.flat, strict=True):
            if position >= 0:
                flat[position] = add(flat[position], value)

    def take(self, a: Tensor, positions: np.ndarray) -> Tensor:
        """The element at each flat position, zero where it is -1."""
        flat, zero = a.reshape(-1), self.carrier.zero
        return tensor(
            positions.shape, [flat[p] if p >= 0 else zero for p in positions.flat]
        )


def _spread(a: Tensor, letters: str, order: str) -> Tensor:
    """Transpose, and insert axes of size 1, so that axes follow ``order``."""
    present = [x for x in order if x in letters]
    moved = a.transpose([letters.index(x) for x in present])
    return moved.reshape([dict(zip(letters, a.shape)).get(x, 1) for x in order])  # noqa: B905


def positions(shape: Shape) -> np.ndarray:
    """The flat row-major position of every element."""
    return np.arange(math.prod(shape)).reshape(shape)


def windows(
    source: np.ndarray,
    size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
    base_dilation: Sequence[int] | None = None,
) -> np.ndarray:
    """Positions seen by a sliding window over the last axes of ``source``.

    Args:
      source: (..., *spatial) int, positions of the elements (see ``positions``).
      size, strides, padding, dilation, base_dilation: one entry a spatial axis, as
        lax.conv_general_dilated has them; padding may be negative.

    Returns:
      (..., *out, *size) int; -1 where the window sees padding or dilation.
    """
    rank = len(size)
    lead = source.ndim - rank
    for k in range(rank):
        source = _dilate(source, lead + k, (base_dilation or [1] * rank)[k])
        source = _pad(source, lead + k, *padding[k])
    for k in reversed(range(rank)):
        step = (dilation or [1] * rank)[k]
        reach = (size[k] - 1) * step + 1
        count = max(0, (source.shape[lead + k] - reach) // strides[k] + 1)
        at = np.arange(count)[:, None] * strides[k] + np.arange(size[k]) * step
        source = np.take(source, at, axis=lead + k)
        source = np.moveaxis(source, lead + k + 1, lead + rank)
    return source


def _dilate(source: np.ndarray, axis: int, step: int) -> np.ndarray:
    if step == 1 or source.shape[axis] == 0:
        return source
    shape = list(source.shape)
    shape[axis] = (shape[axis] - 1) * step + 1
    out = np.full(shape, -1)
    out[(slice(None),) * axis + (slice(None, None, step),)] = source
    return out


def _pad(source: np.ndarray, axis: int, low: int, high: int) -> np.ndarray:
    width = [(0, 0)] * source.ndim
    width[axis] = (max(low, 0), max(high, 0))
    source = np.pad(source, width, constant_values=-1)
    stop = source.shape[axis] - max(-high, 0)
    return source[(slice(None),) * axis + (slice(max(-low, 0), max(stop, 0)),)]


def all_indices(*counts: int) -> Iterable[tuple[int, ...]]:
    """All index tuples, row-major."""
    return product(*map(range, counts))
