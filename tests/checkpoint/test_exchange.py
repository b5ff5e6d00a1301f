"""safetensors and .npz: bits, layouts, determinism, refusals, damaged files."""

import io
import struct
import sys
import zipfile
from collections import OrderedDict

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from onemodel_jax._tree import TrainState
from onemodel_jax.checkpoint import (
    CheckpointError,
    export_npz,
    export_safetensors,
    import_npz,
    import_safetensors,
)
from onemodel_jax.checkpoint.exchange import NPZ_DTYPES, SAFETENSORS_CODES
from tests.checkpoint.states import as_template, crnn_state, target_state
from tests.support import random_bits

safetensors = pytest.importorskip("safetensors", reason="optional extra: exchange")
FORMATS = {
    "npz": (export_npz, import_npz, NPZ_DTYPES),
    "safetensors": (export_safetensors, import_safetensors, tuple(SAFETENSORS_CODES)),
}
EACH = pytest.mark.parametrize("name", FORMATS)
BOTH = pytest.mark.parametrize(("write", "read", "dtypes"), FORMATS.values())


def words(x):
    return np.ascontiguousarray(np.asarray(x)).tobytes()


def array_of(dtype, shape=(3, 4)):
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "bfloat16":
        return random_bits(rng, shape, np.float16).view(ml_dtypes.bfloat16)
    if dtype.startswith("float"):
        return random_bits(rng, shape, np.dtype(dtype))
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@BOTH
def test_every_dtype_of_the_format_returns_with_its_bits(tmp_path, write, read, dtypes):
    state = {d: array_of(d) for d in dtypes} | {"scalar": np.float32(1.5)}
    state |= {"none": np.zeros((0, 3), np.float32)}
    write(tmp_path / "x", state)
    got = read(tmp_path / "x", as_numpy_template(state))
    for key, want in state.items():
        assert (got[key].dtype, got[key].shape) == (want.dtype, np.shape(want)), key
        assert words(got[key]) == words(want), key


def as_numpy_template(state):
    """Zero-strided stand-ins, which keep the 64-bit dtypes whatever the mode."""
    return jax.tree_util.tree_map(
        lambda x: np.broadcast_to(np.zeros((), x.dtype), np.shape(x)), state
    )


@BOTH
def test_model_of_a_training_state_is_exchanged_by_name(tmp_path, write, read, dtypes):
    state = crnn_state(1, 3, True)
    write(tmp_path / "x", state)
    alone = TrainState(state.params, state.buffers, None)
    reordered = OrderedDict(reversed(state.params.items()))
    for like in (alone, TrainState(reordered, state.buffers, state.optimizer)):
        got = read(tmp_path / "x", as_template(like) if like is alone else like)
        assert list(got.params) == list(like.params)
        for (path, g), w in zip(
            jax.tree_util.tree_flatten_with_path((got.params, got.buffers))[0],
            jax.tree_util.tree_leaves((like.params, like.buffers)),
            strict=True,
        ):
            assert isinstance(g, jax.Array) and words(g) == words(w), path
        assert got.optimizer is like.optimizer


@BOTH
def test_same_state_gives_the_same_bytes(tmp_path, write, read, dtypes, monkeypatch):
    write(tmp_path / "a", target_state())
    monkeypatch.setattr("time.time", lambda: 2e9)
    write(tmp_path / "b", target_state())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


BASE = np.arange(6, dtype=np.float32).reshape(2, 3)


@BOTH
@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(BASE),
        BASE[:, ::-1],
        np.arange(12, dtype=np.float32).reshape(4, 3)[::2],
        np.broadcast_to(np.float32([1, 2]), (4, 2)),
        BASE.astype(">f4"),
    ],
    ids=["fortran", "reversed", "strided", "broadcast", "big-endian"],
)
def test_memory_layout_does_not_reach_the_file(tmp_path, write, read, dtypes, array):
    plain = np.ascontiguousarray(array, "<f4")
    write(tmp_path / "a", {"w": array})
    write(tmp_path / "b", {"w": plain})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    got = read(tmp_path / "a", {"w": array})["w"]
    assert words(got) == plain.tobytes()


def test_files_are_read_by_the_formats_own_libraries(tmp_path):
    from safetensors.numpy import load_file

    state = {"file": BASE, "a.b": np.int32([1])}
    export_safetensors(tmp_path / "x.safetensors", state)
    export_npz(tmp_path / "x.npz", state)
    theirs = load_file(tmp_path / "x.safetensors")
    with np.load(tmp_path / "x.npz") as archive:
        for key, want in state.items():
            np.testing.assert_array_equal(archive[key], want)
            np.testing.assert_array_equal(theirs[key], want)


def test_files_of_the_formats_own_libraries_are_read(tmp_path):
    from safetensors.numpy import save_file

    state = {"w": BASE, "v": np.asfortranarray(BASE + 1), "big": BASE.astype(">f4")}
    plain = {k: np.ascontiguousarray(v, v.dtype) for k, v in state.items()}
    np.savez_compressed(tmp_path / "x.npz", **state)
    save_file(plain, tmp_path / "x.safetensors")
    for got in (
        import_npz(tmp_path / "x.npz", state),
        import_safetensors(tmp_path / "x.safetensors", state),
    ):
        for key in state:
            np.testing.assert_array_equal(np.asarray(got[key]), plain[key])


LACKING = {
    "npz": [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64, object, "U1"],
    "safetensors": [ml_dtypes.float8_e4m3fn, np.complex64, object, "U1", "M8[s]"],
}


@EACH
def test_dtype_that_the_format_lacks_is_refused_by_name(tmp_path, name):
    write, read, _ = FORMATS[name]
    for dtype in LACKING[name]:
        bad = {"good": BASE, "bad": np.zeros(2, dtype)}
        with pytest.raises(TypeError, match=f"export_{name}: tensor 'bad'"):
            write(tmp_path / "x", bad)
        with pytest.raises(TypeError, match=f"import_{name}: tensor 'bad'"):
            read(tmp_path / "x", bad)
    with pytest.raises(TypeError, match="tensor 'bad'.* got float"):
        write(tmp_path / "x", {"bad": 1.5})
    with pytest.raises(ValueError, match="distinct names"):
        write(tmp_path / "x", {"a": {"b": BASE}, "a.b": BASE})
    assert list(tmp_path.iterdir()) == []


@EACH
def test_another_name_shape_or_dtype_is_a_mismatch(tmp_path, name):
    write, read, _ = FORMATS[name]
    write(tmp_path / "x", {"w": BASE})
    for like in (
        {"v": BASE},
        {"w": BASE, "v": BASE},
        {},
        {"w": BASE.T},
        {"w": BASE.astype(np.int32)},
        {"w": BASE.astype(np.float64)},
    ):
        with pytest.raises(CheckpointError) as raised:
            read(tmp_path / "x", like)
        assert raised.value.kind == "Mismatch"


@EACH
def test_damaged_files_are_refused_or_hold_what_they_say(tmp_path, name):
    write, read, _ = FORMATS[name]
    state = {"n": jnp.array(3, jnp.int32), "w": jnp.array(BASE)}
    write(tmp_path / "x", state)
    good = (tmp_path / "x").read_bytes()
    damaged = [good[:n] for n in range(0, len(good), 7)]
    for position in range(len(good)):
        changed = bytearray(good)
        changed[position] ^= 1 << (position % 8)
        damaged.append(bytes(changed))
    refused = 0
    for content in damaged:
        (tmp_path / "y").write_bytes(content)
        try:
            got = read(tmp_path / "y", state)
        except CheckpointError as error:
            assert error.kind in ("BadManifest", "Mismatch")
            refused += 1
        else:
            assert [g.shape for g in got.values()] == [w.shape for w in state.values()]
    assert refused > len(damaged) // 4


def npz_of(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return buffer.getvalue()


def npy(header, data, version=1):
    text = header.encode().ljust(117) + b"\n"
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text + data
    )


HEAD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
HOSTILE_NPZ = {
    "huge": npz_of(w_npy=npy(HEAD.replace("(2,)", "(10**15,)"), b"")),
    "huge shape": npz_of(w_npy=npy(HEAD.replace("2,", "1000000000000000,"), b"")),
    "short data": npz_of(w_npy=npy(HEAD, bytes(7))),
    "long data": npz_of(w_npy=npy(HEAD, bytes(9))),
    "pickle": npz_of(w_npy=npy(HEAD.replace("<f4", "|O"), b"cos\nsystem\n.")),
    "version": npz_of(w_npy=npy(HEAD, bytes(8), 9)),
    "no suffix": npz_of(w=npy(HEAD, bytes(8))),
    "not npy": npz_of(w_npy=b"hello"),
    "not zip": b"PK\x03\x04",
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE_NPZ)
def test_hostile_npz_is_refused(tmp_path, name):
    (tmp_path / "x").write_bytes(HOSTILE_NPZ[name])
    with pytest.raises(CheckpointError):
        import_npz(tmp_path / "x", {"w": np.zeros(2, np.float32)})


def test_hand_made_npz_is_read(tmp_path):
    data = struct.pack("<2f", 1, 2)
    (tmp_path / "x").write_bytes(npz_of(w_npy=npy(HEAD, data)))
    got = import_npz(tmp_path / "x", {"w": np.zeros(2, np.float32)})
    assert got["w"].tolist() == [1, 2]


def test_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (export_safetensors, import_safetensors):
        with pytest.raises(ImportError, match="package safetensors .extra: exchange"):
            call(tmp_path / "x", {})


@EACH
def test_missing_file_is_an_os_error(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        FORMATS[name][1](tmp_path / "no", {})
