"""Linear layer, forward and backward, in lane order (SPEC, "Linear")."""

import numpy as np

from onemodel_jax.reference.lanes.lanes import lane_sum, matmul


@np.errstate(all="ignore")
def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return dot(x, weight[o]) + bias[o]: (T, I), (O, I), (O,) -> (T, O)."""
    return matmul(x, weight) + np.asarray(bias, np.float32)


def linear_backward(
    grad_y: np.ndarray, x: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (grad_x, grad_weight, grad_bias) for grad_y (T, O).

    grad_weight and grad_bias are dots over t, grad_x is a dot over o; the lane of
    a term is its index mod 16.
    """
    grad_x = matmul(grad_y, weight.T)
    grad_weight = matmul(grad_y.T, x.T)
    return grad_x, grad_weight, lane_sum(grad_y.T)
