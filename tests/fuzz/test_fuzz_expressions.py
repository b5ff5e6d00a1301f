"""Random programs of exact operations have NumPy's bits under every transformation."""

import collections

import jax
import numpy as np
import pytest

from onemodel_jax import numerics
from onemodel_jax.cli.battery_fuzz import difference, fuzz
from onemodel_jax.cli.battery_programs import SUMS, TERMS, draw, generate
from tests.support import require_isa, run_python

# ISA: threads, first program, number of programs.
SHARES = {"SSE4_2": (2, 0, 128), "AVX2": (8, 128, 128), "AVX512": (1, 256, 256)}

CODE = """
from onemodel_jax.cli.battery_fuzz import fuzz

failures = fuzz(0, {count}, first={first})
print(len(failures), *failures[:3], sep="\\n\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", SHARES)
def test_512_programs_spread_over_the_isas_have_the_reference_bits(isa):
    require_isa(isa)
    nproc, first, count = SHARES[isa]
    report = run_python(CODE.format(first=first, count=count), isa=isa, nproc=nproc)
    assert report.startswith("0\n"), report


@pytest.mark.parametrize("name", ["add", "mul"])
def test_one_naive_operation_is_found_and_the_report_repeats_it(monkeypatch, name):
    plain = {"add": jax.numpy.add, "mul": jax.numpy.multiply}[name]
    monkeypatch.setattr(numerics, name, plain)
    failures = fuzz(0, 16)
    assert failures
    worst = failures[0]
    again = fuzz(worst.seed, 1, first=worst.index)
    assert again and again[0].index == worst.index
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
    assert shared > 300


def test_the_share_of_each_isa_has_sums_of_every_kind_and_length():
    for _, first, count in SHARES.values():
        nodes = [n for k in range(first, first + count) for n in generate(0, k).nodes]
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
