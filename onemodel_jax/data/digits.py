"""The bundled handwritten digits: the file, the split, and the enlarged images.

No download and no augmentation; `make_digits.py` made the file.
"""

import hashlib
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onemodel_jax._checks import fail

DIGITS_FILE = Path(__file__).with_name("digits.bin")
DIGITS_SHA256 = "9bf88940d61934918389306f2f1fca2d7ae276e8feb998ec985cbdabdf2767aa"
MAGIC = b"ONEDIGIT"
HEADER = struct.Struct("<8sIHH")
SIDE = 8
SCALE = 4
UNIT = 1024
"""An enlarged pixel is an integer count of 1/1024 of full ink."""
_MIN_COLUMNS = 4
_HELD_OUT = 5


class Digits(NamedTuple):
    """Scanned digits.

    Attributes:
      images: (N, 8, 8) uint8, ink from 0 to 16, row-major.
      labels: (N,) uint8, 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray


class Glyphs(NamedTuple):
    """Digits enlarged four times, ready to be set side by side.

    Attributes:
      images: (N, 32, 32) uint16, ink in units of 1/1024.
      labels: (N,) uint8, 0 to 9.
      left, right: (N,) int64, the columns left..right-1 that a line takes.
    """

    images: np.ndarray
    labels: np.ndarray
    left: np.ndarray
    right: np.ndarray


def encode_digits(digits: Digits) -> bytes:
    """Return the file of ``digits`` (SPEC, "Digits file").

    Raises:
      ValueError: a shape, or a value outside its range.
    """
    images, labels = digits
    if images.shape != (len(labels), SIDE, SIDE) or images.max(initial=0) > 16:
        fail(ValueError, "encode_digits", "images", "(N,8,8) of 0..16", images.shape)
    if labels.max(initial=0) > 9:
        fail(ValueError, "encode_digits", "labels", "0..9", labels.max())
    header = HEADER.pack(MAGIC, len(labels), SIDE, SIDE)
    return header + labels.astype("u1").tobytes() + images.astype("u1").tobytes()


def decode_digits(data: bytes) -> Digits:
    """Return the digits of a file that ``encode_digits`` made.

    Raises:
      ValueError: the header, the size or a value is not what the format says.
    """
    magic, count, *sides = HEADER.unpack(data[: HEADER.size].ljust(HEADER.size, b"\0"))
    if magic != MAGIC or sides != [SIDE, SIDE]:
        fail(ValueError, "decode_digits", "header", "ONEDIGIT, 8x8", repr(data[:16]))
    size = HEADER.size + count * (1 + SIDE * SIDE)
    if len(data) != size:
        fail(ValueError, "decode_digits", "data", f"{size} bytes", len(data))
    body = np.frombuffer(data, np.uint8, offset=HEADER.size)
    labels, images = body[:count], body[count:].reshape(count, SIDE, SIDE)
    if labels.max(initial=0) > 9 or images.max(initial=0) > 16:
        fail(ValueError, "decode_digits", "data", "labels 0..9, ink 0..16", "others")
    return Digits(images, labels)


@lru_cache(maxsize=1)
def load_digits() -> Digits:
    """Return the bundled digits; the arrays are read-only.

    Raises:
      ValueError: the installed file is not the published one.
    """
    data = DIGITS_FILE.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != DIGITS_SHA256:
        fail(ValueError, "load_digits", str(DIGITS_FILE), DIGITS_SHA256, found)
    return decode_digits(data)


def held_out(labels: np.ndarray) -> np.ndarray:
    """Return which digits are for evaluation only: (N,) bool.

    Digits 5, 10, 15, ... of each class, counted from 1 in file order.

    Args:
      labels: (N,) integers.
    """
    rank = np.zeros(len(labels), np.int64)
    for value in np.unique(labels):
        (where,) = np.nonzero(labels == value)
        rank[where] = np.arange(len(where))
    return rank % _HELD_OUT == _HELD_OUT - 1


def enlarge(images: np.ndarray) -> np.ndarray:
    """Return images four times as high and wide, by exact bilinear interpolation.

    Output row 4i+j lies at (4i+j+1/2)/4 - 1/2 of the input's rows; between two
    rows the weights are eighths, beyond the first or last row that row counts
    alone; columns alike. 16 levels of ink times 64ths give units of 1/1024.

    Args:
      images: (N, 8, 8) uint8, 0 to 16.

    Returns:
      (N, 32, 32) uint16, 0 to 1024.
    """
    eighths = _eighths()
    rows = np.einsum("or,nrc->noc", eighths, images.astype(np.int64))
    return np.einsum("oc,nrc->nro", eighths, rows).astype(np.uint16)


def _eighths() -> np.ndarray:
    """Return the (32, 8) integer weights of one axis, in eighths."""
    weights = np.zeros((SIDE * SCALE, SIDE), np.int64)
    for o in range(SIDE * SCALE):
        below, part = divmod(2 * o + 1 - SCALE, 2 * SCALE)
        weights[o, max(below, 0)] += 2 * SCALE - part
        weights[o, min(below + 1, SIDE - 1)] += part
    return weights


@lru_cache(maxsize=2)
def glyphs(evaluation: bool) -> Glyphs:
    """Return the enlarged digits of one side of the split, in file order.

    The columns kept are those from the first to the last scanned column with ink,
    but four scanned columns at least (16 pixels): two time steps of the recognizer
    for each digit, so that any line can be aligned.
    """
    digits = load_digits()
    chosen = held_out(digits.labels) == evaluation
    images, labels = digits.images[chosen], digits.labels[chosen]
    ink = np.any(images, axis=1)
    left = np.minimum(ink.argmax(axis=1), SIDE - _MIN_COLUMNS)
    last = SIDE - ink[:, ::-1].argmax(axis=1)
    right = np.maximum(last, left + _MIN_COLUMNS)
    return Glyphs(enlarge(images), labels, SCALE * left, SCALE * right)
