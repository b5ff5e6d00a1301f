"""The references import NumPy, the standard library and themselves; nothing else."""

import ast
import sys
from pathlib import Path

import pytest

import onemodel_jax.reference

ROOT = Path(onemodel_jax.reference.__file__).parent
FILES = sorted([*ROOT.glob("*.py"), *ROOT.glob("lanes/*"), *ROOT.glob("float64/*")])
# gradcheck is no second writing of anything: it drives functions of the user's.
FILES = [path for path in FILES if path.suffix == ".py" and path.stem != "gradcheck"]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_stay_inside_the_reference(path):
    own = f"onemodel_jax.reference.{path.parent.name}"
    for name in imported(path):
        outside = name.split(".")[0]
        allowed = outside == "numpy" or outside in sys.stdlib_module_names
        assert allowed or name.startswith(own), f"{path.name} imports {name}"


def test_every_reference_module_is_looked_at():
    assert len(FILES) > 15
