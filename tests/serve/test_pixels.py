"""Pixels that are lifted out of a question are those that a reader of JSON finds there."""

import json
import random

import numpy as np
import pytest
from pydantic_core import from_json

from splitmix.runtime.images import picture_from_pixels
from splitmix.serve.pixels import lift_pixels

SHAPE = (2, 3, 3)
PICTURE = np.array([0, 9, 10, 99, 100, 255, *range(12)], np.uint8).reshape(SHAPE)
LISTS = json.dumps(PICTURE.tolist())


@pytest.mark.parametrize("separators", [None, (",", ":")], ids=["spaces", "none"])
def test_what_programs_write_is_lifted_and_the_rest_stays(separators):
    body = json.dumps({"width": "1/2", "pixels": PICTURE.tolist(), "label": 3}, separators=separators).encode()
    rest, lifted = lift_pixels(body, SHAPE)
    assert np.array_equal(lifted, PICTURE)
    assert json.loads(rest) == {"width": "1/2", "pixels": None, "label": 3}


UNUSUAL = {
    "256": LISTS.replace("255", "256"),
    "four digits": LISTS.replace("255", "1000"),
    "a sign": LISTS.replace("255", "-25"),
    "a fraction": LISTS.replace("255", "2.5"),
    "an exponent": LISTS.replace("255", "2e1"),
    "a leading zero": LISTS.replace("10,", "010,"),
    "two numbers": LISTS.replace("10,", "1 0,"),
    "a space before a comma": LISTS.replace("10,", "10 ,"),
    "no number": LISTS.replace("255", ""),
    "a missing pixel": LISTS.replace(", 255", ""),
    "a missing row": json.dumps(PICTURE[:1].tolist()),
    "truth": LISTS.replace("255", "true"),
    "one of three channels": json.dumps(PICTURE[:, :, 0].tolist()),
    "another after it": f'{LISTS}, "pixels": {LISTS}',
    "a list after it": f'{LISTS}, "width": [1]',
    "no end": LISTS[:-1],
    "nothing": "",
}


@pytest.mark.parametrize("lists", UNUSUAL.values(), ids=UNUSUAL)
def test_everything_else_is_left_to_a_reader_that_says_what_is_wrong(lists):
    body = f'{{"pixels": {lists}}}'.encode()
    assert lift_pixels(body, SHAPE) == (body, None)


def test_whatever_is_lifted_is_what_a_reader_of_json_finds():
    rng, lifts = random.Random(0), 0
    for _ in range(3000):
        body = bytearray(f'{{"pixels": {LISTS}, "label": "]"}}'.replace('"]"', rng.choice(['"]"', "7"])).encode())
        for _ in range(rng.randrange(3)):
            body[rng.randrange(len(body))] = rng.choice(b'0123456789[],: "{}x')
        rest, lifted = lift_pixels(bytes(body), SHAPE)
        try:
            without = from_json(rest)
        except ValueError:
            without = None
        if lifted is not None and isinstance(without, dict) and without.get("pixels", 0) is None:
            lifts += 1
            found = from_json(bytes(body))
            assert np.array_equal(picture_from_pixels(found.pop("pixels"), SHAPE), lifted)
            assert found == {key: value for key, value in without.items() if key != "pixels"}
    assert lifts > 500
