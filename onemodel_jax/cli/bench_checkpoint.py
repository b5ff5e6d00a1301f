"""``onemodel bench checkpoint``: saving and loading beside safetensors, in one run."""

import os
import shutil
import tempfile
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onemodel_jax import checkpoint
from onemodel_jax._tree import Params
from onemodel_jax.cli.timing import interleave

MEBIBYTE = 1 << 20
TENSORS = 32


def bench_checkpoint(mebibytes: int, rounds: int) -> int:
    """Time saves and loads of a state of ``mebibytes``, each in turn.

    Raises:
      ImportError: safetensors is not installed.
    """
    try:
        from safetensors import numpy as other
    except ImportError:
        raise ImportError(
            "bench: checkpoint: expected safetensors, install onemodel-jax[exchange]"
        ) from None
    params = _state(mebibytes)
    flat = {name: np.asarray(x) for name, x in params.items()}
    folder = Path(tempfile.mkdtemp(prefix="onemodel-bench-"))
    ours, theirs = folder / "state.ckpt", folder / "state.safetensors"

    def their_save(fsync: bool) -> None:
        other.save_file(flat, theirs)
        if fsync:
            descriptor = os.open(theirs, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    try:
        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "save, fsync": (
                lambda: checkpoint.save(ours, params),
                lambda: their_save(True),
            ),
            "save, no fsync": (
                lambda: checkpoint.save(ours, params, fsync=False),
                lambda: their_save(False),
            ),
            "load": (
                lambda: jax.block_until_ready(checkpoint.load(ours, params)[0]),
                lambda: other.load_file(theirs),
            ),
        }
        print(f"state of {mebibytes} MiB in {TENSORS} tensors, {rounds} rounds in turn")
        print(f"{'':16}{'ours s':>9}{'safetensors s':>15}{'ratio':>8}")
        for name, (mine, its) in pairs.items():
            mine(), its()
            times = interleave({"ours": mine, "theirs": its}, rounds)
            ratio = np.median(np.array(times["ours"]) / np.array(times["theirs"]))
            medians = [float(np.median(times[key])) for key in ("ours", "theirs")]
            print(f"{name:16}{medians[0]:9.3f}{medians[1]:15.3f}{ratio:8.2f}")
        print(f"extra memory of a save: {_extra_memory(ours, params):.1f} MiB")
    finally:
        shutil.rmtree(folder)
    return 0


def _state(mebibytes: int) -> Params:
    rng = np.random.default_rng(0)
    size = mebibytes * MEBIBYTE // 4 // TENSORS
    return OrderedDict(
        (f"tensor{n}", jax.device_put(rng.standard_normal(size, np.float32)))
        for n in range(TENSORS)
    )


def _extra_memory(path: Path, params: Params) -> float:
    """Return the peak MiB that Python allocates while saving."""
    tracemalloc.start()
    checkpoint.save(path, params)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MEBIBYTE
