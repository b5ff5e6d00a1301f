"""The one error that reading a checkpoint or a model container can raise."""

from typing import Literal

Kind = Literal["BadHeader", "BadManifest", "BadTensor", "Mismatch"]


class CheckpointError(ValueError):
    """A file that is not a well-formed checkpoint, or not one of the target.

    Attributes:
      kind: ``BadHeader``, ``BadManifest``, ``BadTensor`` or ``Mismatch``, the stage
        of reading that refused the input (SPEC, "Checkpoint reading").
    """

    kind: Kind

    def __init__(self, kind: Kind, message: str):
        super().__init__(kind, message)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.args[1]}"
