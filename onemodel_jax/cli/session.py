"""What the subcommands share: the run's settings in a checkpoint, and its lines."""

import dataclasses
import hashlib
import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onemodel_jax import data
from onemodel_jax._checks import fail
from onemodel_jax._tree import Params, TrainState
from onemodel_jax._types import EXACT, FAST, Arithmetic
from onemodel_jax.checkpoint import (
    load,
    load_model,
    read_manifest,
    read_model_manifest,
)
from onemodel_jax.checkpoint.format import MODEL_MAGIC
from onemodel_jax.data import Line, LineBatch
from onemodel_jax.models import crnn
from onemodel_jax.optim import Optimizer, adamw_lerp
from onemodel_jax.schedules import warmup_cosine
from onemodel_jax.training import init_state

ARCHITECTURE = "crnn"
WEIGHT_DECAY = 0.01
MAX_NORM = 5.0
FINAL_RATE = 0.02
MOST_WARMUP = 50
HELD_OUT_EVERY = 10


class Settings(NamedTuple):
    """All that decides a run; stored with the checkpoint as its extra integers.

    Attributes:
      seed: of the weights and the order of the lines.
      batch: lines of a step.
      steps: steps of the whole run, which the schedule spans.
      learning_rate: peak rate, binary64.
      config: sizes of the recognizer.
      charset: characters of the classes 1, 2, ...
      fingerprint: 0 for the bundled lines, else 63 bits that identify the user's.
      arithmetic: "exact" or "fast".
    """

    seed: int
    batch: int
    steps: int
    learning_rate: float
    config: crnn.CrnnConfig
    charset: str
    fingerprint: int
    arithmetic: Arithmetic


class Lines(NamedTuple):
    """The source of a run's lines.

    Attributes:
      train: None for the bundled lines, else the user's training lines.
      held_out: lines to measure on, never trained on.
      width, label_length: the padded sizes of every batch.
      charset: characters of the classes.
      fingerprint: see :class:`Settings`.
    """

    train: data.LineSet | None
    held_out: list[Line]
    width: int
    label_length: int
    charset: str
    fingerprint: int

    def batch(self, seed: int, step: int, size: int) -> LineBatch:
        """Return the lines of one step, a pure function of its arguments."""
        if self.train is None:
            return data.training_batch(seed, step, size)
        return data.directory_batch(self.train, seed, step, size)


def open_lines(
    directory: str | None, charset: str, invert: bool, held_out: int
) -> Lines:
    """Open the bundled lines, or a user's directory with every tenth line held out.

    Raises:
      ValueError: a fault in the directory, naming the file; or fewer than two lines.
    """
    if directory is None:
        lines = data.evaluation_lines(held_out)
        return Lines(None, lines, data.LINE_WIDTH, data.MAX_DIGITS, data.CHARSET, 0)
    whole = data.load_lines(directory, charset=charset, invert=invert)
    if len(whole.lines) < 2:
        raise ValueError(
            f"{directory}: expected at least 2 lines, got {len(whole.lines)}"
        )
    period = min(HELD_OUT_EVERY, len(whole.lines))
    kept = [i for i in range(len(whole.lines)) if i % period != period - 1]
    train = whole._replace(
        lines=tuple(whole.lines[i] for i in kept),
        names=tuple(whole.names[i] for i in kept),
    )
    away = whole.lines[period - 1 :: period][:held_out]
    fingerprint = _fingerprint(whole.lines)
    width, length = whole.width, whole.label_length
    return Lines(train, list(away), width, length, charset, fingerprint)


def _fingerprint(lines) -> int:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(struct.pack("<2q", line.image.shape[1], len(line.labels)))
        digest.update(np.ascontiguousarray(line.image, "<f4").tobytes())
        digest.update(np.ascontiguousarray(line.labels, "<i4").tobytes())
    return int.from_bytes(digest.digest()[:8], "little") >> 1 or 1


def optimizer_for(settings: Settings) -> Optimizer:
    """Return the recipe's AdamW: linear warm-up, half cosine down to 2 %."""
    warmup = min(MOST_WARMUP, settings.steps // 10)
    rate = warmup_cosine(settings.learning_rate, warmup, settings.steps, FINAL_RATE)
    return adamw_lerp(rate, weight_decay=WEIGHT_DECAY, arithmetic=settings.arithmetic)


def fresh_state(settings: Settings) -> TrainState:
    """Return the state before the first step."""
    params = crnn.init(settings.config, settings.seed)
    return init_state(params, optimizer_for(settings))


def to_extra(settings: Settings) -> dict[str, int]:
    """Return the settings as a checkpoint's extra integers."""
    config = settings.config
    extra = {
        "arithmetic.fast": int(settings.arithmetic == FAST),
        "batch": settings.batch,
        "data": settings.fingerprint,
        "learning_rate_bits": _bits(settings.learning_rate),
        "seed": settings.seed - (1 << 64 if settings.seed >> 63 else 0),
        "steps": settings.steps,
        "config.height": config.height,
        "config.hidden": config.hidden,
        "config.num_classes": config.num_classes,
        "config.num_layers": config.num_layers,
    }
    for n, (channels, pool) in enumerate(
        zip(config.channels, config.pools, strict=True)
    ):
        extra[f"config.conv{n}.channels"] = channels
        extra[f"config.conv{n}.pool_rows"] = pool[0]
        extra[f"config.conv{n}.pool_columns"] = pool[1]
    for n, character in enumerate(settings.charset):
        extra[f"charset.{n:05d}"] = ord(character)
    return extra


def from_extra(extra: Mapping[str, int]) -> Settings:
    """Return the settings that :func:`to_extra` stored.

    Raises:
      ValueError: an integer is missing or out of range.
    """
    try:
        blocks = sum(key.endswith(".channels") for key in extra)
        config = crnn.CrnnConfig(
            height=extra["config.height"],
            channels=tuple(extra[f"config.conv{n}.channels"] for n in range(blocks)),
            pools=tuple(
                (
                    extra[f"config.conv{n}.pool_rows"],
                    extra[f"config.conv{n}.pool_columns"],
                )
                for n in range(blocks)
            ),
            hidden=extra["config.hidden"],
            num_layers=extra["config.num_layers"],
            num_classes=extra["config.num_classes"],
        )
        keys = sorted(key for key in extra if key.startswith("charset."))
        return Settings(
            seed=extra["seed"] % (1 << 64),
            batch=extra["batch"],
            steps=extra["steps"],
            learning_rate=struct.unpack(
                "<d", struct.pack("<q", extra["learning_rate_bits"])
            )[0],
            config=config,
            charset="".join(chr(extra[key]) for key in keys),
            fingerprint=extra["data"],
            arithmetic=FAST if extra["arithmetic.fast"] else EXACT,
        )
    except KeyError as error:
        raise ValueError(
            f"checkpoint: extra: expected the key {error} of a training run, got none"
        ) from None
    except OverflowError as error:
        fail(ValueError, "checkpoint", "extra", "settings of a training run", error)


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def read_settings(path: str) -> Settings:
    """Return the settings of the run that wrote ``path``.

    Raises:
      ValueError: the file is no checkpoint of a training run.
      OSError: the file cannot be read.
    """
    try:
        return from_extra(read_manifest(path).extra)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def load_state(path: str, like: TrainState) -> TrainState:
    """Return the state in ``path``, which must fit ``like``.

    Raises:
      ValueError: the file is not a checkpoint of that structure, with its name.
    """
    try:
        return load(path, like)[0]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class Recognizer(NamedTuple):
    """A trained recognizer: config, charset, params."""

    config: crnn.CrnnConfig
    charset: str
    params: Params


def load_recognizer(path: str) -> Recognizer:
    """Return the recognizer of a training checkpoint or of a model container.

    Raises:
      ValueError: the file is neither, or holds another architecture.
      OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        magic = file.read(len(MODEL_MAGIC))
    if magic != MODEL_MAGIC:
        settings = read_settings(path)
        alone = TrainState(crnn.template(settings.config), OrderedDict(), None)
        return Recognizer(
            settings.config, settings.charset, load_state(path, alone).params
        )
    try:
        manifest = read_model_manifest(path)
        if manifest.architecture != ARCHITECTURE:
            fail(ValueError, "load", "architecture", ARCHITECTURE, manifest[0])
        config = from_container(manifest.config)
        model = load_model(path, crnn.template(config))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Recognizer(config, model.charset, model.params)


def to_container(config: crnn.CrnnConfig) -> dict[str, Any]:
    """Return the configuration as a container stores it."""
    fields = dataclasses.asdict(config)
    fields["channels"] = list(config.channels)
    fields["pools"] = [list(pool) for pool in config.pools]
    return fields


def from_container(fields: Mapping[str, Any]) -> crnn.CrnnConfig:
    """Return the configuration that :func:`to_container` stored.

    Raises:
      ValueError: a field is missing, unknown, or of another type.
    """
    try:
        known = dict(fields)
        channels = tuple(known.pop("channels"))
        pools = tuple((int(rows), int(columns)) for rows, columns in known.pop("pools"))
        return crnn.CrnnConfig(channels=channels, pools=pools, **known)
    except (KeyError, TypeError) as error:
        fail(ValueError, "load", "config", "the fields of a crnn", error)
