"""Binary cross entropy with all three gradients, eager and compiled."""

import jax

from onemodel_jax.losses import bce_with_logits


def loss_and_grads(x, t, p, ct, reduction="none"):
    def run(x, t, p):
        return bce_with_logits(x, t, pos_weight=p, reduction=reduction)

    loss, pull = jax.vjp(run, x, t, p)
    return loss, pull(ct)


compiled = jax.jit(loss_and_grads, static_argnames="reduction")
