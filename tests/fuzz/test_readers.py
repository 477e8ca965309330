"""Every reader answers to every mutant: it reads it, or refuses it in a sentence, and does nothing else."""

import os
from mmap import mmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.__main__ import Limits, failures
from fuzz.guard import guarded
from fuzz.readers import READERS, Reader


@pytest.fixture(scope="module", params=READERS)
def reader(request, tmp_path_factory):
    if request.param in ("registration", "flower answer"):
        pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')
    return READERS[request.param](tmp_path_factory.mktemp("fuzz"))


def test_what_is_as_it_should_be_is_read(reader):
    assert all(reader.accepts(seed) for seed in reader.seeds)


@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning")  # of Starlette
@settings(max_examples=20)
@given(number=st.integers(0, 2**32))
def test_a_mutant_is_read_or_refused_and_nothing_else_is_done(reader, number):
    with guarded() as done:
        reader.accepts(reader.mutant(number))
    assert done == []


def hang(data):
    while True:
        pass


BAD = {
    "a traceback": (lambda data: {}[data], "KeyError"),
    "an import": (lambda data: __import__("this"), "import"),
    "a program": (lambda data: os.system("true"), "os.system"),
    "a hang": (hang, "hangs"),
    "memory": (lambda data: mmap(-1, 40 << 20).write(b"1" * (40 << 20)), "MB"),  # new pages, whatever lies free
    "a crash": (lambda data: os._exit(11), "died"),
    "a long sentence": (lambda data: (_ for _ in ()).throw(ValueError("x" * 2000)), "characters"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
def test_the_long_run_notices(what, capsys):
    read, words = BAD[what]
    bad = Reader((b"seed",), read, refuses=(ValueError,))
    limits = Limits(wall=2) if what == "a hang" else Limits(memory=20 << 20)  # a busy machine makes all others late
    found = failures({"bad": lambda folder: bad}, 1, limits=limits, workers=1)
    assert len(found) == 1
    assert words in found[0]
