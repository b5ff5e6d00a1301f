"""What XLA makes of this machine: the instruction set it targets, its threads."""

import functools
import os
import re

import jax
import numpy as np
from jax.experimental.serialize_executable import serialize

#: Names that --xla_cpu_max_isa has, widest first, and a CPU feature that tells each.
_MARKS = {"AVX512": "avx512f", "AVX2": "avx2", "AVX": "avx", "SSE4_2": "sse4.2"}


@functools.cache
def target_features() -> frozenset[str]:
    """Return the CPU features that a program compiled in this process may use.

    A serialized executable lists them, as in ``+avx2,+fma,-avx512f``.
    """
    compiled = jax.jit(lambda x: x + 1).lower(np.zeros(8, np.float32)).compile()
    found = re.findall(rb"\+([a-z0-9.]+)", serialize(compiled)[0])
    return frozenset(name.decode() for name in found)


def own_isa() -> str | None:
    """Return the name that --xla_cpu_max_isa has for what this process targets.

    None where it is no x86.
    """
    return next((k for k, v in _MARKS.items() if v in target_features()), None)


def num_threads() -> int:
    """Return the size of XLA's thread pool in a process with this environment.

    The first of PJRT_NPROC and NPROC that is a 32-bit integer, at least 1; any other
    value is passed over. Without one, the CPUs that this process may run on.
    """
    for name in ("PJRT_NPROC", "NPROC"):
        value = os.environ.get(name, "")
        if re.fullmatch(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*", value):
            if -(1 << 31) <= int(value) < 1 << 31:
                return max(1, int(value))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
