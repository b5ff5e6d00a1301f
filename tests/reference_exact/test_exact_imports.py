"""The core needs the standard library and NumPy; only the lifting modules need JAX."""

import ast
from pathlib import Path

import pytest

import onemodel_jax.reference.exact as exact

FOLDER = Path(exact.__file__).parent
LIFTING = {
    "check.py",
    "lift.py",
    "machine.py",
    "primitives.py",
    "primitives_shape.py",
    "primitives_control.py",
}
CORE = sorted(p.name for p in FOLDER.glob("*.py") if p.name not in LIFTING)


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("name", CORE)
def test_core_modules_import_neither_jax_nor_what_they_check(name):
    for module in imported(FOLDER / name):
        assert module.split(".")[0] not in ("jax", "jaxlib")
        if module.startswith("onemodel_jax"):
            assert module.startswith("onemodel_jax.reference.exact.")
            assert f"{module.split('.')[-1]}.py" in CORE
