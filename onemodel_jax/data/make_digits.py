"""Make `digits.bin` from scikit-learn's copy of the UCI digits.

Needs scikit-learn, which nothing else does:
``python -m onemodel_jax.data.make_digits digits.bin``.
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from onemodel_jax.data.digits import Digits, encode_digits


def main() -> None:
    """Write the file that the command line names."""
    (output,) = sys.argv[1:]
    source = import_module("sklearn.datasets").load_digits()
    images, labels = source.images.astype(np.uint8), source.target.astype(np.uint8)
    if not np.array_equal(images, source.images):
        raise SystemExit("make_digits: the source's ink is not integral")
    Path(output).write_bytes(encode_digits(Digits(images, labels)))


if __name__ == "__main__":
    main()
