"""``module:function`` on the command line: found in the current directory as well."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from onemodel_jax._checks import describe, describe_error, fail


def find(command: str, target: str) -> tuple[Any, Callable[..., Any]]:
    """Import the module of ``module:function`` and return it with the function.

    Args:
      command: what the errors name first.
      target: the module's dotted name and a function in it, possibly dotted.

    Raises:
      ImportError: there is no such module.
      ValueError: not of this form, no such function, or the import fails.
      TypeError: not a function.
    """
    path, _, name = target.partition(":")
    parts = [*path.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts) or path.endswith(".py"):
        hint = " (name the module without .py)" if path.endswith(".py") else ""
        fail(ValueError, command, "target", "module:function", repr(target) + hint)
    module: Any = _import(command, path)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found))
            hint = f" ({' or '.join(near)}?)" if near else ""
            fail(ValueError, command, "function", f"a name in {path}{hint}", repr(name))
        found = getattr(found, part)
    if not callable(found):
        fail(TypeError, command, "function", "a function", describe(found))
    return module, found


def _import(command: str, path: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    expected = "a module that can be imported"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        # A module that exists but lacks a dependency says so itself.
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        fail(ImportError, command, "module", expected, repr(path))
    except ImportError:
        raise
    except Exception as error:
        got = f"{path!r}, which raises {describe_error(error)}"
        raise ValueError(
            f"{command}: module: expected {expected}, got {got}"
        ) from error
