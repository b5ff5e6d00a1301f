"""Binary cross entropy on logits and its gradients (SPEC, "Binary cross entropy").

Binary64 throughout, rounded once to the dtype of the logits; in every product zero
times an infinity is +0. The letters are those of the specification.
"""

import numpy as np
from numpy.typing import ArrayLike

from onemodel_jax.reference.lanes import reductions
from onemodel_jax.reference.lanes.arithmetic import add, div, flush, mul, sub
from onemodel_jax.reference.lanes.elementary import exp64, log1p64

ONE = np.float64(1)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product = np.array(mul(a, b))
    product[np.isnan(product) & ~np.isnan(a) & ~np.isnan(b)] = 0.0
    return product


def _operands(*values: ArrayLike) -> list[np.ndarray]:
    wide = (flush(np.asarray(v).astype(np.float64)) for v in values)
    return list(np.broadcast_arrays(*wide))


@np.errstate(all="ignore")
def losses(x: np.ndarray, t: np.ndarray, p: ArrayLike = 1.0) -> np.ndarray:
    """Return one loss for each logit: a u + w L.

    Args:
      x: (...) float32 or float64 logits.
      t: (...) targets.
      p: weight of the positive term, of a shape that broadcasts.
    """
    wide, target, weight = _operands(x, t, p)
    a = np.abs(wide)
    log = log1p64(exp64(-a))
    rest, share = sub(ONE, target), _product(weight, target)
    u = np.where(wide >= 0, rest, share)
    w = np.where(weight == 1, ONE, add(rest, share))
    return add(_product(a, u), _product(w, log)).astype(x.dtype)


@np.errstate(all="ignore")
def gradients(
    x: np.ndarray, t: np.ndarray, p: ArrayLike, grad: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients in x, t and p for the cotangent ``grad`` of the losses."""
    wide, target, weight, g = _operands(x, t, p, grad)
    a = np.abs(wide)
    e = exp64(-a)
    log, rest, share = log1p64(e), sub(ONE, target), _product(weight, target)
    positive = wide >= 0
    near, far = div(np.ones_like(e), add(ONE, e)), div(e, add(ONE, e))
    high, low = np.where(positive, near, far), np.where(positive, far, near)
    slope_x = sub(_product(rest, high), _product(share, low))
    steep = _product(np.where(positive, -ONE, weight), a)
    slope_t = add(steep, _product(sub(weight, ONE), log))
    slope_p = _product(target, np.where(positive, log, add(a, log)))
    of_p = _unstretch(_product(g, slope_p), np.shape(p))
    grads = _product(g, slope_x), _product(g, slope_t), of_p
    return tuple(v.astype(x.dtype) for v in grads)  # type: ignore[return-value]


def _unstretch(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Block sum, at each position of ``shape``, of what it was broadcast to."""
    padded = (1,) * (values.ndim - len(shape)) + shape
    out = np.zeros(padded)
    for at in np.ndindex(*padded):
        index = tuple(
            slice(None) if n == 1 else i for i, n in zip(at, padded, strict=True)
        )
        out[at] = reductions.sum64(values[index].reshape(-1))
    return out.reshape(shape)
