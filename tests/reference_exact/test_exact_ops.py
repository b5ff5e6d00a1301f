"""Every public op and loss: its VJP is its transposed derivative, exactly."""

import pytest
from exact_ops import (
    BUGS,
    EXEMPT,
    LOSSES,
    OPS,
    call,
    each,
    exported,
    num_gradients,
    plant,
)

from onemodel_jax import losses, ops
from onemodel_jax.reference.exact.check import check_vjp

TABLE = OPS | LOSSES


def test_every_public_op_and_loss_has_calls_here_or_a_reason():
    assert exported(ops) | exported(losses) == set(TABLE) | set(EXEMPT)
    assert not set(TABLE) & set(EXEMPT)
    assert all(len(reason) > 20 for reason in EXEMPT.values())


@pytest.mark.parametrize(("name", "label"), each(TABLE))
def test_the_vjp_is_the_transposed_derivative(name, label):
    case = TABLE[name][label]
    report = check_vjp(call(name, case), *case.examples, trials=1, **case.check)
    assert report.ok, str(report)
    assert len(report.evidence) >= 4


def test_each_op_has_its_whole_jacobian_compared_over_fractions():
    for name in OPS:
        case = OPS[name]["fractions"]
        report = check_vjp(call(name, case), *case.examples, trials=1, **case.check)
        assert not report.missing and "Q" in report.points


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("name", TABLE)
def test_a_bug_planted_in_any_gradient_of_any_op_is_found(name, bug, monkeypatch):
    case = TABLE[name]["ragged"]
    spots = num_gradients(name, case) if BUGS[bug].on_one_gradient else 1
    trials = 1 if BUGS[bug].on_one_gradient else 2  # a cotangent may be below 1
    for which in range(spots):
        with monkeypatch.context() as patch:
            plant(patch, case.core, BUGS[bug], which)
            report = check_vjp(
                call(name, case),
                *case.examples,
                trials=trials,
                jacobian_limit=0,
                budget=1,
                **case.check,
            )
        assert set(report.failures) == BUGS[bug].laws, str(report)
