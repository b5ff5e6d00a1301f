"""The property that every input to the checkpoint reader must have.

Shared by the seeded mutator that the tests run and by the coverage-guided target.
"""

import struct

from onemodel_jax._tree import TrainState
from onemodel_jax.checkpoint import CheckpointError, dumps, loads, state_hash
from tests.checkpoint.make_hostile import cases, valid
from tests.checkpoint.states import crnn_state, target_state

KINDS = ("BadHeader", "BadManifest", "BadTensor", "Mismatch")
EXTRA = {"samples": 640, "epoch": -1}

#: Four model and optimizer pairs: two sizes, each with and without optimizer state.
PAIRS = {
    "small": crnn_state(1, 2, False),
    "small, optimizer": crnn_state(1, 2, True),
    "large": crnn_state(2, 3, False),
    "large, optimizer": crnn_state(2, 3, True),
}
HASHES = {name: state_hash(state) for name, state in PAIRS.items()}


def seeds():
    """Valid checkpoints of each pair, and the hostile files."""
    files = [dumps(state, EXTRA) for state in PAIRS.values()]
    return [*files, valid(), dumps(target_state()), *cases().values()]


def repaired(data):
    """Return ``data`` with the header's length fields made to fit its real length.

    Mutations of the manifest and the data then get past the length checks. A change
    of length in the manifest shows as a shifted data offset: the manifest is taken
    to end at its last ``]}`` and is padded anew.
    """
    end = data.rfind(b"]}") + 2
    if len(data) < 64 or end < 66:
        return data
    offset = -(-end // 64) * 64
    region = data[-(-end // 64) * 64 :]
    lengths = (64, end - 64, offset, len(region), offset + len(region), 0)
    header = struct.pack("<8sII6Q", b"ONEMCKPT", 1, 0, *lengths)
    return (header + data[64:end]).ljust(offset, b"\0") + region


def region(data):
    """The data region of a file that has loaded."""
    return data[int.from_bytes(data[32:40], "little") :]


def check(data):
    """Load ``data`` into every pair; return the outcomes.

    Raises AssertionError unless each outcome is a typed error, or a state that is
    written back as the same state and holds the file's own bytes.
    """
    return [_check_one(data, name) for name in PAIRS]


def _check_one(data, name):
    like = PAIRS[name]
    try:
        state, extra = loads(data, like)
    except CheckpointError as error:
        assert type(error) is CheckpointError and error.kind in KINDS
        return error.kind
    again = dumps(state, extra)
    second, more = loads(again, like)
    assert dumps(second, more) == again and more == extra
    # The file's own bytes have arrived, all of them where the optimizer is taken too.
    wrote, held = (region(x).rstrip(b"\0") for x in (again, data))
    assert held.startswith(wrote)
    assert like.optimizer is None or held == wrote
    return "loaded"


def check_unchanged():
    """Fail if any load has changed a template."""
    assert {name: state_hash(state) for name, state in PAIRS.items()} == HASHES
    assert all(isinstance(state, TrainState) for state in PAIRS.values())
