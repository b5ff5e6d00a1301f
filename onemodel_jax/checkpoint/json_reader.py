"""A strict JSON reader driven by the caller's schema.

It knows objects, arrays, strings, integers and booleans, and nothing else: no
fraction, exponent, null or nesting that the schema does not ask for.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from onemodel_jax.checkpoint.errors import CheckpointError

T = TypeVar("T")

_SPACE = re.compile(r"[ \t\n\r]*")
# Twenty digits hold every 64-bit integer. A longer number, a fraction or an exponent
# fails at its next character, which is no comma and no bracket.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_DECODER = json.JSONDecoder()


class Reader:
    """A position in the text of a manifest; every failure is a BadManifest."""

    def __init__(self, data: bytes | memoryview):
        self._position = 0
        try:
            self._text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"not UTF-8 ({error.reason})")

    def fail(self, message: str) -> NoReturn:
        """Raise the BadManifest error, with the position reached."""
        where = f"manifest, character {self._position}: {message}"
        raise CheckpointError("BadManifest", where)

    def document(self, fields: Mapping, optional: tuple[str, ...] = ()) -> dict:
        """Read one object that is the whole text."""
        value = self.object(fields, optional)
        if self.peek():
            self.fail("text after the manifest's object")
        return value

    def object(self, fields: Mapping, optional: tuple[str, ...] = ()) -> dict:
        """Read an object with exactly ``fields`` (name to reader), in any order."""

        def value(name: str):
            if name not in fields:
                self.fail(f"unknown field {name[:80]!r}")
            return fields[name]()

        found = self.mapping(value)
        missing = [n for n in fields if n not in found and n not in optional]
        if missing:
            self.fail(f"missing field {missing[0]!r}")
        return found

    def mapping(self, value: Callable[[str], T]) -> dict[str, T]:
        """Read an object; ``value`` reads the value of the name it is given."""
        found: dict[str, T] = {}

        def item():
            name = self.string()
            if name in found:
                self.fail(f"field {name[:80]!r} occurs twice")
            self._take(":")
            found[name] = value(name)

        self._items("{", "}", item)
        return found

    def array(self, item: Callable[[], T], limit: int | None = None) -> list[T]:
        """Read an array of at most ``limit`` items."""
        values: list[T] = []

        def append():
            if limit is not None and len(values) == limit:
                self.fail(f"more than {limit} items")
            values.append(item())

        self._items("[", "]", append)
        return values

    def string(self) -> str:
        """Read a string; a lone surrogate is refused."""
        if self.peek() != '"':
            self.fail("expected a string")
        try:
            value, end = _DECODER.raw_decode(self._text, self._position)
            value.encode("utf-8")
        except UnicodeEncodeError:
            self.fail("lone surrogate in a string")
        except json.JSONDecodeError as error:
            self.fail(error.msg)
        self._position = end
        return value

    def constant(self, expected: str) -> str:
        """Read the string ``expected``."""
        value = self.string()
        return value if value == expected else self.fail(f"expected {expected!r}")

    def boolean(self) -> bool:
        """Read ``true`` or ``false``."""
        word = "true" if self.peek() == "t" else "false"
        if not self._text.startswith(word, self._position):
            self.fail("expected true or false")
        self._position += len(word)
        return word == "true"

    def integer(self, low: int, high: int) -> int:
        """Read an integer in low..high, written without fraction and exponent."""
        self.peek()
        match = _INTEGER.match(self._text, self._position)
        if not match:
            self.fail("expected an integer of 64 bits")
        value = int(match[0])
        if not low <= value <= high:
            self.fail(f"integer outside {low}..{high}")
        self._position = match.end()
        return value

    def peek(self) -> str:
        """Return the next character that is not white space, or an empty string."""
        match = _SPACE.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return self._text[self._position : self._position + 1]

    def _take(self, character: str) -> None:
        if self.peek() != character:
            self.fail(f"expected {character!r}")
        self._position += 1

    def _items(self, opening: str, closing: str, item: Callable[[], Any]) -> None:
        self._take(opening)
        if self.peek() != closing:
            item()
            while self.peek() == ",":
                self._take(",")
                item()
        self._take(closing)
