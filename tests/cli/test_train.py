"""``onemodel train``: the pinned hash of the main job, everywhere and after a resume.

The value was printed by the command and confirmed by the NumPy reference over all 20
steps (tests/cli/reference_run.py).
"""

import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support import ROOT, environment

PINNED = "c4397aff205ef06a4b1b133e0677886e8a8239c07aecdd8bceb627991527ba1a"


def train(folder, *options, isa=None, nproc=None):
    command = [sys.executable, "-m", "onemodel_jax.cli.main", "train", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(isa=isa, nproc=nproc),
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def hash_of(output):
    return re.search(r"^state hash ([0-9a-f]{64})$", output, re.MULTILINE).group(1)


@pytest.mark.slow
def test_twenty_steps_broken_at_the_seventh_give_the_pinned_hash(tmp_path):
    train(tmp_path, "--steps", "20", "--stop-at", "7", "--out", "run.ckpt", nproc=1)
    output = train(tmp_path, "--resume", "run.ckpt", "--out", "run.ckpt", nproc=8)
    assert hash_of(output) == PINNED
    assert "7 of 20" not in output and "20 of 20" in output
    assert (tmp_path / "run.ckpt.1").exists()


@pytest.mark.slow
def test_twenty_steps_without_fma_give_the_pinned_hash(tmp_path):
    output = train(tmp_path, "--steps", "20", "--seed", "0", isa="SSE4_2")
    assert hash_of(output) == PINNED


@pytest.mark.slow
def test_an_interrupted_run_saves_and_says_how_to_go_on(tmp_path):
    """Own lines, Ctrl-C in the middle, then the rest: as if never interrupted."""
    lines = tmp_path / "lines"
    lines.mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for n in range(4):
        ink = rng.integers(0, 256, (32, 24 + 8 * n), np.uint8)
        np.save(lines / f"{n}.npy", ink)
        rows.append(f"{n}.npy\t{'ab'[n % 2]}\n")
    (lines / "labels.txt").write_text("".join(rows))
    options = ["--data", str(lines), "--charset", "ab", "--batch", "2"]
    command = [sys.executable, "-m", "onemodel_jax.cli.main", "train", *options]
    command += ["--steps", "2000", "--out", "own.ckpt", "--save-every", "1"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 900
    while not (tmp_path / "own.ckpt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    step = int(re.search(r"interrupted at step (\d+)", output).group(1))
    shutil.copy(tmp_path / "own.ckpt", tmp_path / "kept.ckpt")
    resume = ["--data", str(lines), "--resume", "kept.ckpt", "--stop-at", str(step + 3)]
    broken = train(tmp_path, *resume, "--out", "again.ckpt")
    assert f"after step {step + 3} of 2000" in broken
    assert f"from step {step}" in broken
    whole = train(
        tmp_path,
        *options,
        *("--steps", "2000", "--stop-at", str(step + 3), "--out", "whole.ckpt"),
    )
    assert hash_of(whole) == hash_of(broken)


def test_the_repository_holds_the_script_that_confirms_the_hash():
    assert (ROOT / "tests" / "cli" / "reference_run.py").exists()
