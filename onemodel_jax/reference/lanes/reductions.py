"""Block sums and what is built from them (SPEC, "Block sum" and "Softmax").

Sums run in binary64: element k of a block of 16,384 goes to lane k mod 8, the lanes
are added in halves, the blocks as neighbours. Inputs are (..., K), float32 or float64,
reduced over the last axis.
"""

import numpy as np

from onemodel_jax.reference.lanes import arithmetic, elementary

LANES = 8
BLOCK = 16_384


def sum64(x: np.ndarray) -> np.ndarray:
    """Return the float64 block sum of x (..., K) over its last axis."""
    wide = np.asarray(x, np.float64)
    starts = range(0, max(wide.shape[-1], 1), BLOCK)
    sums = [_one_block(wide[..., s : s + BLOCK]) for s in starts]
    while len(sums) > 1:
        pairs = range(0, len(sums) - 1, 2)
        added = [arithmetic.add(sums[i], sums[i + 1]) for i in pairs]
        sums = added + ([sums[-1]] if len(sums) % 2 else [])
    return sums[0]


def _one_block(x: np.ndarray) -> np.ndarray:
    p = [np.zeros(x.shape[:-1]) for _ in range(LANES)]
    for k in range(x.shape[-1]):
        p[k % LANES] = arithmetic.add(p[k % LANES], x[..., k])
    while len(p) > 1:
        half = len(p) // 2
        p = [arithmetic.add(p[i], p[i + half]) for i in range(half)]
    return p[0]


@np.errstate(all="ignore")
def block_sum(x: np.ndarray) -> np.ndarray:
    """Return the block sum, rounded once to x's dtype."""
    return sum64(x).astype(x.dtype)


@np.errstate(all="ignore")
def mean(x: np.ndarray) -> np.ndarray:
    """Return sum64 / K, rounded once to x's dtype."""
    return _mean64(x).astype(x.dtype)


def _mean64(x: np.ndarray) -> np.ndarray:
    return arithmetic.div(sum64(x), np.float64(x.shape[-1]))


@np.errstate(all="ignore")
def var(x: np.ndarray, correction: float = 0) -> np.ndarray:
    """Return the two-pass variance in float64, rounded once to x's dtype."""
    wide = np.asarray(x, np.float64)
    d = arithmetic.sub(wide, _mean64(x)[..., None])
    divisor = np.float64(max(x.shape[-1] - correction, 0))
    return arithmetic.div(sum64(arithmetic.mul(d, d)), divisor).astype(x.dtype)


@np.errstate(all="ignore")
def var_gradient(x: np.ndarray, grad: np.ndarray, correction: float = 0) -> np.ndarray:
    """Return grad 2 (x - mean) / divisor: float64, rounded once to x's dtype."""
    d = arithmetic.sub(np.asarray(x, np.float64), _mean64(x)[..., None])
    divisor = np.float64(max(x.shape[-1] - correction, 0))
    slope = arithmetic.div(arithmetic.mul(np.float64(2), d), divisor)
    wide = np.asarray(grad, np.float64)[..., None]
    return arithmetic.mul(slope, wide).astype(x.dtype)


def _exp(x: np.ndarray) -> np.ndarray:
    return elementary.exp(x) if x.dtype == np.float32 else elementary.exp64(x)


def _log(x: np.ndarray) -> np.ndarray:
    return elementary.log(x) if x.dtype == np.float32 else elementary.log64(x)


def _maximum(x: np.ndarray) -> np.ndarray:
    """Return the last axis's maximum, kept: NaN if any, -inf of nothing."""
    top = np.full(x.shape[:-1], -np.inf, x.dtype)
    for k in range(x.shape[-1]):
        top = arithmetic.maximum(top, x[..., k])
    return top[..., None]


@np.errstate(all="ignore")
def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x - max) over its block sum, each step rounded to x's dtype."""
    e = _exp(arithmetic.sub(x, _maximum(x)))
    return arithmetic.div(e, block_sum(e)[..., None])


@np.errstate(all="ignore")
def softmax_gradient(y: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return y (grad - sum(grad y)) for the result y."""
    inner = block_sum(arithmetic.mul(grad, y))[..., None]
    return arithmetic.mul(y, arithmetic.sub(grad, inner))


@np.errstate(all="ignore")
def log_softmax(x: np.ndarray) -> np.ndarray:
    """(x - max) - log of the block sum of exp(x - max)."""
    s = arithmetic.sub(x, _maximum(x))
    return arithmetic.sub(s, _log(block_sum(_exp(s)))[..., None])


@np.errstate(all="ignore")
def log_softmax_gradient(y: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return grad - exp(y) sum(grad) for the result y."""
    total = block_sum(grad)[..., None]
    return arithmetic.sub(grad, arithmetic.mul(_exp(y), total))


@np.errstate(all="ignore")
def logsumexp(x: np.ndarray) -> np.ndarray:
    """log of the block sum of exp(x - m), plus m; m is the maximum, 0 if infinite."""
    top = _maximum(x)
    shift = np.where(np.isinf(top), x.dtype.type(0), top)
    total = block_sum(_exp(arithmetic.sub(x, shift)))
    return arithmetic.add(_log(total), shift[..., 0])


@np.errstate(all="ignore")
def logsumexp_gradient(x: np.ndarray, y: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Return grad exp(x - y); 0 where y is -inf; equal shares of the +inf entries."""
    share = _exp(arithmetic.sub(x, y[..., None]))
    for at in np.ndindex(y.shape):
        if y[at] == -np.inf:
            share[at] = 0
        elif y[at] == np.inf:
            top = (x[at] == np.inf).astype(x.dtype)
            share[at] = arithmetic.div(top, x.dtype.type(np.count_nonzero(top)))
    return arithmetic.mul(share, grad[..., None])
