"""The crnn-v0 line recognizer: convolution blocks, two BiLSTM layers, a classifier.

Channels last, one input channel, blank class 0 (SPEC, "Recognizer"). Parameters are a
flat ordered mapping in the state order of the source: each block's weight and bias,
each LSTM layer's forward then reverse w_ih, w_hh, b, the classifier's weight and bias.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onemodel_jax._checks import check_dtype, check_rank, check_shape, fail
from onemodel_jax._tree import Params
from onemodel_jax._types import EXACT, Arithmetic, Array, ArrayLike
from onemodel_jax.nn.generator import Generator
from onemodel_jax.ops.convolution import conv_relu_pool, padded_taps, pooled_widths
from onemodel_jax.ops.linear import linear
from onemodel_jax.ops.recurrent import LstmParams, bilstm

KERNEL, PADDING = (3, 3), (1, 1)


@dataclass(frozen=True)
class CrnnConfig:
    """Sizes of a recognizer; the defaults are crnn-v0.

    Attributes:
      height: rows of the input image.
      channels: output channels of each block.
      pools: (rows, columns) of each block's pooling window.
      hidden: LSTM size of one direction.
      num_layers: bidirectional LSTM layers.
      num_classes: classes, blank (0) included.
    """

    height: int = 32
    channels: tuple[int, ...] = (32, 64, 128, 128, 256, 256)
    pools: tuple[tuple[int, int], ...] = (
        (2, 2),
        (2, 2),
        (2, 1),
        (2, 1),
        (2, 1),
        (1, 1),
    )
    hidden: int = 192
    num_layers: int = 2
    num_classes: int = 622

    def __post_init__(self) -> None:
        sizes = ("height", "hidden", "num_layers", "num_classes")
        for name in sizes:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                got = repr(getattr(self, name))
                fail(ValueError, "CrnnConfig", name, "an integer of at least 1", got)
        entries = [*self.channels, *(size for pool in self.pools for size in pool)]
        if any(type(entry) is not int or entry < 1 for entry in entries):
            got = f"{self.channels}, {self.pools}"
            expected = "integers of at least 1"
            fail(ValueError, "CrnnConfig", "channels, pools", expected, got)
        if not self.channels or len(self.channels) != len(self.pools):
            got = f"{len(self.channels)} channels, {len(self.pools)} pools"
            fail(ValueError, "CrnnConfig", "pools", "one per block", got)
        if self.num_features < 1:
            expected = "at least one row after the pools"
            fail(ValueError, "CrnnConfig", "height", expected, self.height)

    @property
    def num_features(self) -> int:
        """Features of a time step: rows after the last block times its channels."""
        rows = self.height
        for pool in self.pools:
            rows //= pool[0]
        return rows * self.channels[-1]

    @property
    def pixels_per_step(self) -> int:
        """Input columns of a time step."""
        return math.prod(pool[1] for pool in self.pools)


DIGITS = CrnnConfig(
    channels=(16, 32, 48, 64, 64, 64),
    pools=((2, 2), (2, 2), (2, 2), (2, 1), (2, 1), (1, 1)),
    hidden=64,
    num_classes=11,
)
"""The bundled digits model."""


def _module(**shapes: tuple[int, ...]) -> Params:
    return OrderedDict(shapes)


def param_shapes(config: CrnnConfig) -> Params:
    """Return the nested ordered mapping of parameter shapes, in parameter order."""
    shapes: Params = OrderedDict()
    channels = 1
    for n, outputs in enumerate(config.channels):
        taps = padded_taps(KERNEL, channels)
        shapes[f"conv{n}"] = _module(weight=(outputs, taps), bias=(outputs,))
        channels = outputs
    width, gates = config.num_features, 4 * config.hidden
    for n in range(config.num_layers):
        one = dict(w_ih=(gates, width), w_hh=(gates, config.hidden), b=(gates,))
        shapes[f"lstm{n}"] = OrderedDict(forward=_module(**one), reverse=_module(**one))
        width = 2 * config.hidden
    classes = config.num_classes
    shapes["classifier"] = _module(weight=(classes, width), bias=(classes,))
    return shapes


def template(config: CrnnConfig) -> Params:
    """Return the parameters' shapes as ``jax.ShapeDtypeStruct``, allocating nothing."""

    def structure(node: Any) -> Any:
        if isinstance(node, OrderedDict):
            return OrderedDict((name, structure(below)) for name, below in node.items())
        return jax.ShapeDtypeStruct(node, jnp.float32)

    return structure(param_shapes(config))


def init(config: CrnnConfig, seed: int) -> Params:
    """Return initial parameters from one SplitMix64 generator (SPEC, "Recognizer").

    Each weight is uniform in +-bound: convolution sqrt(6 / fan_in) over its real taps,
    w_ih 2 sqrt(3 / in), w_hh 1 / sqrt(H), classifier sqrt(3 / in); the bound is
    computed in binary64 and rounded once. Biases and padding columns draw nothing:
    they are 0, but the LSTM's forget gates 1.

    Args:
      config: sizes.
      seed: 0 to 2^64 - 1.

    Returns:
      Nested ordered mapping of float32 arrays.
    """
    generator = Generator(seed)

    def uniform(shape: tuple[int, ...], inputs: int, bound: float) -> Array:
        limit = float(np.float32(bound))
        weight = np.zeros(shape, np.float32)
        weight[:, :inputs] = generator.uniform(-limit, limit, (shape[0], inputs))
        return jnp.asarray(weight)

    def forget_bias(shape: tuple[int, ...]) -> Array:
        bias = np.zeros(shape, np.float32)
        bias[config.hidden : 2 * config.hidden] = 1
        return jnp.asarray(bias)

    params: Params = OrderedDict()
    channels = 1
    for name, shapes in param_shapes(config).items():
        if name.startswith("lstm"):
            params[name] = OrderedDict()
            for direction, one in shapes.items():
                width = one["w_ih"][1]
                params[name][direction] = OrderedDict(
                    w_ih=uniform(one["w_ih"], width, 2.0 * math.sqrt(3.0 / width)),
                    w_hh=uniform(
                        one["w_hh"], config.hidden, 1.0 / math.sqrt(config.hidden)
                    ),
                    b=forget_bias(one["b"]),
                )
            continue
        inputs = shapes["weight"][1]
        bound = math.sqrt(3.0 / inputs)
        if name.startswith("conv"):
            inputs = KERNEL[0] * KERNEL[1] * channels
            bound = math.sqrt(6.0 / inputs)
            channels = shapes["weight"][0]
        params[name] = OrderedDict(
            weight=uniform(shapes["weight"], inputs, bound),
            bias=jnp.zeros(shapes["bias"], jnp.float32),
        )
    return params


def time_steps(config: CrnnConfig, widths: ArrayLike) -> Array:
    """Return the number of time steps of lines of the given pixel widths."""
    steps = jnp.asarray(widths)
    for pool in config.pools:
        steps = pooled_widths(steps, KERNEL, PADDING, pool[1])
    return steps


def apply(
    config: CrnnConfig,
    params: Params,
    images: ArrayLike,
    widths: ArrayLike | None = None,
    *,
    arithmetic: Arithmetic = EXACT,
) -> Array:
    """Return the logits of each line.

    Args:
      config: sizes.
      params: from :func:`init`.
      images: (B, height, W, 1) float32, ink on a background of 0.
      widths: (B,) int32 true widths; a line's result is that of the line alone at
        its width. Default: W.
      arithmetic: "exact" or "fast".

    Returns:
      (B, T, num_classes) float32, T = W through the pools; 0 beyond a line's steps.

    Raises:
      TypeError, ValueError: images or widths of another dtype or shape.
    """
    images = jnp.asarray(images)
    check_dtype("crnn", "images", images, "float32")
    check_rank("crnn", "images", images, 4)
    lines = images.shape[0]
    check_shape("crnn", "images", images, (lines, config.height, None, 1))
    if widths is None:
        widths = jnp.full(lines, images.shape[2], jnp.int32)
    steps = jnp.asarray(widths)
    x = images
    for n, pool in enumerate(config.pools):
        block = params[f"conv{n}"]
        x = conv_relu_pool(
            x,
            block["weight"],
            block["bias"],
            kernel=KERNEL,
            padding=PADDING,
            pool=pool,
            widths=steps,
            input_grad=n > 0,
            arithmetic=arithmetic,
        )
        steps = pooled_widths(steps, KERNEL, PADDING, pool[1])
    sequence = x.transpose(0, 2, 1, 3).reshape(lines, x.shape[2], config.num_features)
    for n in range(config.num_layers):
        layer = params[f"lstm{n}"]
        forward, reverse = (
            LstmParams(layer[d]["w_ih"], layer[d]["w_hh"], layer[d]["b"])
            for d in ("forward", "reverse")
        )
        sequence = bilstm(
            sequence, forward, reverse, lengths=steps, arithmetic=arithmetic
        )
    last = params["classifier"]
    return linear(
        sequence, last["weight"], last["bias"], lengths=steps, arithmetic=arithmetic
    )
