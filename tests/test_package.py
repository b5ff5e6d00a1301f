"""Importing the package is cheap and touches no JAX configuration."""

from support import run_python

IMPORT = """
import time
start = time.perf_counter()
import jax
alone = time.perf_counter() - start
before = dict(jax.config.values)
start = time.perf_counter()
import onemodel_jax
more = time.perf_counter() - start
assert dict(jax.config.values) == before
print(alone, more)
"""


def test_import_changes_no_configuration():
    run_python(IMPORT)


def test_public_names_are_importable():
    import onemodel_jax

    for name in onemodel_jax.__all__:
        assert getattr(onemodel_jax, name) is not None
