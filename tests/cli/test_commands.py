"""The command: what it prints, what it refuses, and its exit codes."""

import hashlib
import json
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from onemodel_jax.checkpoint import load_model, save
from onemodel_jax.cli import bench_numerics, machine, session
from onemodel_jax.cli.export import parity_faults
from onemodel_jax.cli.main import main
from onemodel_jax.cli.timing import interleave
from onemodel_jax.models.crnn import DIGITS
from tests.support import ROOT

HOSTILE = ROOT / "testdata" / "checkpoint" / "hostile"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of a run of 500 steps, before its first."""
    settings = session.Settings(7, 16, 500, 2e-3, DIGITS, "0123456789", 0, "exact")
    path = tmp_path_factory.mktemp("run") / "digits.ckpt"
    save(path, session.fresh_state(settings), session.to_extra(settings))
    return path


def test_hash_is_the_sha256_of_the_file(checkpoint, capsys):
    assert main(["hash", str(checkpoint)]) == 0
    want = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert capsys.readouterr().out.strip() == want


def test_settings_come_back_from_the_extra_integers(checkpoint):
    settings = session.read_settings(str(checkpoint))
    assert settings == (7, 16, 500, 2e-3, DIGITS, "0123456789", 0, "exact")


def test_a_seed_above_the_signed_range_comes_back():
    settings = session.Settings(2**64 - 1, 1, 1, 0.1, DIGITS, "01", 5, "fast")
    assert session.from_extra(session.to_extra(settings)) == settings


def test_inspect_lists_tensors_and_statistics(checkpoint, capsys):
    assert main(["inspect", str(checkpoint)]) == 0
    out = capsys.readouterr().out
    assert "optimizer: adamw_lerp" in out and "lstm1.reverse.w_hh" in out
    assert main(["inspect", "--json", str(checkpoint)]) == 0
    report = json.loads(capsys.readouterr().out)
    first = report["tensors"][0]
    assert (first["name"], first["shape"], first["bytes"]) == (
        "conv0.weight",
        [16, 16],
        1024,
    )
    assert first["not_finite"] == 0 and first["min"] < 0 < first["max"]
    assert report["step"] == 0 and report["extra"]["seed"] == 7


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.ckpt"))[::8], ids=str)
def test_inspect_and_hash_name_the_fault_of_a_hostile_file(path, capsys):
    kind = path.name.split("-")[0]
    if kind == "Mismatch":
        pytest.skip("such a file is well-formed; only a template refuses it")
    for command in ("inspect", "hash"):
        assert main([command, str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"onemodel {command}: {path}: {kind}: ")


def test_export_writes_a_container_that_a_flipped_byte_spoils(
    checkpoint, tmp_path, capsys
):
    out = tmp_path / "digits.onemodel"
    assert main(["export", str(checkpoint), str(out)]) == 0
    params = session.load_recognizer(str(checkpoint)).params
    assert parity_faults(params, str(out)) == []
    assert load_model(out).charset == "0123456789"
    data = bytearray(out.read_bytes())
    data[-64] ^= 1
    out.write_bytes(data)
    assert len(parity_faults(params, str(out))) == 1
    assert main(["inspect", str(out)]) == 0
    assert "architecture: crnn" in capsys.readouterr().out


def test_export_refuses_a_weight_beyond_binary16_and_leaves_the_old_file(
    checkpoint, tmp_path, capsys
):
    settings = session.read_settings(str(checkpoint))
    state = session.fresh_state(settings)
    state.params["conv1"]["bias"] = jnp.full(32, 7e4, jnp.float32)
    huge, out = tmp_path / "huge.ckpt", tmp_path / "old.onemodel"
    save(huge, state, session.to_extra(settings))
    out.write_bytes(b"old")
    assert main(["export", str(huge), str(out)]) == 2
    assert "conv1.bias" in capsys.readouterr().err
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_export_in_other_formats(checkpoint, tmp_path, kind, capsys):
    if kind == "safetensors":
        pytest.importorskip("safetensors")
    out = tmp_path / f"digits.{kind}"
    assert main(["export", "--format", kind, str(checkpoint), str(out)]) == 0
    assert out.stat().st_size > 1_000_000


ERRORS = {
    "no such file": (["hash", "nowhere.ckpt"], "nowhere.ckpt"),
    "steps": (["train", "--steps", "0"], "--steps"),
    "seed": (["train", "--seed", "-1"], "--seed: expected 0 to 2^64 - 1, got -1"),
    "rate": (["train", "--lr", "0"], "--lr"),
    "infinite rate": (["train", "--lr", "inf"], "--lr: expected above 0 and finite"),
    "too many steps": (["train", "--steps", "99999999999"], "--steps: expected 1 to"),
    "stop at 0": (["train", "--stop-at", "0"], "--stop-at: expected 1 to"),
    "no folder": (["train", "--out", "nowhere/x.ckpt"], "--out: expected a folder"),
    "charset alone": (["train", "--charset", "ab"], "--data"),
    "no directory": (["train", "--data", "nowhere"], "nowhere"),
    "lines": (["eval", "x", "--lines", "0"], "--lines"),
    "seed of verify": (
        ["verify", "--fuzz", "3", "--seed", "-1"],
        "--seed: expected 0 to 2^64 - 1, got -1",
    ),
    "rounds": (["bench", "--rounds", "0"], "--rounds"),
    "unknown sum": (["reveal", "what"], "what"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_users_error_is_one_line_and_exit_code_2(case, capsys):
    command, text = ERRORS[case]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and text in error
    assert error.startswith(f"onemodel {command[0]}")
    assert error.count(command[0]) == 1


@pytest.mark.parametrize(
    ("key", "value"), [("charset.00000", 2**40), ("config.hidden", 2**40)]
)
def test_eval_refuses_hostile_settings_without_building_the_model(
    checkpoint, tmp_path, capsys, key, value
):
    settings = session.read_settings(str(checkpoint))
    extra = session.to_extra(settings) | {key: value}
    path = tmp_path / "hostile.ckpt"
    save(path, session.fresh_state(settings), extra)
    assert main(["eval", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"onemodel eval: {path}: ") and error.count("\n") == 1


def test_resume_refuses_another_seed(checkpoint, capsys):
    assert main(["train", "--resume", str(checkpoint), "--seed", "8"]) == 2
    assert "--seed: expected 7" in capsys.readouterr().err


def test_resume_refuses_other_lines(checkpoint, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.zeros((32, 64), np.uint8))
    np.save(tmp_path / "b.npy", np.zeros((32, 64), np.uint8))
    (tmp_path / "labels.txt").write_text("a.npy\t1\nb.npy\t2\n")
    command = ["train", "--resume", str(checkpoint), "--data", str(tmp_path)]
    assert main(command) == 2
    assert "--data: expected the lines" in capsys.readouterr().err


def test_reveal_prints_the_halving_tree(capsys):
    assert main(["reveal", "onemodel.dot", "-n", "16"]) == 0
    out = capsys.readouterr().out
    assert "16 terms, depth 4, every sum rounded to float32, no product seen" in out
    assert "added to 0, cannot show it" in out
    assert "0 + 8" in out and "7 + 15" in out


SUMS = """
import numpy as np

def backwards(x):
    total = np.float32(0)
    for v in x[::-1]:
        total += v
    return total

def dot(x, y):
    return np.float32(sum(x.astype(float) * y.astype(float)))

def as_float(x, y):
    return float(np.cumsum(x * y)[-1])

def largest(x):
    return np.sum(np.sort(x))

def mean(x):
    return np.mean(x)

def short(x):
    return x[9]

def three(x, y, z):
    return 0

number = 3
"""


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """Modules of the user's in the current directory."""
    (tmp_path / "my_sums.py").write_text(SUMS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_sums", None)


def test_reveal_takes_functions_of_the_users(sums, capsys):
    command = ["reveal", "my_sums:backwards", "my_sums:dot", "my_sums:largest"]
    assert main([*command, "-n", "5"]) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    assert blocks[:2] == [
        "my_sums:backwards, 5 terms, depth 4, every sum rounded to float32\n"
        "3 + 4 + 2 + 1 + 0",
        "my_sums:dot, 5 terms, depth 4, every sum rounded to float64, the last to "
        "float32, 5 products fused into their addition\n0 + 1 + 2 + 3 + 4",
    ]
    head, tree = blocks[2].split("\n", 1)
    assert head.endswith(
        "neither float32 nor float64 additions give its bits "
        "(kept in additions: 25 bits in 1)"
    )
    assert tree.startswith("+ (5 at once)")


def test_reveal_sees_the_rounding_behind_a_python_float(sums, capsys):
    assert main(["reveal", "my_sums:as_float", "-n", "5"]) == 0
    out = capsys.readouterr().out
    assert "depth 4, every sum rounded to float32, no product seen fused" in out


REVEAL_ERRORS = {
    "my_sums:mean": "my_sums:mean: expected a sum of its terms, got 1.0 for 4 ones",
    "my_sums:short": "my_sums:short: expected a function of float32[4] to a number, "
    "got IndexError: ",
    "my_sums:three": "TypeError: three() missing 2 required",
    "my_sums:number": "function: expected a function, got int",
    "my_sums:backward": "a name in my_sums (backwards?), got 'backward'",
    "my_sums.py:dot": "expected module:function, got 'my_sums.py:dot' (name the",
    "my_sums": "jnp.sum, np.sum or module:function, got 'my_sums'",
    "no_such:f": "expected a module that can be imported, got 'no_such'",
    "broken:f": "got 'broken', which raises ZeroDivisionError: division by zero",
    "./my_sums:dot": "expected module:function, got './my_sums:dot'",
    "-n 0": "-n: expected 1 to 2^24, got 0",
    "--draw nowhere/x.png": "--draw: expected a file in a folder that exists",
    "--draw .": "--draw: expected a file, no folder, got '.'",
    "--draw x/": "--draw: expected a file, no folder, got 'x/'",
    "--draw x.abc": "--draw: expected a name that ends in one of",
}


@pytest.mark.parametrize("options", REVEAL_ERRORS)
def test_reveal_refuses_in_one_line(options, sums, capsys):
    if options.startswith("--draw"):
        pytest.importorskip("matplotlib")
    assert main(["reveal", "-n", "4", *options.split()]) == 2
    out, error = capsys.readouterr()
    assert error.count("\n") == 1 and error.startswith("onemodel reveal: ")
    assert error.count("reveal: ") == 1
    assert REVEAL_ERRORS[options] in error and not out


def test_reveal_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "trees.png"
    assert main(["reveal", "np.sum", "-n", "9", "--draw", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"drew {path}\n" in capsys.readouterr().out


def test_reveal_says_which_file_it_wrote(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["reveal", "np.sum", "-n", "2", "--draw", str(tmp_path / "trees")]) == 0
    assert f"drew {tmp_path}/trees.png\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["trees.png"]


def test_an_error_names_the_command_once(sums, capsys):
    assert main(["verify", "--vjp", "my_sums:number"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("onemodel verify --vjp: function: expected a function")


def test_verify_arithmetic_holds_and_shows_the_hazards(capsys):
    assert main(["verify", "--arithmetic"]) == 0
    out = capsys.readouterr().out
    assert f"{machine.own_isa()}, {machine.num_threads()} threads" in out
    assert "x * y, huge, inf and NaN" in out
    assert "holds: every bit as IEEE 754 says" in out
    modes = "each under jit, vmap, scan, custom_vjp"
    assert f"12 random programs, seed 0, {modes}: 0 differ" in out


def test_verify_arithmetic_fails_on_any_difference(monkeypatch, capsys):
    from onemodel_jax.cli import battery, verify

    wrong = battery.Row("a*b + c", 0.5, 1)
    monkeypatch.setattr(verify, "run_battery", lambda: [wrong])
    monkeypatch.setattr(verify, "fuzz", lambda *_, **__: [])
    assert main(["verify", "--arithmetic"]) == 1
    assert "1 bits wrong" in capsys.readouterr().out


def test_a_small_benchmark_of_checkpoints_prints_ratios(capsys):
    pytest.importorskip("safetensors")
    assert main(["bench", "checkpoint", "--mebibytes", "1", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "ratio" in out and "load" in out


def test_a_benchmark_of_one_element_keeps_its_columns_apart(capsys):
    assert main(["bench", "numerics", "--size", "1", "--rounds", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    names = [re.fullmatch(r"(\S.*?)((\s+\d+\.\d\d){3})", row)[1] for row in rows]
    assert {"add", "maximum", "minimum", "fma", "AdamW step"} <= set(names)


def test_a_timed_operation_writes_over_its_last_result():
    x = jnp.ones(1000, jnp.float32)
    call = bench_numerics._InPlace(lambda v: (v + 1, v), (x,))
    call()
    first = [v.unsafe_buffer_pointer() for v in call._last]
    call()
    assert [v.unsafe_buffer_pointer() for v in call._last] == first
    np.testing.assert_array_equal(call._last[0], x + 1)


def test_functions_are_timed_in_an_order_that_alternates():
    seen = []
    runs = {name: lambda name=name: seen.append(name) for name in "ab"}
    times = interleave(runs, 3)
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert [len(times[name]) for name in "ab"] == [3, 3]
