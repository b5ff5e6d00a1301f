"""The bundled file, its format and origin, the split, and the enlargement."""

import hashlib
import re
import sys
from fractions import Fraction
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from onemodel_jax.data import digits, make_digits
from onemodel_jax.data.digits import (
    DIGITS_FILE,
    DIGITS_SHA256,
    Digits,
    decode_digits,
    encode_digits,
    enlarge,
    glyphs,
    held_out,
    load_digits,
)


def test_the_file_is_the_published_one_and_encodes_to_itself():
    data = DIGITS_FILE.read_bytes()
    assert hashlib.sha256(data).hexdigest() == DIGITS_SHA256
    assert encode_digits(decode_digits(data)) == data


def fake_source(monkeypatch, images):
    """Stand in for the library that the maker reads."""
    found = SimpleNamespace(images=images, target=load_digits().labels.astype(int))
    module = ModuleType("sklearn.datasets")
    monkeypatch.setattr(module, "load_digits", lambda: found, raising=False)
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)


def test_the_maker_writes_the_same_bytes_again(tmp_path, monkeypatch):
    fake_source(monkeypatch, load_digits().images.astype(np.float64))
    monkeypatch.setattr(sys, "argv", ["make_digits", str(tmp_path / "out.bin")])
    make_digits.main()
    assert (tmp_path / "out.bin").read_bytes() == DIGITS_FILE.read_bytes()


def test_the_maker_refuses_ink_that_is_not_integral(tmp_path, monkeypatch):
    fake_source(monkeypatch, load_digits().images * 0.5)
    monkeypatch.setattr(sys, "argv", ["make_digits", str(tmp_path / "out.bin")])
    with pytest.raises(SystemExit, match="ink is not integral"):
        make_digits.main()
    assert not (tmp_path / "out.bin").exists()


def test_an_altered_installed_file_is_refused(tmp_path, monkeypatch):
    data = DIGITS_FILE.read_bytes()
    (tmp_path / "digits.bin").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    monkeypatch.setattr(digits, "DIGITS_FILE", tmp_path / "digits.bin")
    with pytest.raises(ValueError, match=f"digits.bin: expected {DIGITS_SHA256}, got"):
        load_digits.__wrapped__()


def test_the_digits_are_the_1797_of_the_test_set():
    found = load_digits()
    assert found.images.shape == (1797, 8, 8)
    counts = np.bincount(found.labels).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert found.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    # The first row of the set's file, as its documentation prints it.
    assert found.images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert found.images.max() == 16
    assert not found.images.flags.writeable


def test_the_origin_is_attributed():
    text = (DIGITS_FILE.parent / "ATTRIBUTION.md").read_text()
    for part in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", "Changes:"):
        assert part in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: b"X" + d[1:], "header: expected ONEDIGIT, 8x8"),
        (lambda d: d[:12] + b"\x09" + d[13:], "header: expected ONEDIGIT, 8x8"),
        (lambda d: d[:7], "header: expected ONEDIGIT, 8x8"),
        (lambda d: d[:-1], "data: expected 146 bytes, got 145"),
        (lambda d: d + b"\0", "data: expected 146 bytes, got 147"),
        (lambda d: d[:16] + b"\x0a" + d[17:], "data: expected labels 0..9, ink 0..16"),
        (lambda d: d[:-1] + b"\x11", "data: expected labels 0..9, ink 0..16"),
    ],
)
def test_a_damaged_file_is_refused(change, text):
    images = np.arange(128, dtype=np.uint8).reshape(2, 8, 8) % 17
    data = encode_digits(Digits(images, np.array([3, 9], np.uint8)))
    with pytest.raises(ValueError, match=re.escape(f"decode_digits: {text}")):
        decode_digits(change(data))


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (np.full((1, 8, 8), 17, np.uint8), [1], "images: expected (N,8,8) of 0..16"),
        (np.zeros((2, 8, 8), np.uint8), [1], "images: expected (N,8,8) of 0..16"),
        (np.zeros((1, 8, 8), np.uint8), [10], "labels: expected 0..9, got 10"),
    ],
)
def test_values_outside_the_format_are_not_written(images, labels, text):
    with pytest.raises(ValueError, match=re.escape(f"encode_digits: {text}")):
        encode_digits(Digits(images, np.array(labels, np.uint8)))


def test_every_fifth_digit_of_each_class_is_held_out():
    labels = np.array([7] * 11 + [2] * 4 + [7])
    assert np.flatnonzero(held_out(labels)).tolist() == [4, 9]


def test_training_and_evaluation_images_are_disjoint():
    training, evaluation = glyphs(False), glyphs(True)
    sides = [{g.tobytes() for g in side.images} for side in (training, evaluation)]
    assert [len(side.labels) for side in (training, evaluation)] == [1442, 355]
    assert not sides[0] & sides[1]
    assert np.bincount(evaluation.labels).tolist() == [
        count // 5 for count in np.bincount(load_digits().labels)
    ]


def test_enlargement_is_bilinear_with_half_pixel_centres():
    image = load_digits().images[17]
    got = enlarge(image[None])[0]

    def at(position):
        """Clamped neighbours of an output position and the second one's weight."""
        x = Fraction(2 * position + 1, 8) - Fraction(1, 2)
        low = x.__floor__()
        return max(low, 0), min(low + 1, 7), x - low

    for row, col in np.ndindex(32, 32):
        (r0, r1, fr), (c0, c1, fc) = at(row), at(col)
        top = image[r0, c0] * (1 - fc) + image[r0, c1] * fc
        bottom = image[r1, c0] * (1 - fc) + image[r1, c1] * fc
        ink = (top * (1 - fr) + bottom * fr) / 16
        assert Fraction(int(got[row, col]), 1024) == ink


def test_full_ink_stays_full():
    full = np.full((1, 8, 8), 16, np.uint8)
    assert (enlarge(full) == 1024).all()


@pytest.mark.parametrize("evaluation", [False, True])
def test_glyph_columns_hold_the_ink_and_are_16_wide_at_least(evaluation):
    found, side = load_digits(), glyphs(evaluation)
    images = found.images[held_out(found.labels) == evaluation]
    for image, left, right in zip(images, side.left, side.right, strict=True):
        columns = np.flatnonzero(image.any(axis=0))
        assert 0 <= left <= 4 * columns[0] and 4 * (columns[-1] + 1) <= right <= 32
        assert right - left == max(16, 4 * (columns[-1] + 1 - columns[0]))
