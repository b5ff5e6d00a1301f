"""The recognizer's loss and gradient for one line, in double precision."""

from collections.abc import Mapping, Sequence

import numpy as np

from onemodel_jax.reference.float64.ctc import ctc
from onemodel_jax.reference.float64.layers import (
    LstmWeights,
    Pair,
    conv_relu_pool,
    conv_relu_pool_backward,
    linear,
    linear_backward,
    lstm,
    lstm_backward,
)

Params = Mapping[str, np.ndarray]
_GEOMETRY = {"kernel": (3, 3), "padding": (1, 1)}
_DIRECTIONS = ("forward", "reverse")


def _layers(params: Params, prefix: str) -> int:
    """Count conv0, conv1, ... or lstm0, lstm1, ... among the names."""
    return len({n.split(".")[0] for n in params if n.startswith(prefix)})


def _weights(params: Params, layer: int, direction: str) -> LstmWeights:
    start = f"lstm{layer}.{direction}."
    return LstmWeights(
        params[start + "w_ih"], params[start + "w_hh"], params[start + "b"]
    )


def _run(
    params: Params, pools: Sequence[Pair], image: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], tuple[int, int, int]]:
    """Return logits, the input of each block, of each sequence layer, map shape."""
    maps, x = [], np.asarray(image, np.float64)
    for n, pool in enumerate(pools):
        maps.append(x)
        weight, bias = params[f"conv{n}.weight"], params[f"conv{n}.bias"]
        x = conv_relu_pool(x, weight, bias, pool=pool, **_GEOMETRY)
    shape = (x.shape[0], x.shape[1], x.shape[2])
    sequence = np.concatenate(list(x), axis=1)  # rows, then channels
    inputs = []
    for n in range(_layers(params, "lstm")):
        inputs.append(sequence)
        both = [
            lstm(sequence, _weights(params, n, d), reverse=d == "reverse")
            for d in _DIRECTIONS
        ]
        sequence = np.concatenate(both, axis=1)
    inputs.append(sequence)
    logits = linear(sequence, params["classifier.weight"], params["classifier.bias"])
    return logits, maps, inputs, shape


def logits(params: Params, pools: Sequence[Pair], image: np.ndarray) -> np.ndarray:
    """Return (T, classes) float64 logits of an (H, W, 1) image."""
    return _run(_widened(params), pools, image)[0]


def _widened(params: Params) -> dict[str, np.ndarray]:
    return {name: np.asarray(p, np.float64) for name, p in params.items()}


def loss_and_grads(
    params: Params,
    pools: Sequence[Pair],
    image: np.ndarray,
    labels: Sequence[int],
    *,
    scale: float = 1.0,
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the line's CTC loss and ``scale`` times the gradients by name.

    Args:
      params: flat, named as in ``lanes.crnn``; any float dtype, widened.
      pools: (rows, columns) of each block.
      image: (H, W, 1).
      labels: classes 1 .. C-1.
    """
    params = _widened(params)
    z, maps, inputs, shape = _run(params, pools, image)
    loss, grad = ctc(z, labels)
    grads: dict[str, np.ndarray] = {}
    grad, grads["classifier.weight"], grads["classifier.bias"] = linear_backward(
        scale * grad, inputs[-1], params["classifier.weight"]
    )
    for n in reversed(range(_layers(params, "lstm"))):
        halves = np.split(grad, 2, axis=1)
        grad = np.zeros_like(inputs[n])
        for half, direction in zip(halves, _DIRECTIONS, strict=True):
            weights = _weights(params, n, direction)
            part, own = lstm_backward(
                half, inputs[n], weights, reverse=direction == "reverse"
            )
            grad = grad + part
            for name, value in own._asdict().items():
                grads[f"lstm{n}.{direction}.{name}"] = value
    grad = np.stack(np.split(grad, shape[0], axis=1))
    for n in reversed(range(len(pools))):
        weight, bias = params[f"conv{n}.weight"], params[f"conv{n}.bias"]
        grad, grads[f"conv{n}.weight"], grads[f"conv{n}.bias"] = (
            conv_relu_pool_backward(
                grad, maps[n], weight, bias, pool=pools[n], **_GEOMETRY
            )
        )
    return loss, {name: grads[name] for name in params}
