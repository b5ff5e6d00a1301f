"""CTC: bits of loss and gradient, hand-worked cases, edges, padding, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.losses import ctc_loss
from onemodel_jax.reference.float64.ctc import ctc as truth
from onemodel_jax.reference.lanes.ctc import ctc_loss_and_grad
from tests.losses.ctc_cases import WORKED
from tests.support import assert_bits_equal, run_python

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


def loss_and_grad(logits, labels, lengths, label_lengths, ct, reduction="none"):
    def run(logits):
        return ctc_loss(
            logits,
            labels,
            lengths=lengths,
            label_lengths=label_lengths,
            reduction=reduction,
        )

    loss, pullback = jax.vjp(run, logits)
    return loss, pullback(ct)[0]


compiled = jax.jit(loss_and_grad, static_argnames="reduction")

# name: steps T, classes C, labels L, (length, label length) of each line.
SHAPES = {
    "ragged": (
        33,
        5,
        6,
        [(0, 0), (0, 2), (1, 0), (1, 1), (2, 1), (2, 3), (15, 6), (16, 5)]
        + [(17, 4), (33, 0), (33, 6), (7, 6)],
    ),
    "one step": (1, 2, 1, [(1, 1), (1, 0), (0, 1)]),
    "no steps": (0, 3, 2, [(0, 0), (0, 2)]),
    "no labels": (4, 3, 0, [(4, 0), (3, 0)]),
    "blank alone": (3, 1, 0, [(3, 0)]),
    "many classes": (6, 622, 3, [(6, 3), (5, 2), (2, 2)]),
    "long": (100, 11, 40, [(100, 40), (99, 33), (60, 40)]),
}


def draw(name, scale=3.0, seed=0):
    steps, classes, size, lines = SHAPES[name]
    rng = np.random.default_rng([seed, steps, classes])
    logits = scale * rng.standard_normal((len(lines), steps, classes))
    labels = rng.integers(1, max(classes, 2), (len(lines), size)).astype(np.int32)
    labels[:, 1:2] = labels[:, :1]  # a repeat needs a blank between
    lengths, label_lengths = np.array(lines, np.int32).T
    return logits.astype(np.float32), labels, lengths, label_lengths


def by_reference(logits, labels, lengths, label_lengths, scale=1.0):
    """Run every line alone, at its own lengths."""
    losses, grads = [], np.zeros(logits.shape, np.float32)
    for n, (length, size) in enumerate(zip(lengths, label_lengths, strict=True)):
        own = logits[n, :length]
        loss, grads[n, :length] = ctc_loss_and_grad(own, labels[n, :size], scale=scale)
        losses.append(loss)
    return np.array(losses), grads


SCALES = {"ordinary": 3.0, "flat": 1e-30, "sharp": 200.0, "extreme": 5e37}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scale", SCALES)
def test_bits_equal_the_reference_run_line_by_line(name, scale):
    operands = draw(name, SCALES[scale])
    ones = np.ones(len(operands[0]), np.float32)
    loss, grad = compiled(*operands, ones)
    want, want_grad = by_reference(*operands)
    assert_bits_equal(loss, want.astype(np.float32), "loss")
    assert_bits_equal(grad, want_grad, "gradient")


@pytest.mark.parametrize("name", ["ragged", "no steps"])
def test_mean_counts_what_fits_and_scales_each_line_by_one_over_their_number(name):
    operands = draw(name, seed=1)
    count = len(operands[0])
    mean, grad = compiled(*operands, np.float32(1), reduction="mean")
    losses, want = by_reference(*operands, scale=1.0 / count)
    total = np.float64(0)
    for loss in losses:
        total = total + (0.0 if loss == np.inf else loss)
    assert_bits_equal(mean, np.float32(total / count), "loss")
    assert_bits_equal(grad, want, "gradient")


def test_mean_is_not_divided_by_the_label_lengths():
    operands = draw("ragged", seed=1)
    losses = np.asarray(compiled(*operands, np.ones(12, np.float32))[0])
    mean = compiled(*operands, np.float32(1), reduction="mean")[0]
    assert len(set(operands[3].tolist())) > 1
    total = losses[np.isfinite(losses)].sum()
    assert float(mean) == pytest.approx(total / 12, rel=1e-6)


@pytest.mark.parametrize("fill", [0.0, 1e30, -np.inf, np.nan])
def test_padding_is_neither_read_nor_written(fill):
    logits, labels, lengths, label_lengths = draw("ragged", seed=2)
    want, want_grad = by_reference(logits, labels, lengths, label_lengths)
    for n, (length, size) in enumerate(zip(lengths, label_lengths, strict=True)):
        logits[n, length:] = fill
        labels[n, size:] = 99 if np.isnan(fill) else -1
    ones = np.ones(len(logits), np.float32)
    loss, grad = compiled(logits, labels, lengths, label_lengths, ones)
    assert_bits_equal(loss, want.astype(np.float32), "loss")
    assert_bits_equal(grad, want_grad, "gradient")
    for n, length in enumerate(lengths):
        assert not np.asarray(grad)[n, length:].view(np.uint32).any()


def test_a_line_with_nan_spoils_no_other():
    logits, labels, lengths, label_lengths = draw("ragged", seed=3)
    logits[6, 3, 2] = np.nan
    logits[8, 0, 0] = np.inf
    logits[10, 5:9, 1] = -np.inf
    ones = np.ones(len(logits), np.float32)
    loss, grad = compiled(logits, labels, lengths, label_lengths, ones)
    want, want_grad = by_reference(logits, labels, lengths, label_lengths)
    assert_bits_equal(loss, want.astype(np.float32), "loss")
    assert_bits_equal(grad, want_grad, "gradient")
    assert np.flatnonzero(np.isnan(loss)).tolist() == [6, 8]
    assert np.isfinite(grad[10]).all()


@functools.cache
def worked_batch():
    """All hand-worked lines in one batch, each padded with NaN."""
    count = len(WORKED)
    logits = np.full((count, 4, 3), np.nan, np.float32)
    labels = np.zeros((count, 3), np.int32)
    lengths, sizes = np.zeros((2, count), np.int32)
    for n, (z, label, _, _) in enumerate(WORKED.values()):
        logits[n, : len(z)] = np.reshape(z, (-1, 3))
        labels[n, : len(label)] = label
        lengths[n], sizes[n] = len(z), len(label)
    return compiled(logits, labels, lengths, sizes, np.ones(count, np.float32))


@pytest.mark.parametrize("name", WORKED)
def test_hand_worked_in_one_mixed_batch(name):
    loss, grad = (np.asarray(v)[list(WORKED).index(name)] for v in worked_batch())
    z, _, want, want_grad = WORKED[name]
    # The logits ln 2 and ln 3 are rounded to float32: 6e-8 each.
    assert loss == pytest.approx(want, abs=3e-7)
    if want_grad is None:
        assert_bits_equal(grad, np.zeros((4, 3), np.float32))
    else:
        np.testing.assert_allclose(grad[: len(z)], want_grad, rtol=0, atol=2e-7)
        assert_bits_equal(grad[len(z) :], np.zeros((4 - len(z), 3), np.float32))


def test_infeasible_line_has_zero_gradient_for_any_scale():
    labels = np.array([[1, 1], [1, 1]], np.int32)
    lengths, sizes = np.array([2, 3], np.int32), np.array([2, 2], np.int32)
    logits = np.zeros((2, 3, 3), np.float32)
    for ct in ([1, 1], [-2, 1], [np.inf, 1], [np.nan, 1]):
        grad = compiled(logits, labels, lengths, sizes, np.float32(ct))[1]
        assert_bits_equal(grad[0], np.zeros((3, 3), np.float32), str(ct))
        assert np.asarray(grad[1]).any()


def test_gradient_agrees_with_the_definition_in_double_precision():
    operands = draw("long", seed=4)
    grad = compiled(*operands, np.float32([0.5, 2, 1]))[1]
    for n, scale in enumerate((0.5, 2.0, 1.0)):
        length, size = operands[2][n], operands[3][n]
        wide = operands[0][n, :length].astype(np.float64)
        _, want = truth(wide, operands[1][n, :size])
        np.testing.assert_allclose(
            grad[n, :length], scale * want, rtol=6.1e-8, atol=1e-11
        )


def test_same_bits_in_every_way_of_running():
    logits, labels, _, _ = draw("ragged", seed=5)
    logits, labels = logits[:3, :5], labels[:3, :2]
    want, want_grad = by_reference(logits, labels, [5] * 3, [2] * 3)
    want = want.astype(np.float32)

    def one(z, k):
        loss, pullback = jax.vjp(lambda z: ctc_loss(z, k), z)
        return loss, pullback(jnp.float32(1))[0], ctc_loss(z, k)

    def together(logits, labels):
        step = lambda carry, line: (carry, one(*line))  # noqa: E731
        scanned = jax.lax.scan(step, 0, (logits, labels))[1]
        return {"vmap": jax.vmap(one)(logits, labels), "scan": scanned}

    for way, got in jax.jit(together)(logits, labels).items():
        for name, g, w in zip(
            ("loss", "gradient", "plain"), got, (want, want_grad, want), strict=True
        ):
            assert_bits_equal(g, w, f"{way} {name}")
    loss, grad, plain = one(logits[0], labels[0])
    assert_bits_equal(grad, want_grad[0], "eager")
    assert_bits_equal(loss, want[0], "eager")
    assert_bits_equal(plain, want[0], "eager")


def test_invalid_labels_and_lengths_that_cannot_be_seen_give_nan():
    logits = np.zeros((6, 4, 3), np.float32)
    labels = np.array([[1, 3], [1, -1], [1, 0], [1, 99], [1, 2], [1, 2]], np.int32)
    lengths = np.array([4, 4, 4, 4, 5, 4], np.int32)
    sizes = np.array([2, 2, 2, 1, 2, 3], np.int32)
    loss, grad = compiled(logits, labels, lengths, sizes, np.ones(6, np.float32))
    bad = np.array([True, True, True, False, True, True])
    np.testing.assert_array_equal(np.isnan(loss), bad)
    np.testing.assert_array_equal(np.isnan(grad).all(axis=(1, 2)), bad)
    want, want_grad = by_reference(logits[3:4], labels[3:4], [4], [1])
    assert_bits_equal(loss[3], np.float32(want[0]))
    assert_bits_equal(grad[3], want_grad[0])


def test_batch_of_no_lines():
    logits, labels = np.zeros((0, 4, 3), np.float32), np.zeros((0, 2), np.int32)
    assert ctc_loss(logits, labels).shape == (0,)
    assert np.isnan(ctc_loss(logits, labels, reduction="mean"))


def test_an_empty_python_list_is_no_labels():
    logits = np.zeros((2, 3), np.float32)
    loss = jax.eval_shape(lambda z: ctc_loss(z, []), logits)
    assert loss.shape == () and loss.dtype == np.float32


@pytest.mark.parametrize(("isa", "nproc", "x64"), [("SSE4_2", 2, True), ("AVX2", 1, 0)])
def test_same_bits_elsewhere(isa, nproc, x64):
    code = """
import numpy as np
from tests.losses.test_ctc import compiled, draw
operands = draw("ragged")
loss, grad = compiled(*operands, np.ones(12, np.float32))
print(np.asarray(loss).tobytes().hex() + np.asarray(grad).tobytes().hex())
"""
    want, want_grad = by_reference(*draw("ragged"))
    here = want.astype(np.float32).tobytes().hex() + want_grad.tobytes().hex()
    assert run_python(code, isa=isa, nproc=nproc, x64=x64).strip() == here


Z, K = np.zeros((4, 3), np.float32), np.array([1, 2], np.int32)
BAD = {
    "doubles": ((Z.astype(int), K), {}, TypeError, "logits: expected float32, got"),
    "a vector": ((Z[0], K), {}, ValueError, "logits: expected rank 2 or 3"),
    "labels of floats": (
        (Z, K.astype(np.float32)),
        {},
        TypeError,
        "labels: expected i",
    ),
    "labels of a batch": ((Z, K[None]), {}, ValueError, "labels: expected rank 1"),
    "labels of another batch": (
        (Z[None], np.stack([K, K])),
        {},
        ValueError,
        r"labels: expected shape \[1,\*\]",
    ),
    "no classes": (
        (Z[:, :0], K[:0]),
        {},
        ValueError,
        r"logits: expected at least one class, got float32\[1,4,0\]",
    ),
    "label above": (
        (Z, np.int32([1, 3])),
        {},
        ValueError,
        "labels: expected classes 1 to 2, got 3 in line 0 at position 1",
    ),
    "negative label": (
        (Z, np.int32([-1])),
        {},
        ValueError,
        "labels: .*got -1 in line 0",
    ),
    "blank label": (
        (Z, np.int32([1, 0])),
        {},
        ValueError,
        "labels: .*got 0 in line 0 a",
    ),
    "label in another line": (
        (np.stack([Z, Z]), np.int32([[1, 2], [5, 1]])),
        {},
        ValueError,
        "labels: .*got 5 in line 1 at position 0",
    ),
    "length": (
        (Z[None], K[None]),
        {"lengths": np.int32([5])},
        ValueError,
        "lengths: expected 0 to 4, got 5 in line 0",
    ),
    "negative length": (
        (Z[None], K[None]),
        {"label_lengths": np.int32([-1])},
        ValueError,
        "label_lengths: expected 0 to 2, got -1 in line 0",
    ),
    "lengths of floats": (
        (Z[None], K[None]),
        {"lengths": np.float32([1])},
        TypeError,
        "lengths: expected int32",
    ),
    "two lengths": (
        (Z[None], K[None]),
        {"lengths": np.int32([1, 1])},
        ValueError,
        r"lengths: expected shape \[1\]",
    ),
    "reduction": (
        (Z, K),
        {"reduction": "sum"},
        ValueError,
        "reduction: expected one of 'none', 'mean', got 'sum'",
    ),
    "arithmetic": ((Z, K), {"arithmetic": "x"}, ValueError, "arithmetic: expected one"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    operands, options, error, text = BAD[case]
    with pytest.raises(error, match=f"^ctc_loss: {text}"):
        ctc_loss(*operands, **options)


def test_labels_in_the_padding_are_not_checked():
    labels, sizes = np.int32([[1, 99]]), np.int32([1])
    run = lambda z: ctc_loss(z, labels, label_lengths=sizes)  # noqa: E731
    assert jax.eval_shape(run, Z[None]).shape == (1,)
