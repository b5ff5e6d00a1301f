"""Greedy decoding, edit distance and character error rate, worked by hand."""

import re

import numpy as np
import pytest

from onemodel_jax.data import (
    character_error_rate,
    edit_distance,
    greedy_decode,
    line_text,
)


def peaks(classes, num_classes=4):
    return np.eye(num_classes, dtype=np.float32)[list(classes)]


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ([], []),
        ([0, 0, 0], []),
        ([1, 1, 0, 1, 2, 2], [1, 1, 2]),
        ([3, 0, 0, 3, 3, 1, 0], [3, 3, 1]),
        ([2, 1, 2], [2, 1, 2]),
    ],
)
def test_repeats_merge_before_blanks_are_dropped(path, want):
    assert greedy_decode(peaks(path).reshape(-1, 4)) == want


def test_another_class_can_be_the_blank():
    assert greedy_decode(peaks([3, 0, 3, 0, 0, 1]), blank=3) == [0, 0, 1]


def test_the_first_of_equal_maxima_wins_and_nan_never_does():
    nan, inf = np.nan, np.inf
    rows = [[0, 2, 2], [nan, 1, 3], [nan, nan, nan], [-inf, -inf, nan], [3, nan, inf]]
    assert greedy_decode(np.array(rows)) == [1, 2, 2]


def test_decoding_does_not_change_the_logits():
    logits = np.array([[np.nan, 1.0]])
    greedy_decode(logits)
    assert np.isnan(logits[0, 0])


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("saturday", "sunday", 3),
        ("abcdef", "bcdefa", 2),
        ([1, 2, 3], [1, 3], 1),
    ],
)
def test_edit_distance_by_hand(first, second, want):
    assert edit_distance(first, second) == want
    assert edit_distance(second, first) == want


@pytest.mark.parametrize(
    ("references", "readings", "want"),
    [
        (["1234", "56"], ["1234", "56"], 0.0),
        (["1234", "56"], ["124", "567"], 2 / 6),
        (["1"], ["222"], 3.0),
        ([""], [""], 0.0),
        (["", "12"], ["3", "12"], 0.5),
        ([""], ["3"], float("inf")),
        ([], [], 0.0),
    ],
)
def test_error_rate_is_all_edits_over_all_characters(references, readings, want):
    assert character_error_rate(references, readings) == want


def test_text_of_labels():
    assert line_text([1, 10, 5], "0123456789") == "094"
    assert line_text(np.array([], np.int32), "ab") == ""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: greedy_decode(np.zeros(3)), "greedy_decode: logits: expected rank 2"),
        (lambda: greedy_decode(np.zeros((2, 0))), "logits: expected C >= 1"),
        (lambda: character_error_rate(["1"], []), "readings: expected 1 lines, got 0"),
        (lambda: line_text([0], "ab"), "line_text: labels: expected 1..2, got 0"),
        (lambda: line_text([3], "ab"), "line_text: labels: expected 1..2, got 3"),
    ],
)
def test_bad_arguments_are_named(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()
