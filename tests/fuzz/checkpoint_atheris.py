"""Coverage-guided fuzzing of the checkpoint reader; not run by pytest.

Needs the package atheris. From the root of the project:

    python -m tests.fuzz.checkpoint_atheris -max_total_time=600 corpus/

The corpus directory is filled with the seeds first, if it is empty.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["onemodel_jax.checkpoint"]):
    from tests.fuzz.checkpoint_property import check, check_unchanged, repaired, seeds


def one_input(data):
    """Try the input as it is, and again with its length fields repaired."""
    check(data)
    check(repaired(data))


def main():
    for argument in sys.argv[1:]:
        folder = Path(argument)
        if folder.is_dir() and not any(folder.iterdir()):
            for i, seed in enumerate(seeds()):
                (folder / f"seed-{i:03d}").write_bytes(seed)
    atheris.Setup(sys.argv, one_input)
    try:
        atheris.Fuzz()
    finally:
        check_unchanged()


if __name__ == "__main__":
    main()
