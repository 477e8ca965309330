"""Jobs and answers as Flower messages, to the bit; what cannot be read is no answer."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')

from flwr.app import Array, ConfigRecord
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from helpers.flower_nodes import JOBS
from helpers.toys import LAYOUT, bases, to_bytes, toy_simulator, toy_weights
from splitmix.attacks.pgd import PGD
from splitmix.core.admission import Rejected
from splitmix.core.client import parts_of
from splitmix.core.parts import cut
from splitmix.core.types import Part, Plan, Tally, Train, Update
from splitmix.core.width import Width
from splitmix.flower.wire import (
    from_text,
    pack_answer,
    pack_bases,
    pack_job,
    tensor_bytes,
    to_text,
    unpack_answer,
    unpack_bases,
    unpack_job,
)

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
widths = st.fractions(min_value=Width(1, 1000), max_value=1, max_denominator=10**9)


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=20)
def test_tensors_arrive_to_the_bit(values, count):
    parts = bases(*range(3, 3 + count))
    weights = {"a": torch.tensor([values] * count), "b.c": torch.arange(6.0).view(1, 2, 3).repeat(count, 1, 1)}
    weights["a"][-1] += 1
    back = unpack_bases(parts, pack_bases(parts, weights))
    assert to_bytes(back) == to_bytes(weights)
    assert {name: value.dtype for name, value in back.items()} == dict.fromkeys(weights, torch.float32)


@given(
    st.floats(allow_nan=False), st.integers(-(2**70), 2**70), widths, st.text('a"\\\n\0ü€😀', max_size=9), st.booleans()
)
@settings(max_examples=30)
def test_records_arrive_as_they_were(number, count, width, text, flag):
    plan = Plan(lr=number, epochs=count)
    job = Train(count, 7, (Part(0, width), Part(count, Width(1, 3), 5)), plan, count, local_norms=flag, run=text)
    assert from_text(to_text(job), (Train, Part, Plan)) == job


@pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)
def test_a_job_arrives_with_the_bases_that_it_names_and_no_other(job):
    weights = toy_weights()
    download = cut(toy_simulator().net, LAYOUT, weights, parts_of(job))
    content = pack_job(job, download, "settings")
    arrived, weights, said = unpack_job(content, attacks=(PGD,))
    assert (arrived, to_bytes(weights), said) == (job, to_bytes(download), "settings")
    assert set(content.array_records) == {f"base-{part.base}" for part in parts_of(job)}


def test_only_known_records_are_made_of_what_a_stranger_writes():
    text = to_text(JOBS[0])
    changes = {
        '"Train"': '"Popen"',
        '"round": 2': ('"round": "2"', '"round": true', '"round": 2, "more": 1'),
        '"round": 2, ': "",
        '"shift": 0': ('"shift": 0.5', '"shift": null'),
        '"1/4"': ('"1/0"', '"1e20000000"', '"1e-300000"'),
        '"run": "a run"': f'"run": "{"x" * (1 << 20)}"',
    }
    spoiled = [
        text.replace(was, now) for was, them in changes.items() for now in ([them] if type(them) is str else them)
    ]
    for bad in ("{}", "[]", "nonsense", "[" * 100_000, *spoiled):
        with pytest.raises(ValueError, match=r"\w"):
            from_text(bad, (Train, Part, Plan))
    with pytest.raises(ValueError, match="eps"):  # a record that refuses its settings
        from_text(to_text(PGD()).replace('"eps": 0.03', '"eps": -0.03'), [PGD])


def toy_update(job=JOBS[0]):
    weights = cut(toy_simulator().net, LAYOUT, toy_weights(), parts_of(job))
    return Update(job.round, job.client, job.parts, weights, 9, {"loss": 0.5}, run="a run")


def test_an_answer_arrives_to_the_bit_and_the_server_alone_weighs_it():
    sent = replace(toy_update(), weight=5)
    came = unpack_answer(JOBS[0], pack_answer(JOBS[0], sent), 1 << 20)
    assert to_bytes(came.weights) == to_bytes(sent.weights)
    assert replace(came, weights={}) == replace(sent, weights={}, weight=1)
    tally = Tally(3, (1, 2), 4)
    assert unpack_answer(JOBS[1], pack_answer(JOBS[1], tally), 0) == tally


def replace_base(make):
    def change(content):
        content["base-0"]["entries"] = make(content["base-0"]["entries"])

    return change


def reshaped(content):
    narrow = {name: value[:1, :1] for name, value in toy_update().weights.items()}
    content["base-0"] = pack_bases(bases(0), narrow)["base-0"]


def described(text, size=None):
    def change(content):
        raw = len(text).to_bytes(8, "little") + text
        content["about"]["entries"] = zlib.compress(raw)[:size]

    return change


def of_type(kind):
    numbers = sum(value[0].numel() for value in toy_update().weights.values())
    said = {"a": {"dtype": kind, "shape": [numbers * 4], "data_offsets": [0, numbers * 4]}}
    return described(json.dumps(said).encode())


def of_shape(*shape, kind="F32"):
    return described(json.dumps({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, 0]}}).encode())


SPOILED = {
    "nothing, in a shape beyond all bounds": of_shape(0, 2**62, 2**62),
    "nothing, in more axes than there are": of_shape(*[0] * 10**5),
    "numbers below nothing": of_shape(-1, -4),
    "half a number": of_shape(0.5),
    "a description within a description": described(b'{"a": ' * 10**5),
    "a description that goes on in the numbers": lambda c: c["about"].__setitem__(
        "entries", zlib.compress((1 << 20).to_bytes(8, "little") + b"{}")
    ),
    "a base that was not asked for": lambda c: c.__setitem__("base-3", c["base-2"]),
    "a base too few": lambda c: c.__delitem__("base-2"),
    "half a base": replace_base(lambda array: Array(array.dtype, array.shape, array.stype, array.data[:50])),
    "an array of another kind": replace_base(lambda array: Array(np.zeros(3, np.float32))),
    "another shape": reshaped,
    "no description": lambda c: c["about"].__delitem__("entries"),
    "half a description": described(b"{}" * 99, 20),
    "a description of nothing": described(b"{}"),
    "a description that is no JSON": described(b"{nonsense"),
    "a description that grows beyond all bounds": described(b" " * (1 << 24)),
    "a description that is not packed": lambda c: c["about"].__setitem__("entries", b"{}"),
    "numbers of a type that nobody has": of_type("F8_E8M0"),
    "no text": lambda c: c.__delitem__("about"),
    "text of another kind": lambda c: c.__setitem__("about", ConfigRecord({"answer": 7})),
    "a tally that lies": lambda c: c.__setitem__("about", ConfigRecord({"answer": to_text(Tally(1, (), 1))})),
}


@pytest.mark.slow
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_what_cannot_be_read_is_told_apart_from_an_answer(spoil):
    content = pack_answer(JOBS[0], toy_update())
    spoil(content)
    found = unpack_answer(JOBS[0], content, 1 << 20)
    assert isinstance(found, Rejected)
    assert (found.client, found.kind) == (JOBS[0].client, "kind")
    assert found.reason


def test_an_answer_that_is_too_large_is_not_even_read():
    content = pack_answer(JOBS[0], toy_update())
    assert "larger" in unpack_answer(JOBS[0], content, tensor_bytes(content) - 1).reason
    assert isinstance(unpack_answer(JOBS[0], content, tensor_bytes(content)), Update)


def test_framing_adds_little_to_the_bytes_of_the_parts():
    parts = bases(0, 1)
    weights = {f"layer{i}.weight": torch.rand(2, 100, 100) for i in range(8)}
    message = pack_bases(parts, weights)
    sent = sum(len(found.deflate()) for found in get_all_nested_objects(message).values())
    assert 1 < sent / sum(value.nbytes for value in weights.values()) < 1.01
