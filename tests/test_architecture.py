"""Imports point one way, and only tests and verifying commands see the reference."""

import ast
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "onemodel_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# What each part may import besides itself. "_" stands for _types, _checks, _tree.
ALLOWED = {
    "_types": set(),
    "_checks": {"_types"},
    "_tree": {"_types", "_checks"},
    "numerics": {"_"},
    "ops": {"_", "numerics"},
    "losses": {"_", "numerics", "ops"},
    "nn": {"_", "numerics", "ops"},
    "optim": {"_", "numerics"},
    "schedules": {"_", "numerics", "optim"},
    "checkpoint": {"_"},
    "data": {"_", "nn"},
    "models": {"_", "numerics", "ops", "losses", "nn"},
    "training": {"_", "numerics", "ops", "losses", "nn", "models", "optim"},
    "reference": {"_checks"},
    "cli": None,
    "__init__": None,
}
GROUND = {"_types", "_checks", "_tree"}
MAY_VERIFY = ("cli/verify", "cli/reveal", "cli/battery")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "onemodel_jax":
                names = [f"onemodel_jax.{alias.name}" for alias in node.names]
        for name in names:
            pieces = name.split(".")
            if pieces[0] == "onemodel_jax" and len(pieces) > 1:
                parts.add(pieces[1])
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    allowed = ALLOWED[part]
    if allowed is None:
        return
    allowed = allowed | {part} | (GROUND if "_" in allowed else set())
    assert imported_parts(path) <= allowed


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_verifying_commands_import_the_reference(path):
    if part_of(path) == "reference":
        return
    if str(path.relative_to(PACKAGE)).startswith(MAY_VERIFY):
        return
    assert "reference" not in imported_parts(path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_passes_four_hundred_lines(path):
    assert len(path.read_text().splitlines()) <= 400


def test_every_part_is_listed():
    assert {part_of(path) for path in FILES} == set(ALLOWED)
