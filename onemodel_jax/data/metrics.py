"""What a recognizer read, and how far that is from the truth.

Greedy decoding only: no beam, no language model.
"""

from collections.abc import Sequence

import numpy as np

from onemodel_jax._checks import check_rank, fail


def greedy_decode(logits: np.ndarray, blank: int = 0) -> list[int]:
    """Return the labels of the best class of each step.

    Equal neighbours are merged, then blanks dropped. The first of equal maxima wins;
    NaN counts as -infinity.

    Args:
      logits: (T, C), C >= 1, logits or log-probabilities of one line's own steps.
      blank: the blank's class.

    Raises:
      ValueError: ``logits`` has another rank, or no class.

    References: Graves et al. 2006, "Connectionist temporal classification", 3.2,
    best path decoding.
    """
    logits = np.asarray(logits)
    check_rank("greedy_decode", "logits", logits, 2)
    if logits.shape[1] == 0:
        fail(ValueError, "greedy_decode", "logits", "C >= 1", logits.shape)
    best = np.where(np.isnan(logits), -np.inf, logits).argmax(axis=1)
    first = np.ones(len(best), bool)
    first[1:] = best[1:] != best[:-1]
    return best[first & (best != blank)].tolist()


def edit_distance(first: Sequence, second: Sequence) -> int:
    """Return the fewest insertions, deletions and substitutions between two sequences.

    References: Levenshtein 1966.
    """
    above = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        row = [i]
        for j, b in enumerate(second, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def character_error_rate(
    references: Sequence[Sequence], readings: Sequence[Sequence]
) -> float:
    """Return all edits divided by all reference characters.

    The quotient is one binary64 division. Without any reference character it is 0
    if nothing was read and infinity otherwise.

    Args:
      references: the true labels (or strings) of each line.
      readings: what was read, in the same order.

    Raises:
      ValueError: the numbers of lines differ.
    """
    if len(references) != len(readings):
        expected = f"{len(references)} lines"
        fail(ValueError, "character_error_rate", "readings", expected, len(readings))
    pairs = zip(references, readings, strict=True)
    edits = sum(edit_distance(reference, reading) for reference, reading in pairs)
    characters = sum(len(reference) for reference in references)
    if characters == 0:
        return float("inf") if edits else 0.0
    return edits / characters


def line_text(labels: Sequence[int] | np.ndarray, charset: str) -> str:
    """Return the characters of ``labels``: class c is ``charset[c - 1]``.

    Raises:
      ValueError: a label is not in 1..len(charset).
    """
    for label in labels:
        if not 1 <= label <= len(charset):
            fail(ValueError, "line_text", "labels", f"1..{len(charset)}", label)
    return "".join(charset[label - 1] for label in labels)
