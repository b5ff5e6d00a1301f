"""Binary cross entropy on logits: bits of loss and gradients, edges, errors."""

import functools
import math

import jax
import numpy as np
import pytest

from onemodel_jax.losses import bce_with_logits
from onemodel_jax.reference.lanes import bce as reference
from onemodel_jax.reference.lanes import reductions
from tests.losses.bce_runs import compiled, loss_and_grads
from tests.support import assert_bits_equal, hard_values, run_python, special_values

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")
F, D = np.float32, np.float64
INF, NAN = np.inf, np.nan
DTYPES = [F, D]
LN2 = math.log(2)


def assert_all(got, want, message=""):
    for name, a, b in zip(("logits", "targets", "pos_weight"), got, want, strict=True):
        assert_bits_equal(a, b, f"{message} gradient in {name}")


def draw(dtype, shape=(60, 37), seed=0):
    """Logits, targets, weights and cotangents: ordinary, hard and special ones."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)).astype(dtype)
    t = rng.random(shape).astype(dtype)
    t = np.where(rng.random(shape) < 0.4, np.round(t), t)
    p = (10.0 ** rng.uniform(-3, 3, shape)).astype(dtype)
    ct = rng.standard_normal(shape).astype(dtype)
    for k, v in enumerate((x, t, p, ct)):
        part = slice(k * len(x) // 8, None, 2 + k)
        v[part] = hard_values(rng, v[part].shape, dtype)
    return x, t, p, ct


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_equal_the_reference_in_every_mode(dtype):
    x, t, p, ct = draw(dtype)
    with np.errstate(all="ignore"):
        want = reference.losses(x, t, p)
        wanted = reference.gradients(x, t, p, ct)
    with jax.enable_x64(True):
        loss, grads = compiled(x, t, p, ct)
        assert_bits_equal(loss, want, "jit")
        assert_all(grads, wanted, "jit")
        loss, grads = loss_and_grads(x, t, p, ct)
        assert_bits_equal(loss, want, "eager")
        assert_all(grads, wanted, "eager")
        loss, grads = jax.jit(jax.vmap(loss_and_grads, in_axes=1))(x, t, p, ct)
        assert_bits_equal(loss, want.T, "vmap")
        assert_all(grads, [w.T for w in wanted], "vmap")
        alone = functools.partial(bce_with_logits, reduction="none")
        step = lambda c, row: (c, alone(*row[:2], pos_weight=row[2]))  # noqa: E731
        scanned = jax.jit(lambda *rows: jax.lax.scan(step, 0, rows)[1])(x, t, p)
        assert_bits_equal(scanned, want, "scan, without gradient")


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_in_any_combination(dtype):
    values = special_values(dtype)
    weights = dtype([0, 1, 2.5, INF, NAN, -1, np.finfo(dtype).smallest_subnormal])
    grids = np.meshgrid(values, values, weights, indexing="ij")
    x, t, p = (g.ravel() for g in grids)
    size = 60 * 37
    total = -(-x.size // size) * size
    x, t, p = (np.resize(v, total).reshape(-1, 60, 37) for v in (x, t, p))
    ct = np.random.default_rng(1).choice(values, x.shape)
    with jax.enable_x64(True):
        for operands in zip(x, t, p, ct, strict=True):
            loss, grads = compiled(*operands)
            assert_bits_equal(loss, reference.losses(*operands[:3]), "loss")
            assert_all(grads, reference.gradients(*operands))


REDUCED = [
    (F, "mean", (reductions.BLOCK + 3,)),
    (F, "mean", (9,)),
    (F, "mean", (0,)),
    (F, "sum", (2, 3, 0)),
    (F, "sum", (3, 2, 4)),
    (D, "mean", (3, 2, 4)),
    (D, "sum", ()),
    (D, "sum", (1,)),
]


@pytest.mark.parametrize(("dtype", "reduction", "shape"), REDUCED)
def test_mean_and_sum_are_those_of_the_rounded_losses(dtype, reduction, shape):
    rng = np.random.default_rng(len(shape))
    x = np.asarray(5 * rng.standard_normal(shape), dtype)
    t, p, ct = np.asarray(rng.random(shape), dtype), dtype(3), dtype(0.7)
    reduce = {"mean": reductions.mean, "sum": reductions.block_sum}[reduction]
    with np.errstate(all="ignore"):
        want = reduce(reference.losses(x, t, p).reshape(-1))
        each = D(ct) / (x.size if reduction == "mean" else 1)
        cts = np.full(shape, each).astype(dtype)
        wanted = reference.gradients(x, t, p, cts)
    with jax.enable_x64(True):
        loss, grads = compiled(x, t, p, ct, reduction=reduction)
    assert_bits_equal(loss, want)
    assert_all(grads, wanted)


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (2, 1, 4)])
def test_a_weight_broadcasts_and_its_gradient_is_a_block_sum(shape):
    x, t, _, ct = draw(F, (2, 3, 4), seed=2)
    p = np.asarray(np.random.default_rng(3).random(shape) * 4, F)
    with np.errstate(all="ignore"):
        want, wanted = reference.losses(x, t, p), reference.gradients(x, t, p, ct)
    loss, grads = compiled(x, t, p, ct)
    assert_bits_equal(loss, want)
    assert_all(grads, wanted)


@pytest.mark.parametrize("flag", [False, True])
def test_the_users_x64_flag_neither_matters_nor_changes(flag):
    x, t, p, _ = (v[:2] for v in draw(D, seed=4))
    with jax.enable_x64(flag):
        for dtype in DTYPES:
            a, b, c = (v.astype(dtype) for v in (x, t, p))
            got = bce_with_logits(a, b, pos_weight=c, reduction="none")
            assert_bits_equal(got, reference.losses(a, b, c))
        assert jax.config.jax_enable_x64 == flag


# Weight 1, and known answers


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_one_and_no_weight_have_the_same_bits(dtype):
    x, t, _, ct = draw(dtype, seed=5)

    def without(x, t, ct):
        run = functools.partial(bce_with_logits, reduction="none")
        loss, pull = jax.vjp(run, x, t)
        return loss, pull(ct)

    with jax.enable_x64(True):
        loss, grads = jax.jit(without)(x, t, ct)
        for one in (1.0, dtype(1), np.ones(37, dtype)):
            kept = functools.partial(bce_with_logits, pos_weight=one, reduction="none")
            assert_bits_equal(jax.jit(kept)(x, t), loss, "loss")
        weighted, (grad_x, grad_t, _) = compiled(x, t, np.ones_like(x), ct)
        assert_bits_equal(weighted, loss, "loss")
        assert_bits_equal(grad_x, grads[0], "logits")
        assert_bits_equal(grad_t, grads[1], "targets")


@pytest.mark.parametrize("weight", [None, 1.0, [1, 1]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_very_wrong_logit_beside_an_undecided_one(dtype, weight):
    x, t = dtype([0, -120]), dtype([0, 1])
    weight = dtype(weight) if isinstance(weight, list) else weight
    with jax.enable_x64(True):
        run = jax.value_and_grad(bce_with_logits)
        loss, grad = run(x, t, pos_weight=weight)
    assert_bits_equal(loss, dtype(60.346573590279974))
    assert_bits_equal(grad, dtype([0.25, -0.5]))


# logit, target: loss, gradient in the logit, gradient in the target
WORKED = {
    (-INF, 0): (0, 0, INF),
    (INF, 1): (0, 0, -INF),
    (INF, 0): (INF, 1, -INF),
    (-INF, 1): (INF, -1, INF),
    (-INF, 0.9): (INF, -0.9, INF),
    (INF, 0.5): (INF, 0.5, -INF),
    (1e4, 0): (1e4, 1, -1e4),
    (1e4, 1): (0, 0, -1e4),
    (-1e4, 0): (0, 0, 1e4),
    (-1e4, 1): (1e4, -1, 1e4),
    (0, 0): (LN2, 0.5, 0),
    (-0.0, 1): (LN2, -0.5, 0),
    (0, 0.5): (LN2, 0, 0),
    (NAN, 0): (NAN, NAN, NAN),
    (NAN, 1): (NAN, NAN, NAN),
    (1, NAN): (NAN, NAN, -1),
    (INF, NAN): (NAN, NAN, -INF),
}


@pytest.mark.parametrize("weight", [1, 2.5, INF])
@pytest.mark.parametrize("dtype", DTYPES)
def test_worked_cases_and_infinities(dtype, weight):
    """The weight multiplies what a target of 1 costs, and nothing else."""
    x, t = dtype(list(WORKED)).T
    loss, grad_x, grad_t = dtype(list(WORKED.values())).T
    whole = (t == 0) | (t == 1) | np.isnan(t)
    with jax.enable_x64(True):
        p = np.full_like(x, weight)
        got, grads = compiled(x, t, p, np.ones_like(x))
    if weight == 1:
        assert_bits_equal(got, loss, "loss")
        assert_bits_equal(grads[0], grad_x, "logits")
        assert_bits_equal(grads[1], grad_t, "targets")
        return
    with np.errstate(invalid="ignore"):
        factor = np.where((t == 1) & (loss != 0), dtype(weight), dtype(1))
        assert_bits_equal(np.asarray(got)[whole], (factor * loss)[whole], "loss")
        factor = np.where((t == 1) & (grad_x != 0), dtype(weight), dtype(1))
        want = (factor * grad_x)[whole]
    assert_bits_equal(np.asarray(grads[0])[whole], want, "logits")
    numbers = ~np.isnan(x) & ~np.isnan(t)
    assert not np.isnan(np.asarray(got)[numbers]).any()
    assert not np.isnan(np.asarray(grads[0])[numbers]).any()


def test_a_target_of_weight_zero_costs_nothing():
    x, t = F([-INF, -50, INF]), F([1, 1, 1])
    loss, grads = compiled(x, t, F([0, 0, 0]), F([1, 1, 1]))
    assert_bits_equal(loss, F([0, 0, 0]))
    assert_bits_equal(grads[0], F([0, 0, 0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_give_the_same_bits(dtype):
    """The compiler's evaluator keeps float64 subnormals, which count as zeros."""
    tiny = np.finfo(dtype).smallest_subnormal
    x, t = dtype([-INF, INF, -INF, 3]), dtype([tiny, 1, 1, 1])
    p, ct = dtype([1, 1, tiny, 2]), dtype([1, tiny, 1, 1])
    with jax.enable_x64(True):
        loss, grads = jax.jit(lambda: loss_and_grads(x, t, p, ct))()
    assert_bits_equal(loss, reference.losses(x, t, p))
    assert_all(grads, reference.gradients(x, t, p, ct))


def test_a_cotangent_of_zero_gives_zero_at_the_infinities():
    x, t = F([-INF, INF, INF]), F([0.9, 0, 1])
    grads = compiled(x, t, F([2, 2, 2]), F([0, 0, 0]))[1]
    for grad in grads:
        assert not np.asarray(grad).any()


def test_the_mean_of_nothing_is_nan_and_the_sum_zero():
    nothing = np.zeros((0, 3), F)
    assert_bits_equal(bce_with_logits(nothing, nothing), F(NAN))
    assert_bits_equal(bce_with_logits(nothing, nothing, reduction="sum"), F(0))
    none = bce_with_logits(nothing, nothing, reduction="none")
    assert none.shape == (0, 3) and none.dtype == F
    assert jax.grad(bce_with_logits)(nothing, nothing).shape == (0, 3)


def test_fast_arithmetic_is_near_the_exact_one():
    x, t, p = F([-30, -1, 0, 0.5, 20]), F([0, 1, 0.3, 1, 0]), F([2, 2, 1, 1, 3])

    def run(x, t, p, arithmetic):
        return bce_with_logits(x, t, pos_weight=p, arithmetic=arithmetic)

    both = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2)), static_argnums=3)
    exact = jax.tree_util.tree_leaves(both(x, t, p, "exact"))
    for flag in (False, True):
        with jax.enable_x64(flag):
            fast = jax.tree_util.tree_leaves(both(x, t, p, "fast"))
        for a, b in zip(fast, exact, strict=True):
            assert a.dtype == b.dtype == F
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


# Errors

X, T = np.zeros((2, 3), F), np.zeros((2, 3), F)
BAD = {
    "integer logits": (
        (np.zeros((2, 3), np.int32), T),
        {},
        TypeError,
        r"logits: expected float32 or float64, got int32\[2,3\]",
    ),
    "list": (([0.0], T), {}, TypeError, "logits: expected float32 or .*, got list"),
    "integer targets": (
        (X, np.zeros((2, 3), np.int32)),
        {},
        TypeError,
        r"targets: expected float32, got int32\[2,3\]",
    ),
    "wider targets": (
        (X, np.zeros((2, 3))),
        {},
        TypeError,
        r"targets: expected float32, got float64\[2,3\]",
    ),
    "a number as targets": ((X, 1.0), {}, TypeError, "targets: .*, got float"),
    "narrower targets": (
        (np.zeros(3), np.zeros(3, F)),
        {},
        TypeError,
        r"targets: expected float64, got float32\[3\]",
    ),
    "shape": (
        (X, np.zeros(3, F)),
        {},
        ValueError,
        r"targets: expected shape \[2,3\], got float32\[3\]",
    ),
    "wider weight": (
        (X, T),
        {"pos_weight": np.ones(3)},
        TypeError,
        r"pos_weight: expected float32, got float64\[3\]",
    ),
    "bool as weight": ((X, T), {"pos_weight": True}, TypeError, "pos_weight: .*bool"),
    "weight of another shape": (
        (X, T),
        {"pos_weight": np.ones(2, F)},
        ValueError,
        r"pos_weight: expected a shape that broadcasts to \[2, 3\], got float32\[2\]",
    ),
    "weight of more axes": (
        (X, T),
        {"pos_weight": np.ones((1, 2, 3), F)},
        ValueError,
        r"pos_weight: expected .*, got float32\[1,2,3\]",
    ),
    "reduction": (
        (X, T),
        {"reduction": "batchmean"},
        ValueError,
        "reduction: expected one of 'mean', 'sum', 'none', got 'batchmean'",
    ),
    "arithmetic": ((X, T), {"arithmetic": "x"}, ValueError, "arithmetic: expected one"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    operands, options, error, text = BAD[case]
    with pytest.raises(error, match=f"^bce_with_logits: {text}"):
        bce_with_logits(*operands, **options)


def test_forward_mode_is_refused():
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: bce_with_logits(x, T), (X,), (X,))


HASH = """
import hashlib, jax, numpy as np
from tests.losses.bce_runs import compiled
from tests.losses.test_bce import draw
seen = hashlib.sha256()
for dtype in (np.float32, np.float64):
    with jax.enable_x64(True):
        for y in jax.tree_util.tree_leaves(compiled(*draw(dtype))):
            y = np.asarray(y)
            seen.update(np.where(np.isnan(y), dtype(np.nan), y).tobytes())
print(seen.hexdigest())
"""


def test_same_bits_on_another_isa_and_thread_count():
    hashes = {run_python(HASH, isa=i, nproc=n) for i, n in [("SSE4_2", 1), (None, 8)]}
    assert len(hashes) == 1
