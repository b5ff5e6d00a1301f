"""One hash after 20 steps: on every ISA, thread count, release, and after any kill."""

import functools
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jax.experimental.serialize_executable import serialize

from onemodel_jax.checkpoint import load, save, state_hash
from tests.support import ROOT, run_python
from tests.training import tiny

# The SHA-256 of the checkpoint after 20 steps; the first test below computes it with
# the NumPy reference alone.
PINNED = "b6cd9473377c30d73b2efa7e1688a4bba79a61d3cd3cc8d23bb7b589a56d97f1"

PROGRAM = """
import hashlib, os, sys
from onemodel_jax.checkpoint import load, save, state_hash
from tests.training import tiny

step = tiny.make_step()
state = tiny.run(step, tiny.new_state(), 0, 7)
save({saved!r}, state)
print(hashlib.sha256(open({saved!r}, "rb").read()).hexdigest())
print(state_hash(tiny.run(step, state, 7, 20)))
if os.path.exists({other!r}):
    state, _ = load({other!r}, tiny.new_state())
    print(state_hash(tiny.run(step, state, 7, 20)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("everywhere")


@functools.cache
def trained(folder, name, other="", **where):
    """Train elsewhere: [hash of the file saved at step 7, final hash, resumed hash].

    The file is ``folder/name``; training also resumes from ``folder/other`` at step
    7, in a process that did not write it.
    """
    code = PROGRAM.format(saved=str(folder / name), other=str(folder / (other or "-")))
    return run_python(code, **where).split()


def baseline(folder):
    return trained(folder, "sse", isa="SSE4_2", nproc=2)


def test_the_pinned_hash_is_that_of_the_numpy_reference():
    params, moments, _, _ = tiny.by_reference(20)
    state = tiny.filled(tiny.new_state(), params, moments)
    assert state_hash(state) == PINNED


def test_the_compiled_step_gives_the_pinned_hash():
    state = tiny.run(tiny.compiled(), tiny.new_state(), 0, 20)
    assert state_hash(state) == PINNED


def test_hash_and_file_under_sse4_2(folder):
    saved, final = baseline(folder)
    params, moments, _, _ = tiny.by_reference(7)
    assert saved == state_hash(tiny.filled(tiny.new_state(), params, moments))
    assert final == PINNED


ELSEWHERE = {
    "AVX, 1 thread": {"isa": "AVX", "nproc": 1},
    "AVX2, 8 threads, 64-bit types": {"isa": "AVX2", "nproc": 8, "x64": True},
    "AVX512, 2 threads": {"isa": "AVX512", "nproc": 2},
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_hash_file_and_resumed_hash_are_the_same_elsewhere(folder, name):
    """The file written under SSE4.2 at step 7 is resumed in a fresh process here."""
    want = baseline(folder)
    got = trained(folder, name, other="sse", **ELSEWHERE[name])
    assert got == [*want, PINNED]
    assert (folder / name).read_bytes() == (folder / "sse").read_bytes()


def python_with_another_release():
    """Return a Python 3.13 interpreter that has jax, or None."""
    on_path = [
        Path(folder) / "python3.13" for folder in os.environ["PATH"].split(os.pathsep)
    ]
    versions = Path.home().glob(".pyenv/versions/3.13*/bin/python3.13")
    for candidate in [*on_path, *versions]:
        if not candidate.exists():
            continue
        check = [str(candidate), "-c", "import jax; print(jax.__version__)"]
        found = subprocess.run(check, capture_output=True, text=True)
        if found.returncode == 0:
            return str(candidate)
    return None


def test_hash_under_python_3_13(folder):
    python = python_with_another_release()
    if python is None:
        pytest.skip("no python3.13 with jax on PATH or in ~/.pyenv/versions")
    got = trained(folder, "newer", other="sse", python=python)
    assert got == [*baseline(folder), PINNED]


WORKERS = """
import os, pickle, sys
from jax.experimental.serialize_executable import deserialize_and_load
from onemodel_jax.checkpoint import load, save
from tests.training import tiny

program, path = sys.argv[1:]

def work(last):
    with open(program, "rb") as file:
        step = deserialize_and_load(*pickle.load(file))
    state, _ = load(path, tiny.new_state())
    for n in range(int(state.optimizer.step), last):
        state, _ = step(state, *tiny.batch(n))
        save(path, state)
        print("saved", n + 1, flush=True)

# Modules are imported once and no device is touched before a worker is forked.
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        print("started", os.getpid(), flush=True)
        work(int(line))
        os._exit(0)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
KILLS, FAR = 20, 100_000


class Workers:
    """A process that forks a training worker for each request."""

    def __init__(self, *arguments):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKERS, *map(str, arguments)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, last):
        """Start a worker that trains to step ``last``; return its process id."""
        assert self.process.stdin is not None
        print(last, file=self.process.stdin, flush=True)
        return self.read("started")

    def read(self, word):
        """Skip to the next line that starts with ``word``; return its number."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return int(line.split()[1])
        raise AssertionError(f"no {word!r}: the workers died")


def test_killed_at_any_moment_and_resumed_ends_in_the_same_state(tmp_path):
    """SIGKILL 20 times while every step is saved; the last file is always whole.

    The workers load the step that was compiled here, so that they start quickly.
    """
    state, path, program = tiny.new_state(), tmp_path / "run", tmp_path / "step"
    program.write_bytes(pickle.dumps(serialize(tiny.compiled())))
    save(path, state)
    workers, rng, reached = Workers(program, path), random.Random(0), 0
    for _ in range(KILLS):
        pid = workers.start(FAR)
        workers.read("saved")
        time.sleep(rng.random() * 0.05)
        os.kill(pid, signal.SIGKILL)
        assert workers.read("ended") == -signal.SIGKILL
        step = int(load(path, tiny.new_state())[0].optimizer.step)
        assert step > reached
        reached = step
    last = reached + 3
    workers.start(last)
    assert workers.read("ended") == 0
    workers.process.communicate()
    want = tiny.run(tiny.compiled(), tiny.new_state(), 0, last)
    assert state_hash(load(path, tiny.new_state())[0]) == state_hash(want)
    assert not list(tmp_path.glob(".*"))
