"""What ``verify --arithmetic`` says of the machine."""

import pytest

from onemodel_jax.cli.machine import num_threads
from tests.support import run_python

# (PJRT_NPROC, NPROC): threads; None: as many as CPUs
THREADS = {
    (None, None): None,
    (None, "3"): 3,
    (None, " +5\n"): 5,
    (None, "0"): 1,
    (None, "-2"): 1,
    (None, ""): None,
    (None, "many"): None,
    (None, "4x"): None,
    (None, "3_0"): None,
    (None, "\u0663"): None,
    (None, "99999999999"): None,
    ("6", "3"): 6,
    ("six", "3"): 3,
}


@pytest.mark.parametrize("variables", THREADS)
def test_the_number_of_threads_is_read_as_the_compiler_reads_it(monkeypatch, variables):
    for name in ("PJRT_NPROC", "NPROC"):
        monkeypatch.delenv(name, raising=False)
    cpus = num_threads()
    for name, value in zip(("PJRT_NPROC", "NPROC"), variables, strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert num_threads() == (THREADS[variables] or cpus) >= 1


POOL = """
from collections import Counter
from pathlib import Path
import jax.numpy as jnp
from onemodel_jax.cli.machine import num_threads

jnp.ones(3).block_until_ready()
names = Counter(p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm"))
print(num_threads(), names["tf_XLAEigen"])
"""


@pytest.mark.parametrize("nproc", ["3", " 4 ", "0", "4x"])
def test_the_compilers_pool_has_that_many_threads(nproc):
    told, seen = run_python(POOL, nproc=nproc).split()
    if seen == "0":
        pytest.skip("this system does not name its threads")
    assert told == seen
