"""``onemodel inspect``: what is in a checkpoint or a model container."""

import argparse
import json
from typing import Any

import numpy as np

from onemodel_jax.checkpoint import (
    CheckpointError,
    Tensor,
    read_model_tensors,
    read_tensors,
)
from onemodel_jax.checkpoint.format import MODEL_MAGIC


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="show the tensors of a checkpoint or container",
        description=(
            "List tensors, shapes, bytes and statistics. The file is not trusted."
        ),
    )
    parser.add_argument("file", help="checkpoint or model container")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, or the JSON object."""
    try:
        report = describe_file(args.file)
    except CheckpointError as error:
        raise ValueError(f"{args.file}: {error}") from None
    if args.json:
        print(json.dumps(report, indent=1, allow_nan=False))
        return 0
    for key, value in report.items():
        if key != "tensors":
            print(f"{key}: {json.dumps(value) if isinstance(value, dict) else value}")
    rows = [list(_cells(t)) for t in report["tensors"]]
    header = ["tensor", "dtype", "shape", "bytes", "min", "max", "mean", "not finite"]
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        text = [row[0].ljust(widths[0])]
        text += [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(text).rstrip())
    return 0


def describe_file(path: str) -> dict[str, Any]:
    """Return what the file says of itself and the statistics of its tensors.

    Raises:
      CheckpointError: the file is no well-formed checkpoint or container.
      OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        is_model = file.read(len(MODEL_MAGIC)) == MODEL_MAGIC
    report: dict[str, Any] = {"file": path}
    if is_model:
        manifest, arrays = read_model_tensors(path)
        report["format"] = "ONEMODEL model container"
        report["architecture"] = manifest.architecture
        report["charset"] = manifest.charset
        report["config"] = manifest.config
    else:
        manifest, arrays = read_tensors(path)
        report["format"] = "ONEMCKPT checkpoint"
        optimizer = manifest.optimizer
        if optimizer is not None:
            report["optimizer"] = optimizer.kind
            report["step"] = optimizer.step
            report["hyper"] = {k: f"0x{bits:x}" for k, bits in optimizer.hyper}
        report["extra"] = manifest.extra
    pairs = zip(manifest.tensors, arrays, strict=True)
    report["tensors"] = [_statistics(t, a) for t, a in pairs]
    return report


def _statistics(tensor: Tensor, array: np.ndarray) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.length,
    }
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    entry["not_finite"] = int(array.size - finite.size)
    if finite.size:
        entry["min"] = finite.min().item()
        entry["max"] = finite.max().item()
        entry["mean"] = float(finite.mean(dtype=np.float64))
    return entry


def _cells(entry: dict[str, Any]) -> list[str]:
    numbers = [
        f"{entry[key]:.4g}" if key in entry else "-" for key in ("min", "max", "mean")
    ]
    shape = "x".join(map(str, entry["shape"])) or "()"
    size = f"{entry['bytes']:,}"
    name = entry["name"].encode("unicode_escape").decode()
    return [name, entry["dtype"], shape, size, *numbers, str(entry["not_finite"])]
