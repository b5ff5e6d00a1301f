"""Random programs of exact operations have NumPy's bits under every transformation."""

import collections
import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.cli import battery_fuzz
from onemodel_jax.cli.battery_fuzz import MODES, difference, fuzz, mode_of
from onemodel_jax.cli.battery_programs import SUMS, TERMS, draw, generate
from tests.support import require_isa, run_python

SHARED = range(32)  # run on every ISA, on each under another mode


class Share(NamedTuple):
    """What one ISA runs: SHARED and its own programs, each in one turn."""

    nproc: int
    turn: int
    own: range


SHARES = {
    "SSE4_2": Share(2, 0, range(32, 128)),
    "AVX2": Share(8, 1, range(128, 224)),
    "AVX512": Share(1, 2, range(224, 512)),
}

CODE = """
from onemodel_jax.cli.battery_fuzz import fuzz

failures = []
for first, count in {ranges}:
    failures += fuzz(0, count, first=first, turns=[{turn}])
print(len(failures), *failures[:3], sep="\\n\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", SHARES)
def test_512_programs_spread_over_the_isas_have_the_reference_bits(isa):
    require_isa(isa)
    nproc, turn, own = SHARES[isa]
    ranges = [(r.start, len(r)) for r in (SHARED, own)]
    code = CODE.format(ranges=ranges, turn=turn)
    report = run_python(code, isa=isa, nproc=nproc)
    assert report.startswith("0\n"), report


def test_32_programs_are_shared_by_the_isas_under_different_modes():
    for index in SHARED:
        assert len({mode_of(index, share.turn) for share in SHARES.values()}) == 3
    own = [index for share in SHARES.values() for index in share.own]
    assert sorted([*SHARED, *own]) == list(range(512))


def test_each_program_runs_under_every_mode_once(monkeypatch):
    seen, done = [], []

    def record(seed, indices, turn):
        seen.extend((index, mode_of(index, turn)) for index in indices)
        return []

    monkeypatch.setattr(battery_fuzz, "_check_group", record)
    assert fuzz(0, 37, first=5, progress=done.append) == []
    assert sorted(seen) == sorted(itertools.product(range(5, 42), MODES))
    assert done == [32, 37]


FOUND_FROM = {"add": 0, "sub": 16, "mul": 0, "div": 0, "maximum": 0}


@pytest.mark.parametrize("name", FOUND_FROM)
def test_one_naive_operation_is_found_and_the_report_repeats_it(monkeypatch, name):
    plain = {"mul": "multiply", "sub": "subtract", "div": "divide"}.get(name, name)
    monkeypatch.setattr(numerics, name, getattr(jax.numpy, plain))
    failures = fuzz(0, 16, first=FOUND_FROM[name], turns=[0])
    assert failures
    worst = failures[0]
    again = fuzz(worst.seed, 1, first=worst.index)
    assert (worst.index, worst.mode) in {(f.index, f.mode) for f in again}
    assert f"seed 0, program {worst.index}, {worst.mode}: element" in str(worst)
    assert f"{name}(" in "".join(str(f.program) for f in failures)


def test_programs_are_the_same_every_time_and_differ():
    assert str(generate(3, 5)) == str(generate(3, 5))
    assert len({str(generate(3, k)) for k in range(50)}) == 50
    first, again = generate(3, 5), generate(3, 5)
    for a, b in zip(first.inputs, again.inputs, strict=True):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


def test_512_programs_use_every_construct_and_share_operands():
    programs = [generate(0, k) for k in range(512)]
    kinds = collections.Counter(n.kind for p in programs for n in p.nodes)
    names = collections.Counter(n.name for p in programs for n in p.nodes)
    for kind in ("constant", "select", "scan", "reshape", "transpose", "broadcast"):
        assert kinds[kind] >= 50, kind
    for name in ("add", "sub", "mul", "div", "sqrt", "fma", "maximum", "minimum"):
        assert names[name] >= 100, name
    for name in ("exp", "log", "sigmoid", "tanh", "exp64", "log64", "cos_pi"):
        assert names[name] >= 20, name
    shared = 0
    for program in programs:
        reads = collections.Counter(k for n in program.nodes for k in n.operands)
        shared += max(reads.values()) > 1
    assert shared > 250


def test_the_share_of_each_isa_has_sums_of_every_kind_and_length():
    for share in SHARES.values():
        nodes = [n for k in [*SHARED, *share.own] for n in generate(0, k).nodes]
        sums = [n for n in nodes if n.kind == "sum"]
        names = collections.Counter(n.name for n in sums)
        assert all(names[name] >= 8 for name in SUMS["float32"]), names
        products = [n for n in sums if n.name in ("matmul", "dot")]
        assert {n.parameter[0][-1] for n in products} == set(TERMS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operands_reach_the_edges(dtype):
    rng = np.random.default_rng(0)
    x = np.concatenate([draw(rng, (50,), dtype) for _ in range(200)])
    tiny, top = np.finfo(dtype).tiny, np.finfo(dtype).max
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(x)
        counts = {
            "subnormal": np.sum((magnitude < tiny) & (x != 0)),
            "huge": np.sum((magnitude > top / 16) & np.isfinite(x)),
            "zero": np.sum(x == 0),
            "infinite": np.sum(np.isinf(x)),
            "NaN": np.sum(np.isnan(x)),
            "ordinary": np.sum((magnitude > 0.1) & (magnitude < 10)),
        }
    assert all(count > 100 for count in counts.values()), counts


def test_the_comparison_sees_one_bit_and_the_sign_of_zero():
    x = np.float32([1.0, 0.0, np.nan])
    assert difference(x, x) is None
    assert "element 0" in difference(x, np.nextafter(x, np.float32(2)))
    assert "element 1" in difference(x, np.float32([1.0, -0.0, np.nan]))
    assert "float64" in difference(x.astype(np.float64), x)
