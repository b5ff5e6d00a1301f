"""Assemble the hostile checkpoints by hand from the text of SPEC, "Checkpoints".

Only ``struct`` and ``json``: the library's writer is not called. Run it to write
the files anew; ``test_hostile.py`` compares them with what it makes.
"""

import copy
import json
import struct
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "testdata/checkpoint/hostile"
HEADER_FIELDS = (
    "magic version flags manifest_offset manifest_length data_offset data_length "
    "file_length reserved"
).split()


def tensor(name, dtype, shape, offset, length):
    """One tensor entry in the stated field order."""
    fields = (name, dtype, shape, offset, length)
    names = ("name", "dtype", "shape", "offset", "length")
    return dict(zip(names, fields, strict=True))


def manifest():
    """The manifest of a small state with an optimizer, as JSON data."""
    return {
        "format": "onemodel-checkpoint",
        "version": 1,
        "model": [
            tensor("w", "f32", [2, 3], 0, 24),
            tensor("empty", "f32", [0, 3], 64, 0),
            tensor("count", "i64", [], 64, 8),
            tensor("cell.bias", "f32", [3], 128, 12),
            tensor("cell.draws", "i32", [], 192, 4),
        ],
        "optimizer": {
            "kind": "adamw",
            "step": 3,
            "hyper": [
                {"name": "learning_rate", "bits": 0x3F000000},
                {"name": "b1", "bits": 0x3FE0000000000000},
                {"name": "eps", "bits": 0},
            ],
            "state": [
                tensor("exp_avg.0", "f32", [2, 3], 256, 24),
                tensor("exp_avg.1", "f32", [0, 3], 320, 0),
                tensor("exp_avg.2", "f32", [3], 320, 12),
            ],
        },
        "extra": [{"key": "epoch", "value": -1}, {"key": "samples", "value": 640}],
    }


def padded(data):
    return data + bytes(-len(data) % 64)


def data():
    """The data region: eight tensors, each at a multiple of 64."""
    bias = struct.pack("<III", 0x80000000, 0x3FC00000, 1)
    parts = [struct.pack("<6f", 0, 1, 2, 3, 4, 5), struct.pack("<q", 2**40), bias]
    parts += [struct.pack("<i", 7), struct.pack("<6f", *[0.25] * 6)]
    return b"".join(padded(part) for part in parts) + struct.pack("<3f", 1, 2, 3)


def text(fields):
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def frame(manifest_bytes, region, order="<", **changes):
    """Put a header in front; ``changes`` replace header fields."""
    offset = len(padded(bytes(64) + manifest_bytes))
    total = offset + len(region)
    values = [b"ONEMCKPT", 1, 0, 64, len(manifest_bytes), offset, len(region), total, 0]
    header = dict(zip(HEADER_FIELDS, values, strict=True)) | changes
    packed = struct.pack(order + "8sII6Q", *header.values())
    return padded(packed + manifest_bytes) + region


def valid():
    """The well-formed file that every case damages."""
    return frame(text(manifest()), data())


def edited(change):
    """The valid file with its manifest changed in place by ``change``."""
    fields = copy.deepcopy(manifest())
    change(fields)
    return frame(text(fields), data())


def at(*path, value):
    """The valid file with one manifest item replaced."""

    def change(fields):
        for key in path[:-1]:
            fields = fields[key]
        fields[path[-1]] = value

    return edited(change)


def swapped(old, new):
    """The valid file with one piece of manifest text replaced, JSON or not."""
    whole = text(manifest())
    assert whole.count(old) >= 1
    return frame(whole.replace(old, new, 1), data())


def header_cases():
    good, body = valid(), text(manifest())
    region = data()
    offset = len(good) - len(region)
    change = lambda **fields: frame(body, region, **fields)  # noqa: E731
    return {
        "empty": b"",
        "one-byte": b"O",
        "short": good[:63],
        "header-only": good[:64],
        "zeros": bytes(64),
        "magic": change(magic=b"ONEMCKPX"),
        "model-magic": change(magic=b"ONEMODEL"),
        "version-0": change(version=0),
        "version-2": change(version=2),
        "flags": change(flags=1),
        "big-endian": frame(body, region, ">"),
        "manifest-offset": change(manifest_offset=128),
        "manifest-offset-0": change(manifest_offset=0),
        "manifest-length-0": change(manifest_length=0),
        "manifest-length-max": change(manifest_length=2**64 - 1),
        "manifest-length-sign": change(manifest_length=2**63),
        "manifest-length-file": change(manifest_length=len(good) + 1),
        "manifest-length-limit": change(manifest_length=2**28 + 1),
        "data-offset-unaligned": change(data_offset=offset + 1),
        "data-offset-before": change(data_offset=64),
        "data-offset-later": change(data_offset=offset + 64),
        "data-offset-past": change(data_offset=len(padded(good)) + 64),
        "data-offset-max": change(data_offset=2**64 - 64),
        "data-length-short": change(data_length=len(region) - 1),
        "data-length-wraps": change(data_length=2**64 - offset),
        "file-length-short": change(file_length=len(good) - 1),
        "file-length-long": change(file_length=len(good) + 1),
        "reserved": change(reserved=1),
        "truncated": good[: len(good) // 2],
        "last-byte-missing": good[:-1],
        "trailing-byte": good + b"\0",
        "trailing-block": good + bytes(64),
    }


def syntax_cases():
    body, region = text(manifest()), data()
    nested = lambda n: b"[" * n + b"]" * n  # noqa: E731
    deep = lambda n: swapped(b'"shape":[2,3]', b'"shape":' + nested(n))  # noqa: E731
    number = lambda t: swapped(b'"offset":0', b'"offset":' + t)  # noqa: E731
    padding = bytearray(valid())
    padding[64 + len(body)] = 1
    return {
        "empty": frame(b"", region),
        "not-json": frame(b"onemodel", region),
        "not-utf8": swapped(b'"w"', b'"\xff"'),
        "utf8-overlong": swapped(b'"w"', b'"\xc1\xb7"'),
        "utf8-surrogate": swapped(b'"w"', b'"\xed\xa0\x80"'),
        "lone-surrogate": swapped(b'"w"', b'"\\ud800"'),
        "bom": frame(b"\xef\xbb\xbf" + body, region),
        "utf16": frame(body.decode().encode("utf-16"), region),
        "cut": frame(body[:-1], region),
        "cut-string": frame(body[:20], region),
        "text-behind": frame(body + b"{}", region),
        "nul-behind": frame(body + b"\0", region),
        "padding-not-zero": bytes(padding),
        "array": frame(b"[]", region),
        "null": frame(b"null", region),
        "object-empty": frame(b"{}", region),
        "depth-33": deep(33),
        "depth-3000": deep(3000),
        "depth-open": frame(b"[" * 5000, region),
        "depth-objects": frame(b'{"format":' * 3000, region),
        "nan": number(b"NaN"),
        "infinity": number(b"Infinity"),
        "minus-infinity": number(b"-Infinity"),
        "fraction": number(b"0.0"),
        "exponent": number(b"0e0"),
        "leading-zero": number(b"00"),
        "plus": number(b"+0"),
        "digits-5000": number(b"9" * 5000),
        "offset-true": number(b"true"),
        "offset-string": number(b'"0"'),
        "offset-null": number(b"null"),
        "control-character": swapped(b'"w"', b'"w\n"'),
        "escape": swapped(b'"w"', b'"\\x77"'),
        "trailing-comma": swapped(b"640}]", b"640},]"),
        "comment": swapped(b'"version":1', b'/**/"version":1'),
        "single-quotes": swapped(b'"w"', b"'w'"),
        "duplicate-field": swapped(b'"version":1', b'"version":1,"version":1'),
        "duplicate-shape": swapped(b'"shape":[2,3]', b'"shape":[6],"shape":[2,3]'),
    }


def schema_cases():
    w = ("model", 0)
    dimension = lambda *shape: at(*w, "shape", value=list(shape))  # noqa: E731
    hyper = ("optimizer", "hyper")
    entry = manifest()["model"][0]
    return {
        "format": at("format", value="onemodel-model"),
        "version-2": at("version", value=2),
        "version-float": at("version", value=1.0),
        "version-true": at("version", value=True),
        "no-format": edited(lambda m: m.pop("format")),
        "no-model": edited(lambda m: m.pop("model")),
        "no-extra": edited(lambda m: m.pop("extra")),
        "unknown-field": at("comment", value="x"),
        "model-object": at("model", value={}),
        "optimizer-null": at("optimizer", value=None),
        "tensor-array": at(*w, value=list(entry.values())),
        "no-dtype": edited(lambda m: m["model"][0].pop("dtype")),
        "unknown-tensor-field": at(*w, "stride", value=[3, 1]),
        "duplicate-tensor": at("model", 1, value=entry),
        "duplicate-slot": at("optimizer", "state", 1, "name", value="exp_avg.0"),
        "name-number": at(*w, "name", value=7),
        "dtype-f64": at(*w, "dtype", value="f64"),
        "dtype-f16": at(*w, "dtype", value="f16"),
        "dtype-case": at(*w, "dtype", value="F32"),
        "dimension-negative": dimension(-2, 3),
        "dimension-2-31": dimension(2**31, 1),
        "dimension-2-32": dimension(2**32, 2**32),
        "dimension-2-63": dimension(2**63 - 1, 2),
        "dimension-2-64": dimension(2**64 - 1, 2),
        "dimension-0-2-63": dimension(0, 2**63),
        "dimension-true": dimension(True, 6),
        "dimension-float": dimension(2.0, 3),
        "dimension-string": dimension("2", 3),
        "rank-33": dimension(*[1] * 33),
        "rank-5000": dimension(*[1] * 5000),
        "shape-number": at(*w, "shape", value=6),
        "offset-2-63": at(*w, "offset", value=2**63),
        "length-2-64": at(*w, "length", value=2**64),
        "length-minus-2-63": at(*w, "length", value=-(2**63) - 1),
        "step-negative": at("optimizer", "step", value=-1),
        "step-2-31": at("optimizer", "step", value=2**31),
        "step-float": at("optimizer", "step", value=3.0),
        "kind-null": at("optimizer", "kind", value=None),
        "rate-33-bits": at(*hyper, 0, "bits", value=2**32),
        "bits-negative": at(*hyper, 1, "bits", value=-1),
        "bits-2-64": at(*hyper, 1, "bits", value=2**64),
        "bits-float": at(*hyper, 1, "bits", value=0.5),
        "duplicate-hyper": at(*hyper, 2, "name", value="b1"),
        "extra-object": at("extra", value={"epoch": -1}),
        "extra-unsorted": edited(lambda m: m["extra"].reverse()),
        "extra-duplicate": at("extra", 1, "key", value="epoch"),
        "extra-2-63": at("extra", 1, "value", value=2**63),
        "extra-true": at("extra", 1, "value", value=True),
        "extra-float": at("extra", 1, "value", value=1.5),
    }


def mismatch_cases():
    w, adam = ("model", 0), "optimizer"

    def order(m):
        m["model"][0]["name"], m["model"][3]["name"] = "cell.bias", "w"

    def shape_and_offset(m):
        m["model"][0] |= {"shape": [3, 2], "offset": -64}

    return {
        "name": at(*w, "name", value="W"),
        "name-prefix": at(*w, "name", value="w."),
        "order": edited(order),
        "missing": edited(lambda m: m["model"].pop(1)),
        "surplus": edited(lambda m: m["model"].append(tensor("z", "f32", [0], 256, 0))),
        "no-tensors": at("model", value=[]),
        "dtype": at(*w, "dtype", value="i32"),
        "shape": at(*w, "shape", value=[3, 2]),
        "rank": at(*w, "shape", value=[6]),
        "rank-0": at("model", 3, "shape", value=[]),
        "huge-shape": at(*w, "shape", value=[2**31 - 1] * 32),
        "huge-then-empty": at(*w, "shape", value=[2**31 - 1, 0]),
        "before-offset": edited(shape_and_offset),
        "no-optimizer": edited(lambda m: m.pop(adam)),
        "kind": at(adam, "kind", value="adam"),
        "setting-value": at(adam, "hyper", 2, "bits", value=2**63),
        "setting-name": at(adam, "hyper", 2, "name", value="epsilon"),
        "setting-missing": edited(lambda m: m[adam]["hyper"].pop()),
        "rate-missing": edited(lambda m: m[adam]["hyper"].pop(0)),
        "slot-name": at(adam, "state", 0, "name", value="exp_avg_sq.0"),
        "slot-missing": edited(lambda m: m[adam]["state"].pop()),
        "slot-shape": at(adam, "state", 0, "shape", value=[6]),
    }


def tensor_cases():
    good, region, body = valid(), data(), text(manifest())
    w, slot = ("model", 0), ("optimizer", "state", 2)
    start = len(good) - len(region)

    def poked(position):
        changed = bytearray(good)
        changed[start + position] = 1
        return bytes(changed)

    def exchanged(m):
        a, b = m["model"][0], m["optimizer"]["state"][0]
        a["offset"], b["offset"] = b["offset"], a["offset"]

    return {
        "length-short": at(*w, "length", value=20),
        "length-15": at("model", 3, "length", value=15),
        "length-long": at(*w, "length", value=28),
        "length-negative": at(*w, "length", value=-24),
        "length-max": at(*w, "length", value=2**63 - 1),
        "empty-with-length": at("model", 1, "length", value=12),
        "offset-negative": at(*w, "offset", value=-64),
        "offset-minus-2-63": at(*w, "offset", value=-(2**63)),
        "offset-unaligned": at("model", 3, "offset", value=132),
        "offset-past-end": at(*slot, "offset", value=384),
        "offset-2-40": at(*slot, "offset", value=2**40),
        "offset-max": at(*slot, "offset", value=2**63 - 64),
        "overlap": at("model", 3, "offset", value=64),
        "overlap-optimizer": at(*slot, "offset", value=0),
        "exchanged": edited(exchanged),
        "gap": at("model", 4, "offset", value=256),
        "data-cut": frame(body, region[:-1]),
        "data-missing": frame(body, b""),
        "data-behind": frame(body, padded(region) + bytes(64)),
        "data-behind-short": frame(body, region + b"\0"),
        "padding-between": poked(24),
        "padding-behind": frame(body, padded(region)[:-1] + b"\1"),
    }


def cases():
    """All hostile files: name (``<kind>-<what>``) to bytes."""
    groups = {
        "BadHeader": header_cases(),
        "BadManifest": syntax_cases() | schema_cases(),
        "Mismatch": mismatch_cases(),
        "BadTensor": tensor_cases(),
    }
    return {
        f"{kind}-{name}": content
        for kind, group in groups.items()
        for name, content in group.items()
    }


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.ckpt"):
        old.unlink()
    for name, content in cases().items():
        (FOLDER / f"{name}.ckpt").write_bytes(content)


if __name__ == "__main__":
    main()
