"""The training step: bits of the reference, ways of running, truth in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax._tree import TrainState
from onemodel_jax.losses import ctc_loss
from onemodel_jax.models import crnn
from onemodel_jax.optim import Optimizer, adamw_lerp
from onemodel_jax.reference.float64 import crnn as truth
from onemodel_jax.reference.lanes import crnn as reference
from onemodel_jax.training import batch_loss, init_state, make_train_step
from tests.support import assert_bits_equal, assert_trees_bits_equal
from tests.training import tiny


@jax.jit
def loss_and_grads(params, batch):
    return jax.value_and_grad(lambda p: batch_loss(tiny.CONFIG, p, *batch))(params)


def test_three_steps_have_the_bits_of_the_reference():
    state = tiny.new_state()
    clipped = []
    for n in range(3):
        state, metrics = tiny.compiled()(state, *tiny.batch(n))
        params, moments, losses, norms = tiny.by_reference(n + 1)
        assert_bits_equal(metrics.loss, np.float32(losses[n]), f"loss {n}")
        assert_bits_equal(metrics.grad_norm, np.float32(norms[n]), f"norm {n}")
        want = tiny.filled(state, params, moments)
        assert_trees_bits_equal(state, want, f"step {n}: ")
        clipped.append(norms[n] > tiny.LIMIT)
    assert set(clipped) == {True, False}, norms


def test_eager_step_has_the_bits_of_the_compiled_one():
    eager = tiny.make_step(jit=False)(tiny.new_state(), *tiny.batch(0))
    assert_trees_bits_equal(eager, tiny.compiled()(tiny.new_state(), *tiny.batch(0)))


def test_batch_at_once_has_the_bits_of_its_lines_one_by_one():
    """Each line alone through the network, its gradients added in line order."""
    params = tiny.new_state().params
    images, widths, labels, sizes = tiny.batch(0)
    steps = crnn.time_steps(tiny.CONFIG, widths)

    @jax.jit
    def line_alone(params, image, width, grad):
        run = lambda p: crnn.apply(tiny.CONFIG, p, image, width)  # noqa: E731
        logits, pullback = jax.vjp(run, params)
        return logits, pullback(grad)[0]

    alone = [(images[n : n + 1], widths[n : n + 1]) for n in range(3)]
    zero = np.zeros((1, 10, 5), np.float32)
    logits = jnp.concatenate([line_alone(params, *line, zero)[0] for line in alone])
    mean = lambda z: ctc_loss(  # noqa: E731
        z, labels, lengths=steps, label_lengths=sizes, reduction="mean"
    )
    loss, grad = jax.jit(jax.value_and_grad(mean))(logits)
    total = None
    for n, line in enumerate(alone):
        _, own = line_alone(params, *line, grad[n : n + 1])
        own = tiny.flat(own)
        total = own if total is None else {k: total[k] + own[k] for k in own}
    got_loss, got = loss_and_grads(params, tiny.batch(0))
    assert_bits_equal(got_loss, loss)
    for name, value in tiny.flat(got).items():
        assert_bits_equal(value, total[name], name)


def test_a_line_that_cannot_fit_counts_as_zero_and_adds_nothing():
    params = tiny.new_state().params
    images, widths, labels, sizes = tiny.batch(1)
    labels[1], sizes[1] = 1, 4  # 5 steps, 7 needed
    loss, grads = loss_and_grads(params, (images, widths, labels, sizes))
    lists = [tiny.LABELS[0], [1] * 4, tiny.LABELS[2]]
    want, want_grads = reference.batch_loss_and_grads(
        tiny.REFERENCE, tiny.flat(params), tiny.lines(1), lists
    )
    assert np.isfinite(want)
    assert_bits_equal(loss, np.float32(want))
    for name, value in tiny.flat(grads).items():
        assert_bits_equal(value, want_grads[name], name)


def test_padding_of_the_images_is_not_read():
    params = tiny.new_state().params
    want = loss_and_grads(params, tiny.batch(2))
    for fill in (0.0, 1e30, np.nan):
        images, *rest = tiny.batch(2)
        for image, width in zip(images, tiny.WIDTHS, strict=True):
            image[:, width:] = fill
        assert_trees_bits_equal(loss_and_grads(params, (images, *rest)), want)


# |gradient - float64| <= ATOL + RTOL |float64|. A lane sum of n terms of float32 errs
# by a few units of 2^-24 of its largest partial sums; the gradients here are of size
# 0.4 to 4, so this asks for about 20 units.
RTOL = 5e-7
ATOL = {"conv": 1e-6, "lstm": 1e-6, "classifier": 2e-7}
TRIALS = 8


def worst_uses():
    """Return name -> largest |error| / allowance over the trials."""
    worst: dict[str, float] = {}
    for seed in range(TRIALS):
        params = crnn.init(tiny.CONFIG, seed)
        got = tiny.flat(loss_and_grads(params, tiny.batch(seed))[1])
        lines = zip(tiny.lines(seed), tiny.LABELS, strict=True)
        each = [
            truth.loss_and_grads(
                tiny.flat(params), tiny.CONFIG.pools, *line, scale=1 / 3
            )[1]
            for line in lines
        ]
        for name, value in got.items():
            want = sum(g[name] for g in each)
            atol = next(a for kind, a in ATOL.items() if name.startswith(kind))
            use = np.abs(value - want) / (atol + RTOL * np.abs(want))
            worst[name] = max(worst.get(name, 0.0), float(use.max()))
    return worst


def test_gradients_agree_with_double_precision(record_property):
    worst = worst_uses()
    for name, use in worst.items():
        record_property(name, use)
    assert len(worst) == 18
    assert max(worst.values()) <= 1, worst
    # Errors of single precision are there: the comparison is not with itself.
    assert min(worst.values()) > 1e-3, worst


def test_later_steps_do_not_retrace_and_the_state_is_donated():
    """And without a limit the moments take the gradient whole."""
    optimizer, traces = adamw_lerp(tiny.RATE), []

    def counted(params, grads, state):
        traces.append(1)  # runs only while the step is traced
        return optimizer.step(params, grads, state)

    step = make_train_step(
        tiny.CONFIG,
        Optimizer(optimizer.init, counted),
        max_norm=None,
        arithmetic="fast",
    )
    first = tiny.new_state()
    state, _ = step(first, *tiny.batch(0))
    leaves = jax.tree_util.tree_leaves((first.params, first.optimizer.slots))
    assert all(leaf.is_deleted() for leaf in leaves)
    grads = loss_and_grads(tiny.new_state().params, tiny.batch(0))[1]
    whole = 0.1 * np.asarray(grads["classifier"]["weight"])
    moment = state.optimizer.slots["exp_avg.16"]
    np.testing.assert_allclose(moment, whole, rtol=1e-3, atol=1e-6)
    for n in range(1, 4):
        state, metrics = step(state, *tiny.batch(n))
    assert len(traces) == 1
    # Fast arithmetic is near the exact one.
    _, exact = _last_of(tiny.compiled(), 4)
    assert float(metrics.loss) == pytest.approx(float(exact.loss), rel=1e-4)
    assert float(metrics.grad_norm) == pytest.approx(float(exact.grad_norm), rel=1e-3)


def _last_of(step, count):
    """Return (state, metrics) after ``count`` steps from the start."""
    state, metrics = tiny.new_state(), None
    for n in range(count):
        state, metrics = step(state, *tiny.batch(n))
    return state, metrics


def test_a_state_without_optimizer_is_refused():
    state = tiny.new_state()
    bare = TrainState(state.params, state.buffers, None)
    with pytest.raises(ValueError, match="^train_step: state: expected one with an op"):
        jax.eval_shape(tiny.make_step(jit=False), bare, *tiny.batch(0))


def test_bad_options_are_refused_when_the_step_is_traced():
    state = init_state(crnn.init(tiny.CONFIG, 0), adamw_lerp(1e-3))
    for options, text in (
        ({"max_norm": -1.0}, "max_norm: expected a number of at least 0"),
        ({"arithmetic": "quick"}, "arithmetic: expected one of"),
    ):
        step = make_train_step(tiny.CONFIG, adamw_lerp(1e-3), jit=False, **options)
        with pytest.raises(ValueError, match=text):
            jax.eval_shape(step, state, *tiny.batch(0))
