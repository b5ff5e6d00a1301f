"""A whole step with the fast engines equals the step with the emulated one alone."""

import jax
import pytest

from onemodel_jax.checkpoint import state_hash
from onemodel_jax.cli import verify
from onemodel_jax.cli.main import main
from onemodel_jax.models import crnn
from tests.support import run_python
from tests.training import tiny

CODE = """
from onemodel_jax.checkpoint import state_hash
from onemodel_jax.numerics.lanes import emulated_only
from tests.training import tiny

with emulated_only():
    print(state_hash(tiny.run(tiny.make_step(), tiny.new_state(), 0, 1)))
"""


@pytest.mark.parametrize("isa", ["SSE4_2", "AVX512"])
def test_a_step_by_the_emulated_engine_alone_has_the_same_hash(isa):
    # The reference's hash: that the fast engines have it too is tested beside this.
    params, moments, _, _ = tiny.by_reference(1)
    want = state_hash(tiny.filled(tiny.new_state(), params, moments))
    assert run_python(CODE, isa=isa).strip() == want


def test_verify_step_finds_every_tensor_equal(monkeypatch, capsys):
    """The command takes the digits model; a small one of its kind is enough here."""
    small = crnn.CrnnConfig(
        height=32, channels=(3, 5), pools=((4, 4), (4, 2)), hidden=5, num_classes=11
    )
    monkeypatch.setattr(verify, "DIGITS", small)
    assert main(["verify", "--step", "--batch", "1"]) == 0
    params = len(jax.tree_util.tree_leaves(crnn.template(small)))
    tensors = 3 * params + 4  # two moments each; two powers, the step, the rate
    assert f": {tensors} tensors, 0 differ" in capsys.readouterr().out
