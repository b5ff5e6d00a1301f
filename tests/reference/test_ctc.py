"""CTC: hand-worked lines, every path enumerated, and the edges."""

import numpy as np
import pytest

from onemodel_jax.reference.float64 import ctc as truth
from onemodel_jax.reference.lanes.ctc import ctc64, ctc_loss_and_grad, logadd
from onemodel_jax.reference.lanes.elementary import exp64, log64
from tests.losses.ctc_cases import LN2, UNIFORM, WORKED
from tests.support import assert_bits_equal


@pytest.mark.parametrize("name", WORKED)
def test_hand_worked(name):
    logits, labels, loss, grad = WORKED[name]
    logits = np.asarray(logits, np.float32)
    got, got_grad = ctc_loss_and_grad(logits, labels)
    # The logits ln 2, ln 3 are rounded to float32: 6e-8 each.
    assert got == pytest.approx(loss, abs=3e-7)
    wanted = np.zeros(logits.shape) if grad is None else np.array(grad)
    np.testing.assert_allclose(got_grad, wanted, rtol=0, atol=2e-7)
    if grad is None:
        assert_bits_equal(got_grad, np.zeros(logits.shape, np.float32))


@pytest.mark.parametrize("name", WORKED)
def test_float64_hand_worked(name):
    logits, labels, loss, grad = WORKED[name]
    logits = np.asarray(logits, np.float64)
    wanted = np.zeros(logits.shape) if grad is None else np.array(grad)
    references = (truth.ctc, truth.ctc_by_paths) if len(logits) else (truth.ctc,)
    for function in references:
        got, got_grad = function(logits, labels)
        assert got == pytest.approx(loss, abs=1e-14)
        np.testing.assert_allclose(got_grad, wanted, rtol=0, atol=1e-14)


SEQUENCES = [[], [1], [2, 1], [1, 1], [1, 2, 1], [2, 2, 2], [1, 1, 2, 2]]


@pytest.mark.parametrize("labels", SEQUENCES, ids=str)
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_agrees_with_the_sum_over_every_path(labels, steps):
    rng = np.random.default_rng(steps)
    logits = (3 * rng.standard_normal((steps, 3))).astype(np.float32)
    wide = logits.astype(np.float64)
    loss, grad = ctc_loss_and_grad(logits, labels)
    want, want_grad = truth.ctc_by_paths(wide, labels)
    recursion, recursion_grad = truth.ctc(wide, labels)
    # float64 sums of at most 3^6 terms; the gradient is then rounded to float32.
    assert loss == pytest.approx(want, abs=1e-13)
    assert recursion == pytest.approx(want, abs=1e-13)
    np.testing.assert_allclose(recursion_grad, want_grad, rtol=0, atol=1e-13)
    np.testing.assert_allclose(grad, want_grad, rtol=6e-8, atol=1e-13)


def test_long_line_agrees_with_the_float64_recursion():
    rng = np.random.default_rng(9)
    logits = (2 * rng.standard_normal((60, 12))).astype(np.float32)
    labels = list(rng.integers(1, 12, 15)) + [3, 3]
    loss, grad = ctc_loss_and_grad(logits, labels)
    want, want_grad = truth.ctc(logits.astype(np.float64), labels)
    assert loss == pytest.approx(want, rel=1e-13)
    np.testing.assert_allclose(grad, want_grad, rtol=6e-8, atol=1e-11)


def test_gradient_is_scaled_in_float64_before_its_one_rounding():
    rng = np.random.default_rng(10)
    logits = rng.standard_normal((7, 4)).astype(np.float32)
    _, grad = ctc_loss_and_grad(logits, [1, 3])
    _, halved = ctc_loss_and_grad(logits, [1, 3], scale=0.5)
    assert_bits_equal(halved, grad * np.float32(0.5))
    _, third = ctc_loss_and_grad(logits, [1, 3], scale=1 / 3)
    _, want = truth.ctc(logits.astype(np.float64), [1, 3])
    np.testing.assert_allclose(third, want / 3, rtol=6.1e-8, atol=1e-14)


def test_logadd_cuts_at_forty_and_keeps_minus_infinity():
    assert_bits_equal(logadd(np.float64(0.0), np.float64(-40.5)), np.float64(0.0))
    assert logadd(np.float64(-35.0), np.float64(0.0)) == pytest.approx(
        3 * 2.0**-52, rel=1e-9, abs=0
    )
    assert_bits_equal(logadd(-np.inf, np.float64(-np.inf)), np.float64(-np.inf))
    assert_bits_equal(logadd(np.float64(-3), -np.inf), np.float64(-3))
    assert logadd(np.float64(1), np.float64(1)) == pytest.approx(1 + LN2, abs=1e-15)
    assert np.isnan(logadd(np.float64(np.nan), np.float64(-np.inf)))


def add(a, b):
    high, low = (a, b) if a >= b else (b, a)
    if low == -np.inf or low - high < -40:
        return high
    return high + log64(1 + exp64(low - high))


def variables_by_steps(log_probs, path):
    """Forward variables in scalar loops: stay, one back, two back, emission."""
    row = [np.float64(-np.inf)] * len(path)
    row[:2] = [log_probs[0][label] for label in path[:2]]
    rows = [row]
    for t in range(1, len(log_probs)):
        new = []
        for s, label in enumerate(path):
            value = add(row[s], row[s - 1]) if s else row[s]
            if s > 1 and label != 0 and label != path[s - 2]:
                value = add(value, row[s - 2])
            new.append(value + log_probs[t][label])
        row = new
        rows.append(row)
    return rows


def ctc_by_steps(logits, labels):
    """The stated steps in scalar loops, one operation at a time."""
    path = [0]
    for label in labels:
        path += [label, 0]
    log_probs = []
    for z in logits.astype(np.float64):
        total = np.float64(0)
        for k in range(len(z)):
            total = total + exp64(z[k] - z.max())
        log_probs.append([(v - z.max()) - log64(total) for v in z])
    ahead = variables_by_steps(log_probs, path)
    # The backward variables are the forward ones of the line read from its end.
    mirrored = variables_by_steps(log_probs[::-1], path[::-1])
    back = [row[::-1] for row in mirrored[::-1]]
    log_p = add(ahead[-1][-2], ahead[-1][-1])
    grad = np.zeros(logits.shape)
    for t, k in np.ndindex(*logits.shape):
        acc = np.float64(-np.inf)
        for s, label in enumerate(path):
            if label == k:
                acc = add(acc, ahead[t][s] + back[t][s])
        lp = log_probs[t][k]
        grad[t, k] = exp64(lp) - exp64((acc - lp) - log_p)
    return -log_p, grad


@pytest.mark.parametrize("labels", [[1, 1, 4], [3], [2, 4, 2, 4]], ids=str)
def test_loss_and_gradient_have_the_bits_of_the_stated_steps(labels):
    rng = np.random.default_rng(11)
    for scale in (1, 1, 5, 30):
        logits = (scale * rng.standard_normal((9, 5))).astype(np.float32)
        loss, grad = ctc64(logits, labels)
        want, want_grad = ctc_by_steps(logits, labels)
        assert_bits_equal(loss, np.float64(want))
        assert_bits_equal(grad, want_grad)
        rounded = ctc_loss_and_grad(logits, labels)[1]
        assert_bits_equal(rounded, want_grad.astype(np.float32))


def test_nan_logit_makes_the_loss_nan():
    logits = np.zeros((3, 3), np.float32)
    logits[1, 2] = np.nan
    loss, grad = ctc_loss_and_grad(logits, [1])
    assert np.isnan(loss) and np.isnan(grad).all()


def test_class_of_probability_zero_has_zero_gradient():
    logits = np.zeros((3, 3), np.float32)
    logits[:, 2] = -np.inf
    loss, grad = ctc_loss_and_grad(logits, [1])
    assert np.isfinite(loss) and np.isfinite(grad).all()
    assert_bits_equal(grad[:, 2], np.zeros(3, np.float32))
    loss, grad = ctc_loss_and_grad(logits, [2])
    assert loss == np.inf
    assert_bits_equal(grad, np.zeros((3, 3), np.float32))


def test_extreme_logits_stay_finite():
    logits = np.array([[0, 3e38, -3e38], [-3e38, 0, 3e38]], np.float32)
    loss, grad = ctc_loss_and_grad(logits, [1, 2])
    assert loss == 0.0
    assert_bits_equal(np.abs(grad), np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    "labels, text", [([1, 3], "got 3 at"), ([0], "got 0"), ([-1], "-1")]
)
def test_labels_outside_the_classes_are_refused(labels, text):
    with pytest.raises(ValueError, match="ctc: labels: expected 1 to 2") as error:
        ctc_loss_and_grad(UNIFORM, labels)
    assert text in str(error.value)


def test_collapse_merges_repeats_then_drops_blanks():
    assert truth.collapse([0, 1, 1, 0, 1, 2, 2, 0]) == [1, 1, 2]
