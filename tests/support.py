"""Shared by the tests: bit comparison, hard operands, and runs under another ISA."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def bits(x):
    """Return the unsigned integer view of a floating array."""
    x = np.ascontiguousarray(np.asarray(x))
    return x.view(UINT[x.dtype.itemsize])


def assert_bits_equal(got, want, message=""):
    """Fail unless both arrays have the same bits; NaN is one class, -0 is not +0."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"{message} dtype {got.dtype} != {want.dtype}"
    assert got.shape == want.shape, f"{message} shape {got.shape} != {want.shape}"
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    a, b = np.atleast_1d(bits(got)), np.atleast_1d(bits(want))
    nan = np.atleast_1d(np.isnan(got) & np.isnan(want))
    bad = np.argwhere((a != b) & ~nan)
    if len(bad):
        at = tuple(bad[0])
        g, w = np.atleast_1d(got)[at], np.atleast_1d(want)[at]
        raise AssertionError(
            f"{message} {len(bad)} of {a.size} differ, first at {at}: "
            f"got {int(a[at]):#x} ({g!r}), want {int(b[at]):#x} ({w!r})"
        )


def assert_trees_bits_equal(got, want, message=""):
    """assert_bits_equal on every leaf of two trees of the same structure."""
    import jax

    got_leaves, got_def = jax.tree_util.tree_flatten_with_path(got)
    want_leaves, want_def = jax.tree_util.tree_flatten_with_path(want)
    assert got_def == want_def, f"{message} {got_def} != {want_def}"
    for (path, g), (_, w) in zip(got_leaves, want_leaves, strict=True):
        assert_bits_equal(g, w, f"{message}{jax.tree_util.keystr(path)}")


def special_values(dtype=np.float32):
    """Zeros, infinities, NaN, subnormals, extremes, ones, powers near the edges."""
    info = np.finfo(dtype)
    tiny, small, big = info.smallest_normal, info.smallest_subnormal, info.max
    values = [0, 1, 1.5, 3, tiny, small, small * 3, tiny - small, big, big / 2]
    values += [np.inf, 1 + info.eps, 1 - info.epsneg, 0.1, 1e-3, 7e5]
    signed = np.array(values, dtype)
    return np.concatenate([signed, -signed, np.array([np.nan], dtype)])


def random_bits(rng, shape, dtype=np.float32):
    """Values of all exponents alike: random bit patterns, NaN included."""
    kind = UINT[np.dtype(dtype).itemsize]
    return rng.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True).view(dtype)


def hard_values(rng, shape, dtype=np.float32):
    """Half random bit patterns, half ordinary numbers, a sprinkle of special ones."""
    ordinary = rng.standard_normal(shape).astype(dtype)
    x = np.where(rng.random(shape) < 0.5, random_bits(rng, shape, dtype), ordinary)
    special = rng.choice(special_values(dtype), shape)
    return np.where(rng.random(shape) < 0.1, special, x).astype(dtype)


def environment(*, isa=None, nproc=None, x64=None):
    """Return the environment of a subprocess under another ISA or thread count.

    XLA reads both once per process.
    """
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env["JAX_PLATFORMS"] = "cpu"
    if isa is not None:
        env["XLA_FLAGS"] = f"--xla_cpu_max_isa={isa}"
    if nproc is not None:
        env["NPROC"] = str(nproc)
    if x64 is not None:
        env["JAX_ENABLE_X64"] = str(int(x64))
    return env


#: The flag in /proc/cpuinfo without which --xla_cpu_max_isa names an ISA in vain.
FEATURES = {"SSE4_2": "sse4_2", "AVX": "avx", "AVX2": "fma", "AVX512": "avx512f"}


def require_isa(isa):
    """Skip the calling test where the CPU lacks ``isa``: the flag only takes away."""
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or FEATURES[isa] not in cpu.read_text().split():
        pytest.skip(f"this CPU has no {isa}, or does not say so in /proc/cpuinfo")


def run_python(code, *, isa=None, nproc=None, x64=None, python=None, timeout=1200):
    """Run ``code`` in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [python or sys.executable, "-c", code],
        env=environment(isa=isa, nproc=nproc, x64=x64),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
