"""Functions with their own VJPs: right ones, and seven planted bugs."""

import jax
import jax.numpy as jnp


def rational(x, w):
    """z^2 / (1 + z^2) for z = x w."""
    z = x @ w
    return z * z / (1 + z**2)


def pullback(residuals, cotangent):
    """The right pullback of ``rational``."""
    x, w = residuals
    z = x @ w
    grad_z = cotangent * 2 * z / (1 + z**2) ** 2
    return grad_z @ w.T, x.T @ grad_z


def with_vjp(forward=rational, backward=pullback, primal=rational):
    """Register forward values and a pullback for ``primal``."""

    @jax.custom_vjp
    def planted(x, w):
        return primal(x, w)

    planted.defvjp(lambda x, w: (forward(x, w), (x, w)), backward)
    return planted


def _first(change):
    def backward(residuals, cotangent):
        grad_x, grad_w = pullback(residuals, cotangent)
        return change(grad_x, residuals[0]), grad_w

    return backward


def _cotangent(change):
    return lambda residuals, cotangent: pullback(residuals, change(cotangent))


PRIMAL, ADJOINT = "forward equals primal", "adjoint"
ZERO, ADDITIVE, JACOBIAN = "zero-preserving", "additive", "transposed Jacobian"

# name -> (function, laws that fail)
BUGS = {
    "lost factor 2": (
        with_vjp(backward=_cotangent(lambda c: c / 2)),
        {ADJOINT, JACOBIAN},
    ),
    "weight decay inside": (
        with_vjp(backward=_first(lambda g, x: g + 1e-3 * x)),
        {ADJOINT, ZERO, ADDITIVE, JACOBIAN},
    ),
    "clipped cotangent": (
        with_vjp(backward=_cotangent(lambda c: jnp.minimum(c, 1.0))),
        {ADJOINT, ADDITIVE},
    ),
    "one gradient times 1 + 2^-23": (
        with_vjp(backward=_first(lambda g, x: g * (1 + 2.0**-23))),
        {ADJOINT, JACOBIAN},
    ),
    "squared cotangent": (
        with_vjp(backward=_cotangent(lambda c: c * c)),
        {ADJOINT, ADDITIVE},
    ),
    "forward returns another value": (
        with_vjp(forward=lambda x, w: 2 * rational(x, w)),
        {PRIMAL},
    ),
    "added constant": (
        with_vjp(backward=_first(lambda g, x: g + 1.0)),
        {ADJOINT, ZERO, ADDITIVE, JACOBIAN},
    ),
}

EXAMPLES = (
    jnp.linspace(-1.0, 1.0, 6).reshape(2, 3),
    jnp.linspace(0.5, -0.3, 6).reshape(3, 2),
)
