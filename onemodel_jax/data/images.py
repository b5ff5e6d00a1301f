"""Reading one line image: 8-bit grey PNG or a uint8 array, 32 pixels high.

Nothing is scaled, converted or guessed: what does not fit is an error.
"""

from io import BytesIO
from pathlib import Path
from tokenize import TokenError

import numpy as np

from onemodel_jax._checks import describe, fail
from onemodel_jax.data.batch import LINE_HEIGHT

SUFFIXES = (".png", ".npy")
# NumPy reads the header as Python source, so the tokenizer's error gets through.
_NPY_ERRORS = (OSError, ValueError, EOFError, MemoryError, SyntaxError, TokenError)
_GREY_8 = b"IHDR\x08\x00"


def read_image(path: Path, invert: bool = False) -> np.ndarray:
    """Return an image as ink: pixel / 255, one binary32 division.

    Args:
      path: a ``.png`` (8 bits, grey, no alpha) or ``.npy`` (uint8, two axes) file.
      invert: True for dark ink on a light ground: (255 - pixel) / 255.

    Returns:
      (32, width) float32 in [0, 1].

    Raises:
      ValueError: the file is not such an image; the text names it.
      ImportError: a PNG and no Pillow; the text names the extra to install.
    """
    pixels = _read_png(path) if path.suffix.lower() == ".png" else _read_npy(path)
    if pixels.ndim != 2 or pixels.dtype != np.uint8:
        fail(ValueError, "read_image", str(path), "uint8[32,width]", describe(pixels))
    height, width = pixels.shape
    if height != LINE_HEIGHT or width == 0:
        expected = f"height {LINE_HEIGHT} and width 1 or more"
        fail(ValueError, "read_image", str(path), expected, describe(pixels))
    ink = np.uint8(255) - pixels if invert else pixels
    return ink.astype(np.float32) / np.float32(255)


def _read_png(path: Path) -> np.ndarray:
    try:
        # Optional, the extra `demo`, hence here.
        from PIL import Image  # pyright: ignore[reportMissingImports]
    except ImportError:
        expected = 'Pillow for PNG images: pip install "onemodel-jax[demo]"'
        fail(ImportError, "read_image", str(path), expected, "no Pillow")
    data = path.read_bytes()
    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as image:
            image.load()
            mode, transparent = image.mode, "transparency" in image.info
            pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        fail(ValueError, "read_image", str(path), "a readable PNG", repr(error))
    # Pillow widens 2 and 4 bits silently, so depth and colour type come from IHDR.
    if data[12:16] + data[24:26] != _GREY_8 or transparent:
        got = f"mode {mode}, bit depth {data[24]}" + ", transparency" * transparent
        fail(ValueError, "read_image", str(path), "8-bit grey without alpha", got)
    return pixels


def _read_npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            pixels = np.lib.format.read_array(file, allow_pickle=False)
            rest = file.read(1)
    except _NPY_ERRORS as error:
        fail(ValueError, "read_image", str(path), "a readable .npy", repr(error))
    if rest:
        fail(ValueError, "read_image", str(path), "one array", "bytes after it")
    return pixels
