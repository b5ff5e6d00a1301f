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
