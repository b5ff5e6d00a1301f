"""Digit lines: the documented rules in plain Python, determinism, feasibility."""

import hashlib
import re
import struct
from fractions import Fraction

import numpy as np
import pytest

from onemodel_jax.data import (
    Line,
    draw_line,
    evaluation_line,
    evaluation_lines,
    pad_batch,
    steps_needed,
    time_steps,
    training_batch,
    training_line,
)
from onemodel_jax.data.digits import DIGITS_FILE, glyphs
from tests.support import assert_bits_equal

FIRST_BATCH = "616d58687071001bfc9fcfd7a7b5bdc29da82ffb4b0ab9b0126e744b8d4a226c"


def digest(parts):
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


# The rules once more, from the specification, sharing no code with the package.


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def word(seed, n):
    return mix((seed + (n + 1) * 0x9E3779B97F4A7C15) % 2**64)


def plain_glyphs(held_out=False):
    """Return (label, 64 scanned pixels) of each digit of one side of the split."""
    data = DIGITS_FILE.read_bytes()
    (count,) = struct.unpack_from("<I", data, 8)
    labels, pixels = data[16 : 16 + count], data[16 + count :]
    seen, kept = [0] * 10, []
    for n, label in enumerate(labels):
        seen[label] += 1
        if (seen[label] % 5 == 0) == held_out:
            kept.append((label, pixels[64 * n : 64 * n + 64]))
    return kept


def plain_columns(pixels):
    """Return the columns of one enlarged and cropped digit, ink as fractions."""

    def ends(o):
        x = Fraction(2 * o + 1, 8) - Fraction(1, 2)
        low = int(x // 1)
        share = x - low
        return ((max(low, 0), 1 - share), (min(low + 1, 7), share))

    def ink(row, col):
        total = sum(
            pixels[8 * r + c] * a * b for r, a in ends(row) for c, b in ends(col)
        )
        return total / 16

    inked = [c for c in range(8) if any(pixels[c::8])]
    left, right = inked[0], inked[-1] + 1
    if right - left < 4:
        left = min(left, 4)
        right = max(right, left + 4)
    return [[ink(r, c) for r in range(32)] for c in range(4 * left, 4 * right)]


def plain_line(stream, digits):
    """Return (label digits, columns) of one line."""
    draws = iter(range(1000))

    def below(limit):
        return word(stream, next(draws)) * limit >> 64

    chosen = []
    for _ in range(4 + below(7)):
        index, shift, gap = below(len(digits)), below(5) - 2, below(9)
        chosen.append((digits[index][0], plain_columns(digits[index][1]), shift, gap))
    gaps = [gap for _, _, _, gap in chosen] + [below(9)]
    free = 320 - sum(len(columns) for _, columns, _, _ in chosen)
    result = []
    for n, (_, columns, shift, _) in enumerate(chosen):
        result += [[Fraction(0)] * 32] * min(gaps[n], free)
        free -= min(gaps[n], free)
        for column in columns:
            rows = [r - shift for r in range(32)]
            result.append([column[r] if 0 <= r < 32 else Fraction(0) for r in rows])
    result += [[Fraction(0)] * 32] * min(gaps[-1], free)
    return [label for label, _, _, _ in chosen], result


def plain_batch(seed, step, size):
    """Return the bytes of a batch's four arrays."""
    digits = plain_glyphs()
    lines = [
        plain_line(word(word(word(seed, 1), step), i), digits) for i in range(size)
    ]
    images, labels = b"", b""
    for line_labels, columns in lines:
        blank = [Fraction(0)] * 32
        padded = columns + [blank] * (320 - len(columns))
        inks = [float(padded[x][y]) for y in range(32) for x in range(320)]
        images += struct.pack("<10240f", *inks)
        classes = [label + 1 for label in line_labels]
        labels += struct.pack("<10i", *(classes + [0] * 10)[:10])
    widths = struct.pack(f"<{size}i", *(len(columns) for _, columns in lines))
    lengths = struct.pack(f"<{size}i", *(len(labels) for labels, _ in lines))
    return images, widths, labels, lengths


def test_the_first_batch_has_the_pinned_bytes():
    got = training_batch(seed=0, step=0, batch_size=16)
    assert digest(part.tobytes() for part in got) == FIRST_BATCH
    assert [part.dtype for part in got] == [np.float32, np.int32, np.int32, np.int32]
    assert [part.shape for part in got] == [(16, 32, 320, 1), (16,), (16, 10), (16,)]


def test_the_documented_rules_in_plain_python_give_the_pinned_bytes():
    assert digest(plain_batch(seed=0, step=0, size=16)) == FIRST_BATCH


@pytest.mark.parametrize(("seed", "step"), [((1 << 64) - 1, 0), (5, 123456)])
def test_other_seeds_and_steps_follow_the_documented_rules(seed, step):
    got = [part.tobytes() for part in training_batch(seed, step, 2)]
    assert got == list(plain_batch(seed, step, 2))


def test_a_line_depends_on_seed_step_and_number_alone():
    large = training_batch(3, 9, 8)
    small = training_batch(3, 9, 2)
    for one, other in zip(large, small, strict=True):
        assert_bits_equal(one[:2], other)
    line = training_line(3, 9, 7)
    assert large.widths[7] == line.image.shape[1]
    assert_bits_equal(large.images[7, :, : large.widths[7], 0], line.image)
    assert not large.images[7, :, large.widths[7] :].any()


def test_seeds_steps_and_numbers_give_different_lines():
    keys = [(s, t, n) for s in (0, 1) for t in (0, 1, 2) for n in (0, 1, 2)]
    assert len({training_line(*key).image.tobytes() for key in keys}) == len(keys)


def test_evaluation_lines_are_fixed_and_a_prefix_of_a_longer_list():
    short, long = evaluation_lines(3), evaluation_lines(5)
    for one, other in zip(short, long[:3], strict=True):
        assert_bits_equal(one.image, other.image)
        assert_bits_equal(one.labels, other.labels)
    assert evaluation_lines(0) == []


def test_evaluation_lines_follow_the_documented_rules_on_held_out_digits():
    digits = plain_glyphs(held_out=True)
    for number, line in enumerate(evaluation_lines(3)):
        labels, columns = plain_line(word(word(0, 2), number), digits)
        image = np.array([[float(ink) for ink in column] for column in columns])
        assert_bits_equal(line.image, image.T.astype(np.float32))
        assert (line.labels - 1).tolist() == labels


def test_every_line_of_two_thousand_can_be_aligned_and_fits():
    lengths = set()
    for number in range(1000):
        for line in (training_line(1, 0, number), evaluation_line(number)):
            height, width = line.image.shape
            assert height == 32 and width <= 320
            assert 4 <= len(line.labels) <= 10
            assert line.labels.min() >= 1 and line.labels.max() <= 10
            assert steps_needed(line.labels) <= time_steps(width)
            assert 0 <= line.image.min() and line.image.max() <= 1
            lengths.add(len(line.labels))
    assert lengths == set(range(4, 11))


def test_gaps_are_cut_where_the_glyphs_leave_no_room(monkeypatch):
    wide = glyphs(False)._replace(left=np.zeros(1442, int), right=np.full(1442, 32))
    monkeypatch.setattr("onemodel_jax.data.lines.glyphs", lambda _: wide)
    lines = [draw_line(stream) for stream in range(200)]
    widths = [line.image.shape[1] for line in lines if len(line.labels) == 10]
    assert widths and set(widths) == {320}


def test_filler_rows_are_blank_and_do_not_change_the_lines():
    lines = evaluation_lines(2)
    batch = pad_batch(lines, 320, 10, rows=4)
    plain = pad_batch(lines, 320, 10)
    for padded, part in zip(batch, plain, strict=True):
        assert_bits_equal(padded[:2], part)
    assert not batch.images[2:].any() and not batch.labels[2:].any()
    assert batch.widths[2:].tolist() == [320, 320]
    assert batch.label_lengths[2:].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("labels", "want"), [([], 1), ([3], 1), ([1, 2], 2), ([1, 1], 3), ([2] * 5, 9)]
)
def test_steps_needed_counts_labels_and_equal_neighbours(labels, want):
    assert steps_needed(labels) == want
    assert [time_steps(w) for w in (7, 8, 15, 16, 17)] == [0, 1, 1, 2, 2]


LINE = Line(np.zeros((32, 40), np.float32), np.array([1, 2, 3], np.int32))
TALL = Line(np.zeros((33, 40), np.float32), np.array([1], np.int32))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: training_batch(0, 0, 0), ValueError, "batch_size: expected at least"),
        (lambda: training_batch(0, 0, 2.0), TypeError, "batch_size: expected an int"),
        (lambda: training_batch(-1, 0, 1), ValueError, "seed: expected 0 to 2^64 - 1"),
        (lambda: training_batch(0, -1, 1), ValueError, "path: expected 0 to 2^64 - 1"),
        (lambda: draw_line(1.5), TypeError, "Generator: seed: expected an integer"),
        (lambda: pad_batch([TALL], 40, 3), ValueError, "got (33, 40)"),
        (lambda: pad_batch([LINE, LINE], 39, 3), ValueError, "32 x at most 39 pixels"),
        (lambda: pad_batch([LINE], 40, 2), ValueError, "expected at most 2 labels"),
        (lambda: pad_batch([LINE] * 3, 40, 3, 2), ValueError, "lines: expected at mos"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()
