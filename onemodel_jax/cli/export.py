"""``onemodel export``: write a trained recognizer in another format."""

import argparse
from typing import Any

import jax
import numpy as np

from onemodel_jax._tree import Params
from onemodel_jax.checkpoint import (
    export_npz,
    export_safetensors,
    load_model,
    save_model,
)
from onemodel_jax.cli import session

FORMATS = ("onemodel", "safetensors", "npz")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "export",
        help="write a recognizer as a model container",
        description=(
            "Write a checkpoint's recognizer as an ONEMODEL container (binary16 "
            "weights) and check it, or as safetensors or npz (float32 weights)."
        ),
    )
    parser.add_argument("file", help="training checkpoint")
    parser.add_argument("out", help="file to write")
    parser.add_argument("--format", choices=FORMATS, default="onemodel")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file; 1 if it does not read back as what was written."""
    model = session.load_recognizer(args.file)
    if args.format == "onemodel":
        save_model(
            args.out,
            model.params,
            architecture=session.ARCHITECTURE,
            config=session.to_container(model.config),
            charset=model.charset,
        )
        different = parity_faults(model.params, args.out)
        if different:
            print(f"{args.out} differs from {args.file}: {', '.join(different)}")
            return 1
    else:
        write = export_npz if args.format == "npz" else export_safetensors
        write(args.out, model.params)
    print(f"wrote {args.out}")
    return 0


def parity_faults(params: Params, path: str) -> list[str]:
    """Return the tensors of a container that are not ``params`` rounded to binary16."""
    read = load_model(path, params).params
    faults = []
    for (where, want), got in zip(
        jax.tree_util.tree_leaves_with_path(params),
        jax.tree_util.tree_leaves(read),
        strict=True,
    ):
        rounded = np.asarray(want).astype(np.float16).astype(np.float32)
        if not np.array_equal(rounded.view(np.uint32), np.asarray(got).view(np.uint32)):
            faults.append(jax.tree_util.keystr(where))
    return faults
