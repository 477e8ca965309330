"""What a device meets: bundles that are damaged, incomplete or hostile are one sentence each."""

import hashlib
import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load, save

from helpers.bundles import images as pictures
from helpers.bundles import random_bundle, random_weights
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.runtime.bundle import Bundle
from splitmix.runtime.manifest import digest


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A bundle of eight small bases."""
    return random_bundle(tmp_path_factory.mktemp("bundles") / "whole", atom="1/16", grid=True)


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole.path, tmp_path / "copy")


def reseal(folder, change):
    """Change the manifest as someone would who knows how its hash is made."""
    said = json.loads((folder / "manifest.json").read_text())
    change(said)
    (folder / "manifest.json").write_text(json.dumps({**said, "sha256": digest(said)}))


def replace_base(folder, number, data):
    """Put other bytes in the place of a base, as someone would who knows where its hash is."""
    (folder / f"base-{number}.safetensors").write_bytes(data)

    def change(said):
        said["bases"][number] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    reseal(folder, change)


def refusal(folder):
    with pytest.raises(UserError) as caught:
        Model.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bundle_is_read_as_it_was_written(whole):
    assert Bundle.open(whole.path).manifest == whole.manifest
    weights = random_weights(atom="1/16")
    read = Bundle.open(whole.path).read([0, 2])
    for name, value in read.items():
        assert torch.equal(value, weights[name][[7, 5]])  # the bundle's order is the reverse


def test_a_missing_base_is_named(copy):
    (copy / "base-5.safetensors").unlink()
    said = refusal(copy)
    assert "base-5.safetensors' is missing, though base-6.safetensors is there" in said


@pytest.mark.parametrize("count", [1, 4, 7])
def test_any_first_bases_will_do(copy, count):
    for base in range(count, 8):
        (copy / f"base-{base}.safetensors").unlink()
    assert Model.load(copy).widths[-1] == Width(count, 16)


def swap(folder):
    one, two = (folder / f"base-{i}.safetensors" for i in (1, 2))
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)


def to_link(folder):
    file = folder / "base-1.safetensors"
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")


def to_pipe(folder):
    (folder / "base-1.safetensors").unlink()
    os.mkfifo(folder / "base-1.safetensors")


def to_folder(folder):
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()


def grow(folder):
    with (folder / "base-1.safetensors").open("ab") as file:
        file.truncate(10 << 30)  # takes no room on the disk


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: os.truncate(f / "base-1.safetensors", 1000), "has 1,000 bytes, but the manifest says"),
        (lambda f: os.truncate(f / "base-1.safetensors", 0), "has 0 bytes"),
        (grow, "has 10,737,418,240 bytes, more than the"),
        (swap, "base-1.safetensors' is damaged or of another bundle"),
        (to_link, "base-1.safetensors' cannot be read (it is a link)"),
        (to_pipe, "is not a plain file"),
        (to_folder, "is not a plain file"),
        (lambda f: (f / "manifest.json").unlink(), "is no bundle: it has no manifest.json"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe"), "cannot be read ('utf-8' codec"),
        (lambda f: (f / "manifest.json").write_bytes(b""), "cannot be read"),
        (lambda f: (f / "manifest.json").write_bytes(b"[]"), "is not a bundle's manifest"),
        (lambda f: (f / "manifest.json").write_bytes(b'{"a": 1, "a": 2}'), "a key is given twice"),
        (lambda f: (f / "manifest.json").write_bytes(b'{"a": NaN}'), "NaN is no number"),
        (lambda f: (f / "manifest.json").write_bytes(b"[" * 200_000), "is nested too deeply"),
        (lambda f: (f / "manifest.json").write_bytes(b" " * (5 << 20)), "more than the 4,194,304 it may have"),
        (lambda f: (f / "manifest.json").write_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "cannot be read"),
    ],
)
def test_a_damaged_file_is_one_sentence(copy, damage, words):
    damage(copy)
    assert words in refusal(copy)


def test_a_changed_manifest_is_noticed(copy):
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"tracked"', '"global"', 1))
    assert "does not match its own hash" in refusal(copy)
    (copy / "manifest.json").write_text(text.replace("\n", " "))  # spaces mean nothing
    assert Model.load(copy).widths


def put(**changes):
    return lambda said: said.update(changes)


def put_net(**changes):
    return lambda said: said["net"].update(changes)


def put_base(**changes):
    return lambda said: said["bases"][0].update(changes)


def row(**changes):
    return lambda said: said["table"]["rows"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(schema=2), "has schema 2, but this version of splitmix reads 1"),
        (put(schema="1"), "schema: input should be a valid integer"),
        (put(schema=True), "schema: input should be a valid integer"),
        (put_net(name="os:system"), "its net 'os:system' is none of digit, preresnet18, alexnet"),
        (put_net(name="lame:build"), "nets of one's own are not bundled"),
        (put_net(name="preresnet18"), "do not fit the net preresnet18"),
        (put_net(name="\x1b[31mdigit"), "net.name"),
        (put_net(classes=10**9), "net.classes: input should be less than or equal to 10000"),
        (put_net(classes=10_000), "a size that a base of digit cannot have"),
        (put_net(classes=9), "it must name 9 classes"),
        (put_net(dual=False), "its net has no robustness dial"),
        (put_net(dual=1), "net.dual"),
        (put(atom="1"), "it has 8 bases of width 1, more than make up width 1"),
        (put(atom="1/8"), "a size that a base of digit cannot have"),
        (put(atom="1/0"), "atom"),
        (put(atom="2/16"), "its atom 2/16 is not one over a whole number"),
        (put(atom="1/900"), "its atom 1/900 is not one over"),
        (put(atom="1/4"), "it has 8 bases of width 1/4, more than make up width 1"),
        (put(image=[28, 28, 10**12]), "image.2"),
        (put(image=[28, 28, 1]), "do not fit the net digit"),
        (put(image=[28, 28]), "image"),
        (put(classes=["0"] * 10), "it must name 10 classes, each once"),
        (put(classes=["0"]), "it must name 10 classes"),
        (put(storage="pickle"), "storage"),
        (put(storage="float16"), "a size that a base of digit cannot have"),
        (put(norm="batch"), "norm"),
        (put(files=["../../../etc/passwd"]), "files: extra inputs are not permitted"),
        (put_base(name="../../../etc/passwd"), "bases.0.name: extra inputs are not permitted"),
        (put_base(bytes=1 << 40), "bases.0.bytes"),
        (put_base(bytes=-1), "bases.0.bytes"),
        (put_base(bytes=1.5), "bases.0.bytes"),
        (put_base(sha256="x" * 64), "bases.0.sha256"),
        (put_base(trained_as=0), "it names a base twice"),
        (put(bases=[]), "bases: list should have at least 1 item"),
        (put(costs=[]), "its costs are not those of its widths"),
        (row(clean=2), "rows.0.clean"),
        (row(clean=0.1), "an accuracy outside its own interval"),
        (row(width="1"), "rows of widths that it has not"),
        (row(robust=0.2), "has a row twice"),
        (put(table=None), "table"),
        (put(trained={"a": {"b": 1}}), "trained.a"),
        (put(trained=[]), "trained"),
    ],
)
def test_a_hostile_manifest_is_one_sentence(copy, change, words):
    loaded = set(sys.modules)
    reseal(copy, change)
    assert words in refusal(copy)
    assert not {"lame", "antigravity"} & (set(sys.modules) - loaded)


def with_header(data, change):
    """The bytes of a safetensors file with another header."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h["fc1.bias"].update(shape=[10**12]), "'fc1.bias' is not F32 of shape (128,)"),
        (lambda h: h["fc1.bias"].update(shape=[True]), "'fc1.bias' is not F32"),
        (lambda h: h["fc1.bias"].update(dtype="F64"), "'fc1.bias' is not F32"),
        (lambda h: h["fc1.bias"].update(dtype="I32"), "'fc1.bias' is not F32"),
        (lambda h: h["fc1.bias"].update(data_offsets=[0, 10**15]), "'fc1.bias' is not F32"),
        (lambda h: h["fc1.bias"].update(data_offsets=[-512, 0]), "cannot be read"),
        (lambda h: h["fc1.bias"].update(data_offsets=h["fc2.bias"]["data_offsets"]), "'fc1.bias' is not F32"),
        (lambda h: h["fc1.bias"].update(data_offsets=None), "'fc1.bias' is not F32"),
        (lambda h: h["fc1.bias"].update(more=1), "'fc1.bias' is not F32"),
        (lambda h: h.update({"fc1.bias": []}), "'fc1.bias' is not F32"),
        (lambda h: h.update({"../../x\n": h.pop("fc1.bias")}), "its entries differ in '../../x?'"),
        (lambda h: h.update(__metadata__={"a": 1}), "has metadata that is not text"),
    ],
)
def test_a_hostile_base_is_one_sentence(copy, change, words):
    replace_base(copy, 1, with_header((copy / "base-1.safetensors").read_bytes(), change))
    assert words in refusal(copy)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("fc1.weight", float("nan")), ("conv1.bias", float("inf")), ("norm1.noisy.running_var", -1.0)],
)
def test_numbers_that_would_give_nan_are_one_sentence(copy, entry, value):
    tensors = load((copy / "base-1.safetensors").read_bytes())
    tensors[entry].flatten()[0] = value
    replace_base(copy, 1, save(tensors))
    assert f"has NaN, infinite or impossible numbers in '{entry}'" in refusal(copy)


def test_numbers_that_overflow_are_one_sentence(copy):
    tensors = load((copy / "base-0.safetensors").read_bytes())
    replace_base(copy, 0, save({n: v * 1e30 if n.startswith("fc") else v for n, v in tensors.items()}))
    with pytest.raises(UserError, match="overflow on these images"):
        Model.load(copy)(pictures(2))


def test_a_base_of_another_bundle_is_noticed(copy, tmp_path):
    other = random_bundle(tmp_path / "other", atom="1/16", seed=9)
    shutil.copy(other.path / "base-3.safetensors", copy)
    assert "base-3.safetensors' is damaged or of another bundle" in refusal(copy)


@pytest.mark.parametrize("path", ["nowhere", "base-0.safetensors", "a\0b", ""])
def test_what_is_no_bundle_is_one_sentence(copy, path, monkeypatch):
    monkeypatch.chdir(copy)
    with pytest.raises(UserError, match="bundle"):
        Model.load(copy / path if path and "\0" not in path else path or copy.parent)
