"""Saving never loses the last good file: failures, kills, full disks, two writers."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from onemodel_jax.checkpoint import dumps, load, loads, read_manifest, save
from onemodel_jax.checkpoint.errors import CheckpointError
from onemodel_jax.checkpoint.storage import FileSource, replace
from tests.support import ROOT

OLD, NEW = {"w": np.float32([1, 2])}, {"w": np.float32([3, 4])}


def names(directory):
    return sorted(os.listdir(directory))


def saved_values(path):
    return loads(path.read_bytes(), OLD)[0]["w"].tolist()


def test_save_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "x.ckpt"
    save(path, OLD)
    save(path, NEW)
    assert saved_values(path) == [3, 4] and names(tmp_path) == ["x.ckpt"]


def test_save_accepts_a_bare_name_and_a_string(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("x.ckpt", OLD)
    assert load("x.ckpt", OLD)[0]["w"].tolist() == [1, 2]


def test_new_file_has_the_permissions_of_the_mask(tmp_path):
    old = os.umask(0o027)
    try:
        save(tmp_path / "x", OLD)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(tmp_path / "x").st_mode) == 0o640


def test_symbolic_link_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "x")
    save(tmp_path / "link", OLD)
    save(tmp_path / "link", NEW)
    assert (tmp_path / "link").is_symlink()
    assert saved_values(tmp_path / "far" / "x") == [3, 4]
    assert names(tmp_path / "far") == ["x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_failure_while_writing_keeps_the_old_file_alone(tmp_path, error):
    path = tmp_path / "x.ckpt"
    save(path, OLD)

    def pieces():
        yield b"half"
        raise error

    with pytest.raises(error):
        replace(path, pieces())
    assert saved_values(path) == [1, 2] and names(tmp_path) == ["x.ckpt"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "link"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_failing_system_call_keeps_the_old_file_alone(
    tmp_path, monkeypatch, call, error
):
    path = tmp_path / "x.ckpt"
    save(path, OLD)

    def failing(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(os, call, failing)
        save(path, NEW, keep=1)
    assert saved_values(path) == [1, 2] and ".x.ckpt.saving" not in names(tmp_path)
    save(path, NEW)
    assert saved_values(path) == [3, 4]


def test_file_and_directory_are_flushed_before_and_after_the_rename(
    tmp_path, monkeypatch
):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def recorded(*args, name=name, real=real):
            is_directory = name == "fsync" and stat.S_ISDIR(os.fstat(*args).st_mode)
            calls.append("fsync directory" if is_directory else name)
            return real(*args)

        monkeypatch.setattr(os, name, recorded)
    save(tmp_path / "x", OLD)
    assert calls == ["fsync", "replace", "fsync directory"]
    calls.clear()
    save(tmp_path / "x", OLD, fsync=False)
    assert calls == ["replace"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, view: real(fd, view[:7]))
    save(tmp_path / "x", OLD)
    assert (tmp_path / "x").read_bytes() == dumps(OLD)


def test_short_reads_are_continued(tmp_path, monkeypatch):
    save(tmp_path / "x", NEW)
    real = os.preadv
    short = lambda fd, views, at: real(fd, [views[0][:5]], at)  # noqa: E731
    monkeypatch.setattr(os, "preadv", short)
    assert load(tmp_path / "x", OLD)[0]["w"].tolist() == [3, 4]


def test_file_that_shrinks_while_it_is_read_is_a_bad_header(tmp_path):
    save(tmp_path / "x", OLD)
    with open(tmp_path / "x", "r+b") as stream:
        source = FileSource(stream.fileno())
        stream.truncate(40)
        with pytest.raises(CheckpointError, match="became shorter") as raised:
            source.read(0, 64)
    assert raised.value.kind == "BadHeader"


def test_missing_folder_and_file_are_os_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "no" / "x", OLD)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "no", OLD)
    with pytest.raises(IsADirectoryError):
        load(tmp_path, OLD)


def test_named_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_manifest(tmp_path / "pipe")


def test_read_only_directory_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.ckpt"
    save(path, OLD)
    os.chmod(tmp_path, 0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user writes to read-only directories (root)")
        with pytest.raises(PermissionError):
            save(path, NEW)
    finally:
        os.chmod(tmp_path, 0o755)
    assert saved_values(path) == [1, 2] and names(tmp_path) == ["x.ckpt"]


def test_keep_names_generations_from_the_newest(tmp_path):
    path = tmp_path / "x"
    for value in range(6):
        save(path, {"w": np.float32([value, 0])}, keep=2)
    assert names(tmp_path) == ["x", "x.1", "x.2"]
    found = [saved_values(tmp_path / n)[0] for n in names(tmp_path)]
    assert found == [5, 4, 3]
    save(path, NEW, keep=0)
    assert names(tmp_path) == ["x", "x.1", "x.2"] and saved_values(path) == [3, 4]


def test_shift_stops_at_the_first_gap(tmp_path):
    path = tmp_path / "x"
    save(path, OLD)
    (tmp_path / "x.2").write_bytes(b"older")
    save(path, NEW, keep=3)
    assert (tmp_path / "x.2").read_bytes() == b"older"
    assert saved_values(tmp_path / "x.1") == [1, 2]


def test_save_killed_between_link_and_rename_repeats_no_generation(tmp_path):
    path = tmp_path / "x"
    save(path, OLD)
    os.link(path, tmp_path / "x.1")
    (tmp_path / ".x.previous").write_bytes(b"left behind")
    (tmp_path / "x.2").write_bytes(b"older")
    save(path, NEW, keep=2)
    assert saved_values(tmp_path / "x.1") == [1, 2]
    assert (tmp_path / "x.2").read_bytes() == b"older"
    save(path, OLD, keep=2)
    assert saved_values(tmp_path / "x.1") == [3, 4]
    assert names(tmp_path) == ["x", "x.1", "x.2"]


@pytest.mark.parametrize(
    ("keep", "error"), [(-1, ValueError), (True, TypeError), (1.0, TypeError)]
)
def test_keep_is_checked_before_anything_is_written(tmp_path, keep, error):
    with pytest.raises(error, match="save: keep: expected"):
        save(tmp_path / "x", OLD, keep=keep)
    assert names(tmp_path) == []


def test_what_a_killed_save_left_is_reused_and_removed(tmp_path):
    (tmp_path / ".x.saving").write_bytes(bytes(10_000))
    save(tmp_path / "x", OLD)
    assert (tmp_path / "x").read_bytes() == dumps(OLD) and names(tmp_path) == ["x"]


def test_temporary_name_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / ".x.saving").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        save(tmp_path / "x", OLD)
    assert (tmp_path / "victim").read_bytes() == b"precious"


HOLDER = """
import fcntl, os, sys, time
path = sys.argv[1]
descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(0.3)
os.write(descriptor, b"other")
os.replace(path, os.path.join(os.path.dirname(path), "x"))
"""


def test_second_writer_is_told_and_waits_for_the_first(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / ".x.saving")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.warns(RuntimeWarning, match="another writer is saving"):
            save(tmp_path / "x", NEW, keep=1)
    assert saved_values(tmp_path / "x") == [3, 4]
    assert (tmp_path / "x.1").read_bytes() == b"other"
    assert names(tmp_path) == ["x", "x.1"]


def test_one_writer_gets_no_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path / "x", OLD)
        save(tmp_path / "x", NEW)


def test_file_system_without_locks_is_served(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    save(tmp_path / "x", OLD)
    assert saved_values(tmp_path / "x") == [1, 2]


def test_other_lock_errors_are_raised_and_leave_the_old_file(tmp_path, monkeypatch):
    save(tmp_path / "x", OLD)

    def failing(*_):
        raise OSError(5, "input/output error")

    monkeypatch.setattr(fcntl, "flock", failing)
    with pytest.raises(OSError, match="input/output"):
        save(tmp_path / "x", NEW)
    assert saved_values(tmp_path / "x") == [1, 2]


SAVER = """
import sys
import numpy as np
from onemodel_jax.checkpoint import save
i = int(sys.argv[2])
print("started", flush=True)
while True:
    i += 1
    state = {"step": np.int64(i), "w": np.full(200_000, i, np.float32)}
    save(sys.argv[1], state, keep=2, fsync=False)
"""


def test_killed_while_saving_the_file_is_always_whole(tmp_path):
    path, rng = tmp_path / "x.ckpt", np.random.default_rng(0)
    like = {"step": np.int64(0), "w": np.zeros(200_000, np.float32)}
    save(path, like)
    interrupted = 0
    for _ in range(12):
        step = int(load(path, like)[0]["step"])
        command = [sys.executable, "-c", SAVER, str(path), str(step)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as saver:
            assert saver.stdout is not None and saver.stdout.readline()
            time.sleep(float(rng.uniform(0.0, 0.05)))
            saver.send_signal(signal.SIGKILL)
        interrupted += (tmp_path / ".x.ckpt.saving").exists()
        state, _ = load(path, like)
        assert int(state["step"]) >= step
        assert set(np.asarray(state["w"]).tolist()) == {float(state["step"])}
        for older in tmp_path.glob("x.ckpt.?"):
            load(older, like)
    assert interrupted > 0, "no kill struck a save: the test shows nothing"
    save(path, like)
    assert not (tmp_path / ".x.ckpt.saving").exists()


@pytest.fixture
def tmpfs(tmp_path):
    """A mounted file system of 256 KiB, or a skip."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("cannot mount a tmpfs (needs root and the right to mount)")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_full_disk_keeps_the_old_file(tmpfs):
    save(tmpfs / "x", OLD)
    with pytest.raises(OSError, match="No space left"):
        save(tmpfs / "x", {"w": np.zeros(10**6, np.float32)}, keep=1)
    assert names(tmpfs) == ["x"] and saved_values(tmpfs / "x") == [1, 2]
    save(tmpfs / "x", NEW, keep=1)
    assert names(tmpfs) == ["x", "x.1"] and saved_values(tmpfs / "x") == [3, 4]


def test_read_only_file_system_keeps_the_old_file(tmpfs):
    save(tmpfs / "x", OLD)
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    with pytest.raises(OSError, match="Read-only"):
        save(tmpfs / "x", NEW)
    assert names(tmpfs) == ["x"] and saved_values(tmpfs / "x") == [1, 2]
