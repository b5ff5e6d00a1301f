"""The recognizer of one line and its batch step (SPEC, "Recognizer").

Convolution blocks (3x3, padding 1, ReLU, max pooling), bidirectional LSTM layers, a
linear classifier, CTC. Parameters are a flat dict, name to float32 array, in
parameter order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onemodel_jax.reference.lanes.clipping import clip_lanes
from onemodel_jax.reference.lanes.convolution import (
    ConvTape,
    Pair,
    conv_relu_pool,
    conv_relu_pool_backward,
    padded_width,
)
from onemodel_jax.reference.lanes.ctc import ctc_loss_and_grad
from onemodel_jax.reference.lanes.initialisation import Generator
from onemodel_jax.reference.lanes.linear import linear, linear_backward
from onemodel_jax.reference.lanes.optimizer import AdamWLerpState, adamw_lerp_step
from onemodel_jax.reference.lanes.recurrent import (
    LstmParams,
    LstmTape,
    bilstm,
    bilstm_backward,
)

Params = dict[str, np.ndarray]
KERNEL: Pair = (3, 3)
PADDING: Pair = (1, 1)


@dataclass(frozen=True)
class CrnnConfig:
    """Sizes of the recognizer; the defaults are crnn-v0.

    Attributes:
      height: rows of the input image.
      channels: output channels of each block.
      pools: (rows, columns) of each block's pooling.
      hidden: LSTM size per direction.
      num_classes: classes, the blank (0) included.
      num_layers: bidirectional LSTM layers.
    """

    height: int = 32
    channels: tuple[int, ...] = (32, 64, 128, 128, 256, 256)
    pools: tuple[Pair, ...] = ((2, 2), (2, 2), (2, 1), (2, 1), (2, 1), (1, 1))
    hidden: int = 192
    num_classes: int = 622
    num_layers: int = 2

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.pools) or not self.channels:
            raise ValueError(
                "CrnnConfig: pools: expected one per block, at least one, "
                f"got {len(self.pools)} for {len(self.channels)} blocks"
            )
        if self.num_features < 1:
            raise ValueError(
                "CrnnConfig: height: expected at least one row after the pools, "
                f"got {self.height}"
            )

    @property
    def num_features(self) -> int:
        """Features at a time step: rows after the last block times channels."""
        rows = self.height
        for pool in self.pools:
            rows //= pool[0]
        return rows * self.channels[-1]


class CrnnTape(NamedTuple):
    """What the backward pass reads.

    Attributes:
      convs: one tape per block.
      map_shape: (H', W', C) after the last block.
      inputs: the input (T, D) of each LSTM layer, then of the classifier.
      lstms: (forward, reverse) tapes per layer.
    """

    convs: list[ConvTape]
    map_shape: tuple[int, int, int]
    inputs: list[np.ndarray]
    lstms: list[tuple[LstmTape, LstmTape]]


def param_shapes(config: CrnnConfig) -> dict[str, tuple[int, ...]]:
    """Return name to shape, in parameter order."""
    shapes: dict[str, tuple[int, ...]] = {}
    before = 1
    for n, channels in enumerate(config.channels):
        shapes[f"conv{n}.weight"] = (channels, padded_width(KERNEL, before))
        shapes[f"conv{n}.bias"] = (channels,)
        before = channels
    width, gates = config.num_features, 4 * config.hidden
    for n in range(config.num_layers):
        for direction in ("forward", "reverse"):
            shapes[f"lstm{n}.{direction}.w_ih"] = (gates, width)
            shapes[f"lstm{n}.{direction}.w_hh"] = (gates, config.hidden)
            shapes[f"lstm{n}.{direction}.b"] = (gates,)
        width = 2 * config.hidden
    shapes["classifier.weight"] = (config.num_classes, width)
    shapes["classifier.bias"] = (config.num_classes,)
    return shapes


def init_crnn(config: CrnnConfig, seed: int) -> Params:
    """Return initial parameters drawn from one generator, in parameter order.

    Uniform in +-bound, bound computed in float64 and rounded once: convolution
    sqrt(6 / fan_in) over the real taps, w_ih 2 sqrt(3 / in), w_hh 1 / sqrt(H),
    classifier sqrt(3 / in). Biases and padding columns draw nothing: 0, but 1 for
    the LSTM's forget gates.
    """
    generator = Generator(seed)
    params: Params = {}
    before = 1
    for name, shape in param_shapes(config).items():
        params[name] = np.zeros(shape, np.float32)
        if name.endswith((".bias", ".b")):
            if name.endswith(".b"):
                params[name][config.hidden : 2 * config.hidden] = 1
            continue
        inputs = KERNEL[0] * KERNEL[1] * before if name[:4] == "conv" else shape[1]
        bound = _bound(name, inputs)
        draws = generator.uniform(-bound, bound, (shape[0], inputs))
        params[name][:, :inputs] = draws
        before = shape[0]
    return params


def _bound(name: str, inputs: int) -> np.float64:
    if name.startswith("conv"):
        return np.sqrt(np.float64(6.0) / inputs)
    if name.endswith("w_ih"):
        return 2.0 * np.sqrt(np.float64(3.0) / inputs)
    if name.endswith("w_hh"):
        return 1.0 / np.sqrt(np.float64(inputs))
    return np.sqrt(np.float64(3.0) / inputs)


def _direction(params: Params, layer: int, direction: str) -> LstmParams:
    prefix = f"lstm{layer}.{direction}."
    return LstmParams(*(params[prefix + part] for part in ("w_ih", "w_hh", "b")))


def forward(
    config: CrnnConfig, params: Params, image: np.ndarray
) -> tuple[np.ndarray, CrnnTape]:
    """Return logits (T, num_classes) float32 and the tape.

    Args:
      config: sizes.
      params: parameters.
      image: (height, W, 1) float32; W may be any size, T is W after the pools
        (0 when W is too small).

    Raises:
      ValueError: the image does not have the configured height and one channel.
    """
    image = np.asarray(image, np.float32)
    if image.ndim != 3 or image.shape[0] != config.height or image.shape[2] != 1:
        raise ValueError(
            f"crnn: image: expected ({config.height}, W, 1), got {image.shape}"
        )
    convs, x = [], image
    for n, pool in enumerate(config.pools):
        weight, bias = params[f"conv{n}.weight"], params[f"conv{n}.bias"]
        x, tape = conv_relu_pool(
            x, weight, bias, kernel=KERNEL, padding=PADDING, pool=pool
        )
        convs.append(tape)
    map_shape = x.shape
    sequence = np.ascontiguousarray(x.transpose(1, 0, 2))
    sequence = sequence.reshape(map_shape[1], map_shape[0] * map_shape[2])
    inputs, lstms = [sequence], []
    for n in range(config.num_layers):
        ahead, back = (_direction(params, n, d) for d in ("forward", "reverse"))
        sequence, tapes = bilstm(sequence, ahead, back)
        inputs.append(sequence)
        lstms.append(tapes)
    logits = linear(sequence, params["classifier.weight"], params["classifier.bias"])
    return logits, CrnnTape(convs, map_shape, inputs, lstms)


def backward(
    config: CrnnConfig, params: Params, grad_logits: np.ndarray, tape: CrnnTape
) -> Params:
    """Return the gradient of every parameter, in parameter order."""
    grads: Params = {}
    grad, grads["classifier.weight"], grads["classifier.bias"] = linear_backward(
        grad_logits, tape.inputs[-1], params["classifier.weight"]
    )
    for n in reversed(range(config.num_layers)):
        ahead, back = (_direction(params, n, d) for d in ("forward", "reverse"))
        grad, *by_direction = bilstm_backward(
            grad, tape.inputs[n], tape.lstms[n], ahead, back
        )
        for direction, parts in zip(("forward", "reverse"), by_direction, strict=True):
            for part, value in parts._asdict().items():
                grads[f"lstm{n}.{direction}.{part}"] = value
    rows, columns, channels = tape.map_shape
    grad = grad.reshape(columns, rows, channels).transpose(1, 0, 2)
    for n in reversed(range(len(config.channels))):
        weight = params[f"conv{n}.weight"]
        grad_x, grad_weight, grad_bias = conv_relu_pool_backward(
            grad, tape.convs[n], weight, kernel=KERNEL, padding=PADDING, need_dx=n > 0
        )
        grads[f"conv{n}.weight"], grads[f"conv{n}.bias"] = grad_weight, grad_bias
        grad = grad if grad_x is None else grad_x
    return {name: grads[name] for name in param_shapes(config)}


def loss_and_grads(
    config: CrnnConfig,
    params: Params,
    image: np.ndarray,
    labels: Sequence[int],
    *,
    scale: float = 1.0,
) -> tuple[np.float64, Params]:
    """Return one line's CTC loss (+inf if infeasible) and its scaled gradients."""
    logits, tape = forward(config, params, image)
    loss, grad_logits = ctc_loss_and_grad(logits, labels, scale=scale)
    return loss, backward(config, params, grad_logits, tape)


@np.errstate(all="ignore")
def batch_loss_and_grads(
    config: CrnnConfig,
    params: Params,
    images: Sequence[np.ndarray],
    labels: Sequence[Sequence[int]],
) -> tuple[np.float64, Params]:
    """Return the mean line loss and the batch gradient.

    Each line's logit gradient is scaled by 1/B (float64); the lines' gradients are
    added in line order; an infeasible line counts as loss 0. The mean is the
    float64 sum in line order over B.

    Raises:
      ValueError: no lines, or as many labels as images are not given.
    """
    if not images or len(images) != len(labels):
        raise ValueError(
            "crnn: images: expected one or more, with labels each, "
            f"got {len(images)} images and {len(labels)} labels"
        )
    total, grads = np.float64(0), {}
    for line, (image, label) in enumerate(zip(images, labels, strict=True)):
        loss, own = loss_and_grads(
            config, params, image, label, scale=1.0 / len(images)
        )
        total = total + (0.0 if loss == np.inf else loss)
        grads = own if line == 0 else {n: grads[n] + own[n] for n in grads}
    return total / len(images), grads


def decayed(params: Params) -> list[bool]:
    """Return which parameters weight decay touches: matrices, not biases."""
    return [not name.endswith((".bias", ".b")) for name in params]


def train_step(
    config: CrnnConfig,
    params: Params,
    state: AdamWLerpState,
    images: Sequence[np.ndarray],
    labels: Sequence[Sequence[int]],
    *,
    limit: float | None = 5.0,
    **hyper: float,
) -> tuple[Params, AdamWLerpState, np.float64, np.float64 | None]:
    """Return (params, state, batch loss, gradient norm before clipping).

    Args:
      limit: clipping limit of the norm; None does not clip (and the norm is None).
      hyper: learning_rate and the other options of ``adamw_lerp_step``.
    """
    loss, grads = batch_loss_and_grads(config, params, images, labels)
    values, norm = list(grads.values()), None
    if limit is not None:
        values, norm = clip_lanes(values, limit)
    new, state = adamw_lerp_step(
        list(params.values()), values, state, decayed=decayed(params), **hyper
    )
    return dict(zip(params, new, strict=True)), state, loss, norm
