"""The tests of this directory under each instruction set and other thread counts.

All that starts a process of its own is in this file, which the processes leave out.
The session that runs this file is itself the run under the ISA that it targets.
"""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from onemodel_jax.cli.machine import own_isa
from tests.numerics.samples import HAS_FMA
from tests.support import ROOT, environment, require_isa, run_python

HERE = Path(__file__).parent
FILES = {f.name for f in HERE.glob("test_*.py")} - {Path(__file__).name}
LONGEST = {"test_lanes.py", "test_reduce.py"}
PARTS = {"products and sums": LONGEST, "the rest": FILES - LONGEST}
THREADS = {"SSE4_2": 1, "AVX2": 8, "AVX512": 2}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("isa", THREADS)
def test_all_tests_of_this_directory_pass_under(isa, part):
    require_isa(isa)
    if isa == own_isa():
        pytest.skip(f"this session itself runs them for {isa}, see target_features")
    files = [str(HERE / name) for name in sorted(PARTS[part])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=environment(isa=isa, nproc=THREADS[isa]),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout


PROGRAM = """
import hashlib
import jax, jax.numpy as jnp, numpy as np
from onemodel_jax import numerics
from tests.numerics.samples import ARITY, WIDTHS, hard_tuple
from tests.numerics.test_elementary import NAMES, sample
from tests.support import hard_values

SHAPES = [(1, 17, 3), (40, 100, 17), (33, 700, 20), (130, 40, 130)]
seen = hashlib.sha256()

def feed(result):
    result = np.asarray(result)
    result = np.where(np.isnan(result), np.array(np.nan, result.dtype), result)
    seen.update(np.ascontiguousarray(result).tobytes())

def apply(operations):
    return [getattr(numerics, n)(*v) for n, v in operations]

work = [(n, hard_tuple(n, w, 70_000)) for n in ARITY for w in WIDTHS]
work += [(n, [sample(n, 50_000)]) for n in NAMES]
names = [n for n, _ in work]
with jax.enable_x64(True):
    together = jax.jit(lambda values: apply(zip(names, values, strict=True)))
    for result in together([v for _, v in work]):
        feed(result)

rng = np.random.default_rng(0)
def pair(m, k, n, draw):
    return draw((m, k)), draw((n, k))

plain = lambda s: rng.standard_normal(s).astype(np.float32)
pairs = [pair(*s, plain) for s in SHAPES]
pairs += [pair(*s, lambda s: hard_values(rng, s)) for s in SHAPES[:2]]
zeros = np.zeros((3, 40), np.float32), -np.ones((18, 40), np.float32)
pairs += [zeros, tuple(v[:, :1] for v in zeros)]
multiply = jax.jit(lambda pairs: [numerics.matmul(x, w) for x, w in pairs])
for result in multiply(pairs):
    feed(result)
x = np.linspace(-3, 3, 10_001)
with jax.enable_x64(True):
    naive = jax.jit(lambda v: (jnp.exp(v), v * v + v))(x)
print(hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in naive)).hexdigest())
print(seen.hexdigest())
"""


@functools.cache
def digests(isa):
    """Return (hash of plain binary64 programs, hash of the library's results)."""
    return run_python(PROGRAM, isa=isa).split()


def test_every_result_has_the_same_bits_under_avx():
    """AVX: wide vectors without a fused operation."""
    require_isa("AVX")
    assert digests("AVX")[-1] == digests(None)[-1]


def test_the_sample_would_show_a_difference():
    """Plain binary64 arithmetic on this machine does depend on the instruction set."""
    if not HAS_FMA:
        pytest.skip("this machine has no fused multiply-add to switch off")
    assert digests("AVX")[0] != digests(None)[0]


REDUCTIONS = """
import hashlib
import jax, jax.numpy as jnp, numpy as np
from onemodel_jax import numerics

NAMES = ["block_sum", "mean", "var", "softmax", "log_softmax", "logsumexp"]
CASES = [((70, 9), np.float32), ((3, 40_003), np.float32), ((3, 40_003), np.float64)]

def both(name, x):
    y, pull = jax.vjp(lambda v: getattr(numerics, name)(v, axis=-1), x)
    cotangent = x[:, ::-1] if y.shape == x.shape else x[:, 0]
    return y, pull(cotangent)[0]

def digest(results):
    leaves = [np.asarray(v) for v in jax.tree.leaves(results)]
    assert all(np.isfinite(v).all() for v in leaves)
    return hashlib.sha256(b"".join(v.tobytes() for v in leaves)).hexdigest()

rng = np.random.default_rng(0)
values = [(4 * rng.standard_normal(shape)).astype(dtype) for shape, dtype in CASES]
with jax.enable_x64(True):
    naive = jax.jit(lambda values: [(x.sum(), jnp.exp(x)) for x in values])
    exact = jax.jit(lambda values: [both(n, x) for n in NAMES for x in values])
    print(digest(naive(values)), digest(exact(values)))
"""


@functools.cache
def reduced(isa, threads):
    """Return (hash of plain sums, hash of the library's reductions and gradients)."""
    return run_python(REDUCTIONS, isa=isa, nproc=threads).split()


@pytest.mark.parametrize("threads", [1, 8])
def test_reductions_and_their_gradients_have_the_same_bits_on_any_threads(threads):
    assert reduced(None, threads)[1] == reduced(None, 2)[1]


@pytest.mark.parametrize("isa", ["SSE4_2", "AVX", "AVX2"])
def test_reductions_and_their_gradients_have_the_same_bits_under(isa):
    require_isa(isa)
    assert reduced(isa, 2)[1] == reduced(None, 2)[1]


def test_the_reductions_would_show_a_difference():
    """Plain sums on this machine do depend on the instruction set."""
    require_isa("AVX2")
    assert reduced("SSE4_2", 2)[0] != reduced("AVX2", 2)[0]
