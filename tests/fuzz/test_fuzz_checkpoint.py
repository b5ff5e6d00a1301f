"""A seeded mutator against the checkpoint reader: typed error or equal state."""

import random
import tracemalloc
from collections import Counter

import pytest

from tests.fuzz.checkpoint_property import (
    KINDS,
    check,
    check_unchanged,
    repaired,
    seeds,
)

INPUTS = 20_000
TOKENS = [
    *(b"0", b"1", b"-1", b"-", b"64", b"2147483647", b"2147483648", b"1e9", b"0.5"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551615"),
    *(b"true", b"null", b"NaN", b"Infinity", b'"f32"', b'"i32"', b'"i64"', b'"f16"'),
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\ud800", b"\xff", b"\0"),
    *(b'"name":', b'"shape":', b'"offset":', b'"length":', b'"optimizer":', b"[" * 40),
]


def mutate(rng, data, corpus):
    """One to four random edits; most of them in the header and the manifest."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(data)
        limit = size if rng.random() < 0.2 else min(size, 2500)
        at = rng.randrange(limit + 1)
        match rng.randrange(8):
            case 0 if size:
                data[at - 1] ^= 1 << rng.randrange(8)
            case 1 if size:
                data[at - 1] = rng.randrange(256)
            case 2:
                data[at:at] = rng.choice(TOKENS)
            case 3:
                token = rng.choice(TOKENS)
                data[at : at + len(token)] = token
            case 4:
                del data[at : at + rng.choice((1, 2, 8, 64, 500))]
            case 5:
                data[at:at] = data[at : at + rng.choice((1, 8, 40, 64))]
            case 6:
                other = rng.choice(corpus)
                start = rng.randrange(len(other) + 1)
                data[at:] = other[start:]
            case 7:
                change_number(rng, data, at)
    return bytes(data)


def change_number(rng, data, at):
    """Replace the first decimal number behind ``at`` by another."""
    digits = b"0123456789"
    start = next((i for i in range(at, len(data)) if data[i] in digits), None)
    if start is not None:
        end = start
        while end < len(data) and data[end] in digits:
            end += 1
        value = int(data[start:end][:30]) + rng.choice((-64, -1, 1, 4, 64, 2**32))
        data[start:end] = str(value).encode()


@pytest.fixture(scope="module")
def corpus():
    return seeds()


@pytest.mark.slow
@pytest.mark.parametrize("repair", [False, True], ids=["as is", "lengths repaired"])
def test_mutated_checkpoint_gives_a_typed_error_or_an_equal_state(corpus, repair):
    rng = random.Random(20 + repair)
    outcomes = Counter()
    for i in range(INPUTS):
        # The first four seeds are the pairs' own files: every second input.
        seed = corpus[i // 2 % 4] if i % 2 else rng.choice(corpus)
        data = mutate(rng, seed, corpus)
        outcomes.update(check(repaired(data) if repair else data))
        if i % 2000 == 0:
            check_unchanged()
    check_unchanged()
    assert outcomes.total() == 4 * INPUTS
    # The inputs reach every stage, and some of them load.
    for outcome in (*KINDS, "loaded"):
        assert outcomes[outcome] > 50, outcomes


def test_seeds_as_they_are_have_the_property(corpus):
    outcomes = Counter(o for data in corpus for o in check(data))
    assert outcomes["loaded"] == 6
    assert check(corpus[1]) == ["loaded", "loaded", "Mismatch", "Mismatch"]


def test_memory_is_bounded_by_the_size_of_the_input(corpus):
    rng = random.Random(7)
    check(corpus[0])
    for _ in range(300):
        data = repaired(mutate(rng, rng.choice(corpus), corpus))
        tracemalloc.start()
        check(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20 + 16 * len(data)
