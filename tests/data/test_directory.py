"""A user's own lines: what is read, every refusal, and the batches."""

import re
import struct
import sys
import zlib

import numpy as np
import pytest

from onemodel_jax.data import directory_batch, load_lines
from onemodel_jax.data.images import read_image
from tests.support import assert_bits_equal

Image = pytest.importorskip("PIL.Image", reason="PNG images need Pillow")


def pixels(width, height=32):
    return (np.arange(height * width).reshape(height, width) % 256).astype(np.uint8)


def make(directory, labels, **widths):
    """Write .npy images of the given widths and `labels.txt`; return the path."""
    for name, width in widths.items():
        np.save(directory / f"{name}.npy", pixels(width))
    if labels is not None:
        (directory / "labels.txt").write_bytes(labels.encode())
    return directory


def test_npy_and_png_lines_are_read_in_the_order_of_the_labels(tmp_path):
    make(tmp_path, "b.PNG\t907\r\n\na.npy 12\n", a=30)
    Image.fromarray(pixels(41)).save(tmp_path / "b.PNG")
    got = load_lines(tmp_path)
    assert got.names == ("b.PNG", "a.npy")
    assert [line.labels.tolist() for line in got.lines] == [[10, 1, 8], [2, 3]]
    for line, width in zip(got.lines, (41, 30), strict=True):
        want = pixels(width).astype(np.float64) / 255
        assert_bits_equal(line.image, want.astype(np.float32))
        assert line.labels.dtype == np.int32
    assert (got.width, got.label_length, got.charset) == (48, 3, "0123456789")


def test_invert_turns_dark_ink_into_ink(tmp_path):
    make(tmp_path, "a.npy\t1\n", a=16)
    (line,) = load_lines(str(tmp_path), invert=True).lines
    want = (255 - pixels(16).astype(np.float64)) / 255
    assert_bits_equal(line.image, want.astype(np.float32))


def test_a_tab_allows_spaces_in_names_and_a_charset_of_any_characters(tmp_path):
    make(tmp_path, "﻿my line.npy\té x\n", **{"my line": 40})
    got = load_lines(tmp_path, charset="xé ")
    assert got.lines[0].labels.tolist() == [2, 3, 1]


def test_column_major_arrays_and_other_files_are_no_trouble(tmp_path):
    make(tmp_path, "a.npy\t1\n")
    np.save(tmp_path / "a.npy", np.asfortranarray(pixels(16)))
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "._a.npy").write_bytes(b"\0")
    (line,) = load_lines(tmp_path).lines
    assert_bits_equal(line.image, (pixels(16) / 255).astype(np.float32))


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (None, "/labels.txt: expected a file, got none"),
        ("", "/labels.txt: expected one line or more, got none"),
        (
            "a.npy\t12\nc.npy\t1\n",
            "/labels.txt line 2: expected a .png or .npy file of",
        ),
        ("a.npy\t1\n../a.npy\t1\n", "/labels.txt line 2: expected a .png or .npy file"),
        ("labels.txt\t1\n", "/labels.txt line 1: expected a .png or .npy file of"),
        ("a.npy\t12\n", "/b.npy: expected a line in labels.txt, got none"),
        ("a.npy\t1\na.npy\t1\n", "line 2: expected each image once, got 'a.npy'"),
        ("a.npy\t1\nb.npy\n", "/labels.txt line 2: expected a label after the name"),
        ("a.npy\t1\nb.npy\t\n", "/labels.txt line 2: expected a label after the name"),
        ("a.npy\t1\nb.npy \n", "/labels.txt line 2: expected a label after the name"),
        ("\na.npy\t1x\n", "line 2: expected characters of '0123456789', got 'x'"),
        ("a.npy\t1\nb.npy\t1 \n", "line 2: expected characters of '0123456789', got '"),
        (
            "a.npy\t1\nb.npy\t11\n",
            "line 2: expected at most 2 time steps for b.npy, got",
        ),
        ("a.npy\t1\nb.npy\t123\n", "got '123' needing 3"),
    ],
)
def test_bad_labels_are_named_with_their_line(tmp_path, labels, text):
    make(tmp_path, labels, a=40, b=23)
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        load_lines(tmp_path)
    assert str(caught.value).startswith(f"load_lines: {tmp_path}/")


def test_labels_that_are_not_utf8_are_named_with_their_line(tmp_path):
    make(tmp_path, None, a=40)
    (tmp_path / "labels.txt").write_bytes(b"a.npy\t1\nb.npy\t\xff\n")
    with pytest.raises(ValueError, match=re.escape("labels.txt line 2: expected UTF")):
        load_lines(tmp_path)


@pytest.mark.parametrize("width", [7, 15, 23])
def test_a_label_fits_when_the_floor_of_an_eighth_of_the_width_does(tmp_path, width):
    make(tmp_path, "a.npy\t12\n", a=width)
    if width // 8 < 2:
        with pytest.raises(ValueError, match=f"at most {width // 8} time steps"):
            load_lines(tmp_path)
    else:
        assert load_lines(tmp_path).width == 24
    assert load_lines(tmp_path, pixels_per_step=3).width % 8 == 0


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pixels(40, 31), "expected height 32 and width 1 or more, got uint8[31,40]"),
        (pixels(40, 33), "expected height 32 and width 1 or more, got uint8[33,40]"),
        (pixels(0), "expected height 32 and width 1 or more, got uint8[32,0]"),
        (pixels(40).astype(np.float32), "uint8[32,width], got float32[32,40]"),
        (pixels(40)[..., None], "uint8[32,width], got uint8[32,40,1]"),
        (np.array([None]), "expected a readable .npy, got ValueError"),
    ],
)
def test_arrays_that_are_not_line_images_are_named(tmp_path, array, text):
    make(tmp_path, "a.npy\t1\nb.npy\t1\n", a=40)
    np.save(tmp_path / "b.npy", array)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'b.npy'}: ")) as got:
        load_lines(tmp_path)
    assert text in str(got.value)


@pytest.mark.parametrize(
    ("mode", "size", "text"),
    [
        ("RGB", (40, 32), "expected 8-bit grey without alpha, got mode RGB, bit"),
        ("LA", (40, 32), "expected 8-bit grey without alpha, got mode LA, bit depth 8"),
        ("P", (40, 32), "expected 8-bit grey without alpha, got mode P, bit depth"),
        ("1", (40, 32), "expected 8-bit grey without alpha, got mode 1, bit depth 1"),
        ("I;16", (40, 32), "expected 8-bit grey without alpha, got mode I;16, bit"),
        ("L", (40, 30), "expected height 32 and width 1 or more, got uint8[30,40]"),
    ],
)
def test_png_of_another_mode_or_height_is_named(tmp_path, mode, size, text):
    path = tmp_path / "a.png"
    Image.new(mode, size).save(path)
    (tmp_path / "labels.txt").write_text("a.png\t1\n")
    with pytest.raises(ValueError, match=re.escape(f"read_image: {path}: ")) as got:
        load_lines(tmp_path)
    assert text in str(got.value)


def grey_png(depth):
    """Return a 40x32 grey PNG of ``depth`` bits, all zero, chunk by chunk."""
    header = struct.pack(">IIBBBBB", 40, 32, depth, 0, 0, 0, 0)
    rows = zlib.compress(bytes(32 * (1 + 40 * depth // 8)))
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")):
        crc = zlib.crc32(kind + body)
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)
    return data


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_grey_png_has_eight_bits(tmp_path, depth):
    path = tmp_path / "a.png"
    path.write_bytes(grey_png(depth))
    if depth == 8:
        assert_bits_equal(read_image(path), np.zeros((32, 40), np.float32))
    else:
        with pytest.raises(ValueError, match=f"8-bit grey.*bit depth {depth}$"):
            read_image(path)


def test_png_with_a_transparent_colour_is_refused(tmp_path):
    Image.fromarray(pixels(40)).save(tmp_path / "a.png", transparency=3)
    with pytest.raises(ValueError, match="8-bit grey without alpha, got.*transparency"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", ["png", "npy"])
def test_damaged_files_are_named(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "png":
        Image.fromarray(pixels(40)).save(path)
    else:
        np.save(path, pixels(40))
    data = path.read_bytes()
    bad = [
        b"",
        data[:3],
        data[:40],
        data[: len(data) // 2],
        data[: -1 - len(data) // 4],
    ]
    bad += [b"PK\x03\x04" + data, data.replace(b"}", b" ").replace(b"IDAT", b"IDAX")]
    for damaged in bad + [data + b"x"] * (suffix == "npy"):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=re.escape(f"read_image: {path}: expected")
        ):
            read_image(path)


def test_the_extra_is_named_when_pillow_is_missing(tmp_path, monkeypatch):
    Image.fromarray(pixels(40)).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=re.escape('"onemodel-jax[demo]"')):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("charset", ["", "010"])
def test_a_charset_has_different_characters(tmp_path, charset):
    with pytest.raises(ValueError, match="load_lines: charset: expected one or more"):
        load_lines(tmp_path, charset=charset)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere: expected a directory, got none"):
        load_lines(tmp_path / "nowhere")


@pytest.fixture
def five(tmp_path):
    widths = {name: 16 + 3 * i for i, name in enumerate("abcde")}
    return load_lines(
        make(tmp_path, "".join(f"{n}.npy {n}\n" for n in widths), **widths), "abcde"
    )


def test_each_epoch_has_every_line_once_in_its_own_order(five):
    steps = [directory_batch(five, 1, step, 2) for step in range(25)]
    labels = np.concatenate([batch.labels[:, 0] for batch in steps])
    epochs = [tuple(labels[i : i + 5]) for i in range(0, 50, 5)]
    assert all(sorted(epoch) == [1, 2, 3, 4, 5] for epoch in epochs)
    assert len(set(epochs)) > 5


def test_directory_batches_are_pure_and_follow_the_documented_order(five):
    assert_bits_equal(
        directory_batch(five, 3, 7, 4)[0], directory_batch(five, 3, 7, 4)[0]
    )
    # Position 7*4 = 28 of 5 lines: epoch 5 from place 3, then epoch 6.
    order = []
    for epoch in (5, 6):
        stream = 3
        for n in (3, epoch):
            stream = word(stream, n)
        order += sorted(range(5), key=lambda i, s=stream: word(s, i))
    batch = directory_batch(five, 3, 7, 4)
    assert (batch.labels[:, 0] - 1).tolist() == order[3:7]
    assert batch.images.shape == (4, 32, 32, 1)
    for i, k in enumerate(order[3:7]):
        width = 16 + 3 * k
        assert batch.widths[i] == width
        assert_bits_equal(batch.images[i, :, :width, 0], five.lines[k].image)
        assert not batch.images[i, :, width:].any()


def word(seed, n):
    """Return output n of SplitMix64, from its definition."""
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_a_batch_may_be_larger_than_the_set(five):
    batch = directory_batch(five, 0, 0, 12)
    assert np.bincount(batch.labels[:10, 0]).tolist() == [0, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("seed", "step", "size", "error", "text"),
    [
        (-1, 0, 1, ValueError, "seed: expected 0 to 2^64 - 1"),
        (0, -1, 1, ValueError, "directory_batch: step: expected 0 to"),
        (0, 1.0, 1, TypeError, "directory_batch: step: expected an integer"),
        (0, 0, 0, ValueError, "directory_batch: batch_size: expected at least 1"),
        (1.0, 0, 1, TypeError, "seed: expected an integer"),
    ],
)
def test_bad_batch_arguments_are_named(five, seed, step, size, error, text):
    with pytest.raises(error, match=re.escape(text)):
        directory_batch(five, seed, step, size)
