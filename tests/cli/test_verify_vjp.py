"""onemodel verify --vjp: reports, exit codes, where examples come from, errors."""

import sys
import textwrap

import pytest

from onemodel_jax.cli.verify_vjp import parse_shapes, run

MODULE = """
    import jax
    import jax.numpy as jnp


    @jax.custom_vjp
    def good(x, w):
        return x @ w

    good.defvjp(
        lambda x, w: (x @ w, (x, w)),
        lambda r, g: (g @ r[1].T, r[0].T @ g),
    )


    @jax.custom_vjp
    def scaled(x):
        return x * x

    scaled.defvjp(lambda x: (x * x, x), lambda x, g: (g * 2 * x * (1 + 2.0**-23),))


    class Space:
        @staticmethod
        def cube(x):
            return x**3

    def bare(x):
        return -x

    def odd(x):
        return x

    def gamma(x):
        return jax.lax.lgamma(x)

    constant = 3
    odd.VJP_EXAMPLES = 7
    bare.VJP_EXAMPLES = (jnp.zeros((2, 2)),)
    VJP_EXAMPLES = {"good": (jnp.zeros((2, 3)), jnp.zeros((3, 2)))}
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "planted_rules.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("planted_rules", None)


def test_a_right_rule_exits_with_0_and_prints_its_report(capsys):
    assert run("planted_rules:good") == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "check_vjp good(float32[2,3], float32[3,2]) -> (float32[2,2]): ok\n"
    )
    assert "transposed Jacobian     holds" in out


def test_a_wrong_rule_exits_with_1_and_prints_a_counterexample(capsys):
    assert run("planted_rules:scaled", shapes="()") == 1
    out = capsys.readouterr().out
    assert "adjoint                 FAILS" in out and "counterexample to" in out
    assert "8388609/" in out


def test_options_reach_the_check(capsys):
    assert run("planted_rules:bare", points="field", trials=3) == 0
    assert "points: 3 in F_(2^61-1)" in capsys.readouterr().out
    assert run("planted_rules:scaled", shapes="2", expectation="zero-preserving") == 0


def test_dotted_names_are_followed():
    assert run("planted_rules:Space.cube", shapes="3") == 0


def test_shapes_are_read():
    got = [x.shape for x in parse_shapes("2,3  4 ()  0,1")]
    assert got == [(2, 3), (4,), (), (0, 1)]


@pytest.mark.parametrize(
    ("target", "shapes", "error", "message"),
    [
        ("planted_rules", None, ValueError, "target: expected module:function"),
        (":good", None, ValueError, "target: expected module:function, got ':good'"),
        ("no_such.rules:f", None, ImportError, "module: expected a module that can"),
        ("needs_more:f", None, ImportError, "No module named 'no_such_dependency'"),
        ("planted_rules:nothing", None, ValueError, "a name in planted_rules, got"),
        ("planted_rules:constant", "2", TypeError, "expected a function, got int"),
        ("planted_rules:scaled", None, ValueError, "examples: expected --shapes, or"),
        ("planted_rules:odd", None, TypeError, "expected a tuple of arguments"),
        ("planted_rules:scaled", "", ValueError, "expected at least one shape"),
        ("planted_rules:scaled", "2,x", ValueError, r"sizes such as 2,3 or \(\), got"),
        ("planted_rules:scaled", "-1", ValueError, r"sizes such as 2,3 or \(\), got"),
        ("planted_rules:gamma", "2", TypeError, "lgamma has no exact meaning"),
    ],
)
def test_errors_say_what_is_missing(target, shapes, error, message):
    with pytest.raises(error, match=message):
        run(target, shapes=shapes)
