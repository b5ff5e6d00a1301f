"""Differentiable operations with hand-written VJPs."""

from onemodel_jax.ops.convolution import conv_relu_pool
from onemodel_jax.ops.linear import linear
from onemodel_jax.ops.recurrent import LstmParams, bilstm, lstm

__all__ = ["LstmParams", "bilstm", "conv_relu_pool", "linear", "lstm"]
