"""Attention and recurrent cells, over a field with opaque functions."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from onemodel_jax.reference.exact.nodes import Args, Env, Op, require
from onemodel_jax.reference.exact.nodes_linear import matmul_transposed
from onemodel_jax.reference.exact.nodes_opaque import probabilities, softmax_map
from onemodel_jax.reference.exact.tensors import Pack, Shape, Tensor, Tensors


def attention(
    t: Tensors, shapes: Sequence[Shape], *, scale: Fraction = Fraction(1, 2)
) -> Op:
    """Queries (T, D), keys (S, D), values (S, E): softmax(scale q k^T) v."""
    q, k, v = shapes
    good = len(q) == len(k) == len(v) == 2 and q[1] == k[1] and k[0] == v[0]
    require("attention", good, "(T, D), (S, D), (S, E)", list(shapes))
    factor = t.number(scale)

    def weights(args: Args) -> Tensor:
        scores = t.mul(factor, matmul_transposed(t, args[0], args[1]))
        return probabilities(t, scores)

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        p = weights(args)
        left = matmul_transposed(t, dargs[0], args[1])
        right = matmul_transposed(t, args[0], dargs[1])
        dp = softmax_map(t, p, t.mul(factor, t.add(left, right)))
        mixed = t.contract("ts,se->te", dp, args[2])
        return t.add(mixed, t.contract("ts,se->te", p, dargs[2]))

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        p = weights(args)
        grad_p = t.contract("te,se->ts", delta, args[2])
        grad_scores = t.mul(factor, softmax_map(t, p, grad_p))
        grad_q = t.contract("ts,sd->td", grad_scores, args[1])
        grad_k = t.contract("ts,td->sd", grad_scores, args[0])
        return [grad_q, grad_k, t.contract("ts,te->se", p, delta)]

    def forward(args: Args, env: Env) -> Tensor:
        return t.contract("ts,se->te", weights(args), args[2])

    return Op("attention", (q[0], v[1]), forward, jvp, vjp)


def _matvec(t: Tensors, w: Tensor, x: Tensor) -> Tensor:
    return t.contract("gk,k->g", w, x)


def _outer(t: Tensors, a: Tensor, b: Tensor) -> Tensor:
    return t.contract("a,b->ab", a, b)


def _sigmoid_slope(t: Tensors, s: Tensor) -> Tensor:
    return t.sub(s, t.mul(s, s))


def _tanh_slope(t: Tensors, y: Tensor) -> Tensor:
    return t.sub(t.number(1), t.mul(y, y))


class _Lstm:
    """Gates and cell of one LSTM step at a point; order i, f, g, o."""

    def __init__(self, t: Tensors, args: Args):
        x, h, c, w_ih, w_hh, b = args
        z = t.add(t.add(_matvec(t, w_ih, x), b), _matvec(t, w_hh, h))
        zi, zf, zg, zo = z.reshape(4, -1)
        self.i, self.f, self.o = (t.opaque("sigmoid", u) for u in (zi, zf, zo))
        self.g = t.opaque("tanh", zg)
        self.cell = t.add(t.mul(self.f, c), t.mul(self.i, self.g))
        self.tanh_cell = t.opaque("tanh", self.cell)
        self.hidden = t.mul(self.o, self.tanh_cell)
        self.c = c
        slopes = [_sigmoid_slope(t, s) for s in (self.i, self.f, self.o)]
        slopes.insert(2, _tanh_slope(t, self.g))
        self.slopes = np.stack(slopes)
        self.through = t.mul(self.o, _tanh_slope(t, self.tanh_cell))


def lstm_cell(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """x (D,), h (H,), c (H,), w_ih (4H, D), w_hh (4H, H), b (4H,) -> (2, H): h, c."""
    (d,), (h,) = shapes[:2]
    want = [(d,), (h,), (h,), (4 * h, d), (4 * h, h), (4 * h,)]
    require("lstm_cell", list(shapes) == want, str(want), list(shapes))

    def forward(args: Args, env: Env) -> Tensor:
        s = _Lstm(t, args)
        return np.stack([s.hidden, s.cell])

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        s = _Lstm(t, args)
        dz = t.add(_gate_tangent(t, args[0], args[3], dargs[0], dargs[3]), dargs[5])
        dz = t.add(dz, _gate_tangent(t, args[1], args[4], dargs[1], dargs[4]))
        di, df, dg, do = t.mul(s.slopes, dz.reshape(4, h))
        dcell = t.add(t.mul(df, s.c), t.mul(s.f, dargs[2]))
        dcell = t.add(dcell, t.add(t.mul(di, s.g), t.mul(s.i, dg)))
        dhidden = t.add(t.mul(do, s.tanh_cell), t.mul(s.through, dcell))
        return np.stack([dhidden, dcell])

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        s = _Lstm(t, args)
        grad_cell = t.add(delta[1], t.mul(delta[0], s.through))
        gates = [
            t.mul(grad_cell, s.g),
            t.mul(grad_cell, s.c),
            t.mul(grad_cell, s.i),
            t.mul(delta[0], s.tanh_cell),
        ]
        dz = t.mul(s.slopes, np.stack(gates)).reshape(-1)
        grad_x = t.contract("gk,g->k", args[3], dz)
        grad_h = t.contract("gk,g->k", args[4], dz)
        products = [_outer(t, dz, args[0]), _outer(t, dz, args[1])]
        return [grad_x, grad_h, t.mul(grad_cell, s.f), *products, dz]

    return Op("lstm_cell", (2, h), forward, jvp, vjp)


def _gate_tangent(t: Tensors, x: Tensor, w: Tensor, dx: Tensor, dw: Tensor) -> Tensor:
    return t.add(_matvec(t, w, dx), _matvec(t, dw, x))


class _Gru:
    """Gates of one GRU step at a point; order r, z, n."""

    def __init__(self, t: Tensors, args: Args):
        x, h, w_ih, w_hh, b_ih, b_hh = args
        a = t.add(_matvec(t, w_ih, x), b_ih).reshape(3, -1)
        u = t.add(_matvec(t, w_hh, h), b_hh).reshape(3, -1)
        self.r = t.opaque("sigmoid", t.add(a[0], u[0]))
        self.z = t.opaque("sigmoid", t.add(a[1], u[1]))
        self.inner = u[2]
        self.n = t.opaque("tanh", t.add(a[2], t.mul(self.r, u[2])))
        self.keep = t.sub(t.number(1), self.z)
        self.hidden = t.add(t.mul(self.keep, self.n), t.mul(self.z, h))
        self.slopes = [_sigmoid_slope(t, self.r), _sigmoid_slope(t, self.z)]
        self.slopes.append(_tanh_slope(t, self.n))


def gru_cell(t: Tensors, shapes: Sequence[Shape]) -> Op:
    """x (D,), h (H,), w_ih (3H, D), w_hh (3H, H), b_ih (3H,), b_hh (3H,) -> (H,).

    n = tanh(a_n + r u_n), h' = (1 - z) n + z h, with a from x and u from h.
    """
    (d,), (h,) = shapes[:2]
    want = [(d,), (h,), (3 * h, d), (3 * h, h), (3 * h,), (3 * h,)]
    require("gru_cell", list(shapes) == want, str(want), list(shapes))

    def jvp(args: Args, dargs: Args, env: Env) -> Tensor:
        s = _Gru(t, args)
        da = t.add(_gate_tangent(t, args[0], args[2], dargs[0], dargs[2]), dargs[4])
        du = t.add(_gate_tangent(t, args[1], args[3], dargs[1], dargs[3]), dargs[5])
        da, du = da.reshape(3, h), du.reshape(3, h)
        dr = t.mul(s.slopes[0], t.add(da[0], du[0]))
        dz = t.mul(s.slopes[1], t.add(da[1], du[1]))
        dinner = t.add(t.mul(dr, s.inner), t.mul(s.r, du[2]))
        dn = t.mul(s.slopes[2], t.add(da[2], dinner))
        moved = t.mul(dz, t.sub(args[1], s.n))
        return t.add(moved, t.add(t.mul(s.keep, dn), t.mul(s.z, dargs[1])))

    def vjp(args: Args, delta: Tensor, env: Env) -> Pack:
        s = _Gru(t, args)
        n = t.mul(s.slopes[2], t.mul(delta, s.keep))
        z = t.mul(s.slopes[1], t.mul(delta, t.sub(args[1], s.n)))
        r = t.mul(s.slopes[0], t.mul(n, s.inner))
        a = np.stack([r, z, n]).reshape(-1)
        u = np.stack([r, z, t.mul(n, s.r)]).reshape(-1)
        grad_h = t.add(t.mul(delta, s.z), t.contract("gk,g->k", args[3], u))
        grad_x = t.contract("gk,g->k", args[2], a)
        return [grad_x, grad_h, _outer(t, a, args[0]), _outer(t, u, args[1]), a, u]

    return Op("gru_cell", (h,), lambda args, env: _Gru(t, args).hidden, jvp, vjp)
