"""Every hostile checkpoint is refused with its typed error, from bytes and a path."""

import tracemalloc

import pytest

from onemodel_jax.checkpoint import (
    CheckpointError,
    dumps,
    load,
    loads,
    read_manifest,
    read_tensors,
    state_hash,
)
from onemodel_jax.checkpoint import format as frame_format
from tests.checkpoint.make_hostile import FOLDER, cases, data, frame, valid
from tests.checkpoint.states import as_template, target_state

STATE = target_state()
TEMPLATE = as_template(STATE)
CASES = cases()


def test_hand_assembled_file_is_what_the_writer_writes():
    assert dumps(STATE, {"samples": 640, "epoch": -1}) == valid()


def test_hand_assembled_file_loads():
    state, extra = loads(valid(), TEMPLATE)
    assert dumps(state, extra) == valid()


def test_committed_files_are_the_assembled_ones():
    assert len(CASES) >= 41
    assert {p.stem for p in FOLDER.iterdir()} == set(CASES)
    for name, content in CASES.items():
        assert (FOLDER / f"{name}.ckpt").read_bytes() == content, name


@pytest.mark.parametrize("name", CASES)
def test_hostile_bytes_are_refused_with_the_kind_of_their_name(name):
    before = state_hash(STATE)
    with pytest.raises(CheckpointError) as raised:
        loads(CASES[name], STATE)
    assert type(raised.value) is CheckpointError
    assert raised.value.kind == name.split("-")[0], str(raised.value)
    assert len(str(raised.value)) < 1000
    assert state_hash(STATE) == before


@pytest.mark.parametrize("name", CASES)
def test_hostile_file_is_refused_with_the_kind_of_its_name(name):
    with pytest.raises(CheckpointError) as raised:
        load(FOLDER / f"{name}.ckpt", TEMPLATE)
    assert raised.value.kind == name.split("-")[0], str(raised.value)


@pytest.mark.parametrize("name", CASES)
def test_reading_without_a_template_refuses_all_but_mismatches(name):
    kind = name.split("-")[0]
    try:
        manifest, arrays = read_tensors(CASES[name])
    except CheckpointError as error:
        # A mismatched shape or order is, without a target, a wrong length or offset.
        assert error.kind == kind or (kind, error.kind) == ("Mismatch", "BadTensor")
    else:
        assert kind == "Mismatch"
        assert read_manifest(FOLDER / f"{name}.ckpt") == manifest
        assert len(arrays) == len(manifest.tensors)


def test_every_prefix_of_a_file_is_a_bad_header():
    for length in range(len(valid())):
        with pytest.raises(CheckpointError) as raised:
            loads(valid()[:length], TEMPLATE)
        assert raised.value.kind == "BadHeader"


def test_every_flipped_byte_is_refused_or_is_another_state():
    good = valid()
    before, extra = loads(good, TEMPLATE)
    original = dumps(before, extra)
    for position in range(len(good)):
        flipped = bytearray(good)
        flipped[position] ^= 0xFF
        try:
            state, extra = loads(flipped, TEMPLATE)
        except CheckpointError:
            continue
        # No byte is ignored: what still loads is a different state, written so.
        assert dumps(state, extra) == flipped != original, position


def refusal_and_peak(content):
    """The error of loading ``content``, and the peak of memory asked for."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as raised:
            loads(content, TEMPLATE)
        return raised.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CASES)
def test_memory_of_a_refusal_is_bounded(name):
    _, peak = refusal_and_peak(CASES[name])
    assert peak < 2**18 + 8 * len(CASES[name])


@pytest.mark.parametrize(
    "piece", [b"[", b"[],", b"{},", b'"a",', b"1,", b'{"model":', b'"', b"\\", b" "]
)
def test_a_manifest_of_repetitions_costs_no_more_than_its_size(piece):
    for start in (b"", b'{"model":[', b'{"extra":[{"key":"', b'{"version":'):
        content = frame(start + piece * 200_000, data())
        error, peak = refusal_and_peak(content)
        assert error.kind == "BadManifest"
        assert peak < 2**18 + 8 * len(content)


def test_a_size_beyond_64_bits_is_computed_exactly():
    with pytest.raises(CheckpointError) as raised:
        read_tensors(CASES["Mismatch-huge-shape"])
    assert raised.value.kind == "BadTensor"
    assert str((2**31 - 1) ** 32 * 4) in str(raised.value)


def test_manifest_above_the_limit_is_a_bad_header(monkeypatch):
    length = int.from_bytes(valid()[24:32], "little")
    monkeypatch.setattr(frame_format, "MAX_MANIFEST", length)
    loads(valid(), TEMPLATE)
    monkeypatch.setattr(frame_format, "MAX_MANIFEST", length - 1)
    with pytest.raises(CheckpointError, match="manifest_length") as raised:
        loads(valid(), TEMPLATE)
    assert raised.value.kind == "BadHeader"
