"""One number laid out: sign, exponent, fraction, value, neighbours and spacing."""

import math
from fractions import Fraction

import numpy as np

from onemodel_jax._checks import check_option, fail, number
from onemodel_jax._checks import describe as describe_type
from onemodel_jax.numerics.floats import FORMATS, Format


def _encode(value: float, form: Format) -> int:
    """Return the bits of ``value`` (a binary64) rounded to ``form``, nearest even."""
    sign = 1 << (form.width - 1) if math.copysign(1, value) < 0 else 0
    if value != value:
        return sign | form.infinity | 1 << (form.fraction - 1)
    if math.isinf(value):
        return sign | form.infinity
    exponent = max(math.frexp(value)[1] - 1, 1 - form.bias) if value else 1 - form.bias
    quantum = Fraction(2) ** (exponent - form.fraction)
    # Multiples of the quantum number the patterns; Fraction rounds half to even.
    count = round(Fraction(abs(value)) / quantum)
    count += (exponent + form.bias - 1) << form.fraction
    return sign | min(count, form.infinity)


def _decode(bits: int, form: Format) -> float:
    """Return the value of ``bits``; every format here fits binary64."""
    magnitude = bits & ((1 << (form.width - 1)) - 1)
    sign = -1.0 if bits >> (form.width - 1) else 1.0
    if magnitude > form.infinity:
        return math.nan
    if magnitude == form.infinity:
        return sign * math.inf
    field, fraction = magnitude >> form.fraction, magnitude % (1 << form.fraction)
    significand = fraction + ((field > 0) << form.fraction)
    exponent = max(field, 1) - form.bias - form.fraction
    return sign * math.ldexp(significand, exponent)


def _bits(x: object, form: str | None) -> tuple[int, Format]:
    """Return the bits and the format of a scalar, rounding to ``form`` if asked."""
    if form is not None:
        check_option("describe", "format", form, tuple(FORMATS))
    own = str(getattr(x, "dtype", "float64" if type(x) in (int, float) else None))
    expected = "a scalar of float64, float32, float16 or bfloat16"
    if own not in FORMATS or np.shape(x) != ():  # type: ignore[arg-type]
        fail(TypeError, "describe", "x", expected, describe_type(x))
    if type(x) is int:
        x = number("describe", "x", x, expected)
    if form is None or form == own:
        source = FORMATS[own]
        value = np.float64(x) if own == "float64" else np.asarray(x)  # type: ignore
        return int.from_bytes(value.tobytes(), "little"), source
    return _encode(float(x), FORMATS[form]), FORMATS[form]  # type: ignore[arg-type]


def _kind(magnitude: int, form: Format) -> str:
    if magnitude >= form.infinity:
        return "NaN" if magnitude > form.infinity else "infinity"
    if magnitude == 0:
        return "zero"
    return "normal" if magnitude >> form.fraction else "subnormal"


def describe(x: object, format: str | None = None) -> str:
    """Return a few lines about one floating-point number, exact to the bit.

    Sign, exponent and fraction as bits, the value, its two neighbours and the distance
    to the next larger magnitude.

    Args:
      x: a scalar of float64, float32, float16 or bfloat16; a Python number is float64.
      format: round x to this format first ("float64", "float32", "float16" or
        "bfloat16"; nearest even). Default: x's own.

    Raises:
      TypeError: x is not such a scalar.
      ValueError: format is none of the four.

    Example:
      >>> print(describe(-6.25, "float16"))
      float16 0xc640 = -6.25 (normal)
      sign      1
      exponent  10001  (17 - 15 = 2)
      fraction  1001000000
      neighbours  -6.25390625  -6.24609375
      spacing  0.00390625
    """
    bits, form = _bits(x, format)
    text = f"{bits:0{form.width}b}"
    sign, exponent, fraction = text[0], text[1 : 1 + form.exponent], text
    fraction = text[1 + form.exponent :]
    magnitude = bits & ((1 << (form.width - 1)) - 1)
    kind = _kind(magnitude, form)
    field = int(exponent, 2)
    digits = form.width // 4
    lines = [
        f"{form.name} 0x{bits:0{digits}x} = {_decode(bits, form)!r} ({kind})",
        f"sign      {sign}",
        f"exponent  {exponent}  ({max(field, 1)} - {form.bias} = "
        f"{max(field, 1) - form.bias})",
        f"fraction  {fraction}",
    ]
    if magnitude >= form.infinity:
        lines[2] = f"exponent  {exponent}"
        return "\n".join(lines)
    lines.append("neighbours  " + "  ".join(_neighbours(bits, form)))
    lines.append(f"spacing  {_spacing(magnitude, form)!r}")
    return "\n".join(lines)


def _neighbours(bits: int, form: Format) -> list[str]:
    """Return the next lower and the next higher value, as text."""
    top = 1 << (form.width - 1)
    key = (top - bits if bits >= top else bits) if bits != top else 0
    near = [key - 1, key + 1]
    return [repr(_decode(k if k >= 0 else top - k, form)) for k in near]


def _spacing(magnitude: int, form: Format) -> float:
    """Return the distance to the next larger magnitude (of the last binade)."""
    exponent = max(magnitude >> form.fraction, 1) - form.bias
    return math.ldexp(1.0, exponent - form.fraction)
