"""Rows of pixels in JSON, read straight into an array: a list for every pixel would take longer than the model."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache, reduce

import numpy as np

from splitmix.runtime.images import Pixels

KEY = re.compile(rb'"pixels"\s*:\s*(?=\[)')
SMALLEST = np.array([256, 0, 10, 100], np.int16)  # of a number of so many digits


def lift_pixels(body: bytes, shape: Sequence[int]) -> tuple[bytes, Pixels | None]:
    """A question in JSON without its pixels, and these, if they are of this shape and written as programs write them.

    Everything else is left where it is, for a reader that knows all of JSON and says what is wrong.

    >>> lift_pixels(b'{"pixels": [[[7], [250]]], "width": "1/2"}', (1, 2, 1))
    (b'{"pixels": null, "width": "1/2"}', array([[[  7],
            [250]]], dtype=uint8))
    """
    found, end = KEY.search(body), body.rfind(b"]") + 1
    if found is None or body.count(b'"pixels"') > 1:
        return body, None
    pixels = _array(body[found.end() : end], tuple(shape))
    return (body, None) if pixels is None else (body[: found.end()] + b"null" + body[end:], pixels)


def _array(text: bytes, shape: tuple[int, ...]) -> Pixels | None:
    """Nested lists of numbers from 0 to 255, with a comma, or a comma and a space, between them."""
    if text.translate(None, b"0123456789 ") != _skeleton(shape):
        return None
    letters = np.frombuffer(text, np.uint8)
    digits = letters - np.uint8(ord("0"))  # what is none wraps around to a large number
    inside = digits < 10
    edges = np.flatnonzero(inside[1:] != inside[:-1])  # the text begins and ends with brackets
    ends, lengths = edges[1::2], edges[1::2] - edges[::2]
    spaces = np.flatnonzero(letters == ord(" "))
    if len(ends) != math.prod(shape) or lengths.max() > 3 or (letters[spaces - 1] != ord(",")).any():
        return None
    values = digits[ends].astype(np.int16)
    values += np.int16(10) * (digits[ends - 1] * (lengths > 1))
    values += np.int16(100) * (digits[ends - 2] * (lengths > 2))
    if values.max() > 255 or (values < SMALLEST[lengths]).any():  # 007 is no number in JSON
        return None
    return values.astype(np.uint8).reshape(shape)


@lru_cache(8)
def _skeleton(shape: tuple[int, ...]) -> bytes:
    """Nested lists of this shape without their numbers."""
    return reduce(lambda inner, count: b"[" + b",".join([inner] * count) + b"]", reversed(shape), b"")
