"""Primitives that NumPy runs give what JAX gives, on integers and on elements."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from onemodel_jax.reference.exact.plain import INTEGERS, MOVES, plain

X = np.arange(24, dtype=np.int32).reshape(2, 3, 4) - 7
Y = (X * 3 % 5 - 1).astype(np.int32)
BIG = np.full(3, 2**31 - 1, np.int32)
BOOLS = Y > 0

CALLS = [
    (lax.reshape_p, [X], dict(new_sizes=(4, 6), dimensions=None, sharding=None)),
    (lax.reshape_p, [X], dict(new_sizes=(4, 6), dimensions=(2, 0, 1), sharding=None)),
    (lax.squeeze_p, [X[:1, :, :1]], dict(dimensions=(0, 2))),
    (lax.transpose_p, [X], dict(permutation=(2, 0, 1))),
    (
        lax.broadcast_in_dim_p,
        [X[:, :1, 0]],
        dict(shape=(5, 2, 3), broadcast_dimensions=(1, 2), sharding=None),
    ),
    (
        lax.slice_p,
        [X],
        dict(start_indices=(0, 1, 0), limit_indices=(1, 3, 4), strides=(1, 1, 3)),
    ),
    (
        lax.slice_p,
        [X],
        dict(start_indices=(0, 1, 0), limit_indices=(1, 1, 4), strides=None),
    ),
    (lax.rev_p, [X], dict(dimensions=(0, 2))),
    (lax.concatenate_p, [X, X[:, :1], Y], dict(dimension=1)),
    (lax.select_n_p, [BOOLS, X, Y], {}),
    (lax.select_n_p, [np.array(True), X, Y], {}),
    (lax.select_n_p, [(Y + 1) % 3, X, Y, X + Y], {}),
    (lax.add_p, [BIG, BIG], {}),
    (lax.sub_p, [-BIG, BIG], {}),
    (lax.mul_p, [BIG, BIG - 5], {}),
    (lax.max_p, [X, Y], {}),
    (lax.min_p, [X, Y], {}),
    (lax.eq_p, [X, Y], {}),
    (lax.ne_p, [X, Y], {}),
    (lax.lt_p, [X, Y], {}),
    (lax.le_p, [X, Y], {}),
    (lax.gt_p, [X, Y], {}),
    (lax.ge_p, [X, Y], {}),
    (lax.and_p, [X, Y], {}),
    (lax.or_p, [X, Y], {}),
    (lax.or_p, [BOOLS, ~BOOLS], {}),
    (lax.not_p, [BOOLS], {}),
    (lax.not_p, [X], {}),
    (
        lax.convert_element_type_p,
        [X],
        dict(new_dtype=np.dtype(np.uint8), weak_type=False, sharding=None),
    ),
    (
        lax.convert_element_type_p,
        [X],
        dict(new_dtype=np.dtype(bool), weak_type=False, sharding=None),
    ),
]


@pytest.mark.parametrize(("primitive", "inputs", "params"), CALLS)
def test_numpy_gives_what_jax_gives_on_integers(primitive, inputs, params):
    want = np.asarray(primitive.bind(*map(jnp.asarray, inputs), **params))
    got = plain(INTEGERS, primitive.name, inputs, params, want.dtype)
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def test_every_primitive_of_the_table_is_compared():
    assert set(INTEGERS) == {primitive.name for primitive, _, _ in CALLS}


@pytest.mark.parametrize(
    ("primitive", "inputs", "params"), [c for c in CALLS if c[0].name in MOVES]
)
def test_elements_move_as_integers_do(primitive, inputs, params):
    want = np.asarray(primitive.bind(*map(jnp.asarray, inputs), **params))
    boxed = [np.array([(v,) for v in x.flat], "i,").astype(object) for x in inputs]
    boxed = [b.reshape(x.shape) for b, x in zip(boxed, inputs, strict=True)]
    got = plain(MOVES, primitive.name, boxed, params, object)
    assert got.shape == want.shape
    assert [element[0] for element in got.flat] == list(want.flat)


def test_numpy_is_not_asked_for_mixed_kinds_or_unknown_primitives():
    elements = X.astype(object)
    params = dict(dimension=1)
    assert plain(MOVES, "concatenate", [elements, X], params, object) is None
    assert plain(INTEGERS, "add", [elements, X], {}, np.int32) is None
    assert plain(INTEGERS, "add", [X, X.astype(np.float32)], {}, np.int32) is None
    assert plain(INTEGERS, "div", [X, X], {}, np.int32) is None
