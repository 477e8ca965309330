"""What a device meets: bundles that are damaged, incomplete or hostile are one sentence each."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from safetensors.torch import load, save

from helpers.bundles import images as pictures
from helpers.bundles import random_weights, replace_base, sealed, with_header
from splitmix import Model
from splitmix.core.errors import UserError
from splitmix.runtime.bundle import Bundle
from splitmix.runtime.manifest import from_bytes


@pytest.fixture
def copy(bundle, tmp_path):
    """A bundle of four small bases, to be damaged."""
    return shutil.copytree(bundle.path, tmp_path / "copy")


def refusal(read, *given):
    with pytest.raises(UserError) as caught:
        read(*given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bundle_is_read_as_it_was_written(bundle):
    assert Bundle.open(bundle.path).manifest == bundle.manifest
    weights = random_weights(atom="1/16", bases=4)
    for name, value in Bundle.open(bundle.path).read_base(1).items():
        assert np.array_equal(value, weights[name][2])  # the bundle's order is the reverse


def swap(folder):
    (folder / "base-1.safetensors").rename(folder / "first")
    (folder / "base-2.safetensors").rename(folder / "base-1.safetensors")
    (folder / "first").rename(folder / "base-2.safetensors")


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


def write(data):
    return lambda folder: (folder / "manifest.json").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: os.truncate(f / "base-1.safetensors", 1000), "has 1,000 bytes, but the manifest says"),
        (lambda f: os.truncate(f / "base-1.safetensors", 0), "has 0 bytes"),
        (
            lambda f: (f / "base-1.safetensors").unlink(),
            "base-1.safetensors' is missing, though base-2.safetensors is there",
        ),
        (grow, "has 10,737,418,240 bytes, more than the"),
        (swap, "base-1.safetensors' is damaged or of another bundle"),
        (to_link, "base-1.safetensors' cannot be read (it is a link)"),
        (to_pipe, "is not a plain file"),
        (to_folder, "is not a plain file"),
        (lambda f: (f / "manifest.json").unlink(), "is no bundle: it has no manifest.json"),
        (write(b"\xff\xfe"), "cannot be read ('utf-8' codec"),
        (write(b""), "cannot be read"),
        (write(b"[]"), "is not a bundle's manifest"),
        (write(b'{"a": 1, "a": 2}'), "a key is given twice"),
        (write(b'{"a": NaN}'), "NaN is no number"),
        (write(b"[" * 200_000), "is nested too deeply"),
        (write(b" " * (5 << 20)), "more than the 4,194,304 it may have"),
        (write(b'{"a": ' + b"9" * 5000 + b"}"), "cannot be read"),
    ],
)
def test_a_damaged_file_is_one_sentence(copy, damage, words):
    damage(copy)
    assert words in refusal(Model.load, copy)


def test_a_changed_manifest_is_noticed(copy):
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"tracked"', '"global"', 1))
    assert "does not match its own hash" in refusal(Model.load, copy)
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
        (put(schema=3), "has schema 3, but this version of splitmix reads up to 2"),
        (put(schema=2), "only one of 2 has a graph"),
        (put(schema="1"), "schema: input should be a valid integer"),
        (put(schema=True), "schema: input should be a valid integer"),
        (put_net(name="os:system"), "its net 'os:system' is none of digit, preresnet18, alexnet"),
        (put_net(name="lame:build"), "nothing is imported because a bundle says so"),
        (put_net(name="preresnet18"), "do not fit the net preresnet18"),
        (put_net(name="\x1b[31mdigit"), "net.name"),
        (put_net(classes=10**9), "net.classes: input should be less than or equal to 10000"),
        (put_net(classes=10_000), "a size that a base of digit cannot have"),
        (put_net(classes=9), "it must name 9 classes"),
        (put_net(dual=False), "its net has no robustness dial"),
        (put_net(dual=1), "net.dual"),
        (put(atom="1"), "it has 4 bases of width 1, more than make up width 1"),
        (put(atom="1/8"), "a size that a base of digit cannot have"),
        (put(atom="1/0"), "atom"),
        (put(atom="2/16"), "its atom 2/16 is not one over a whole number"),
        (put(atom="1/900"), "its atom 1/900 is not one over"),
        (put(atom="1/2"), "it has 4 bases of width 1/2, more than make up width 1"),
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
        (put(times={"1/8": [1]}), "of each base of a width how many times it counts"),
        (put(times={"1/8": [0, 0]}), "of each base of a width how many times it counts"),
        (put(times={"1/3": [1, 1]}), "of each base of a width how many times it counts"),
        (put(times={"1/8": [1, -1]}), "times.1/8.1: input should be greater than or equal to 0"),
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
def test_a_hostile_manifest_is_one_sentence(bundle, change, words):
    """Of a bundle as it was before there were graphs."""
    loaded = set(sys.modules)
    said = json.loads((bundle.path / "manifest.json").read_text()) | {"schema": 1}
    del said["graph"], said["sample"]
    change(said)
    assert words in refusal(from_bytes, sealed(said), "'manifest.json'")
    assert not {"lame", "antigravity"} & (set(sys.modules) - loaded)


def put_step(number, **changes):
    return lambda graph: graph["steps"][number].update(changes)


def put_setting(op, **changes):
    return lambda graph: next(step for step in graph["steps"] if step["op"] == op)["settings"].update(changes)


def bomb(graph):
    sizes = {"shape": [1, 3, 1 << 20, 1 << 10]}
    graph["steps"].insert(0, {"op": "Expand", "takes": ["%900000"], "gives": ["%900001"], "settings": sizes})
    graph["constants"]["%900000"] = {"shape": [1, 1, 1, 1], "numbers": [1.0]}


def outgrow(graph):
    turned = {"op": "Transpose", "takes": [graph["answer"]], "gives": ["%900000"], "settings": {"perm": [1, 0]}}
    squared = {"op": "MatMul", "takes": [graph["answer"], "%900000"], "gives": ["%900001"], "settings": {}}
    graph["steps"] += [turned, squared]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put_step(0, op="If"), "its step 0 is 'If', which is none of the operators that are run"),
        (put_step(0, op="Loop"), "is 'Loop', which is none"),
        (put_step(0, op="os.system"), "is 'os.system', which is none"),
        (put_step(0, domain="com.evil"), "graph.steps.0.domain: extra inputs are not permitted"),
        (put_step(0, takes=["../../etc/passwd", "conv1.weight"]), "takes what is not there"),
        (put_step(0, gives=["fc1.weight"]), "graph.steps.0.gives.0: string should match pattern"),
        (put_step(0, gives=["%0"]), "gives what is there already"),
        (put_setting("Conv", group=0), "a setting 'group' that is out of bounds"),
        (put_setting("Conv", group=2), "its groups do not fit"),
        (put_setting("Conv", strides=[0, 0]), "a setting 'strides' that is out of bounds"),
        (put_setting("Conv", pads=[2**62] * 4), "a setting 'pads' that is out of bounds"),
        (put_setting("Conv", auto_pad=1), "has not the settings of its operator"),
        (put_setting("Reshape", shape=[-1, 1 << 30]), "its sizes do not fit"),
        (put_setting("Transpose", perm=[0, 0]), "its axes do not fit"),
        (bomb, "gives too much, or nothing"),
        (outgrow, "grows faster than the number of samples"),
        (lambda g: g.update(answer="%0"), "its answer is not one row of logits for each sample"),
        (lambda g: g.update(answer="%77777"), "its answer is not there"),
        (lambda g: g.update(functions=[]), "graph.functions: extra inputs are not permitted"),
        (lambda g: g.update(sample=[3, 28, 29]), "do not fit its graph"),
        (lambda g: g.update(whole=True), "mixes whole numbers and others"),
        (lambda g: g.update(steps=g["steps"] * 300), "graph.steps: list should have at most 4096 items"),
        (lambda g: g["entries"].update({"fc3.bias": [11]}), "(Gemm) cannot be run"),
        (lambda g: g["entries"].update({"fc3.bias": [1 << 40]}), "graph.entries.fc3.bias"),
        (lambda g: g["entries"].pop("fc3.bias"), "takes what is not there"),
        (lambda g: g["entries"].update({"more": [1 << 20]}), "a size that a base of digit cannot have"),
        (lambda g: g["norms"].pop(), "a norm that is not there"),
        (lambda g: g["norms"][0].update(noisy="norm4.noisy"), "'norm1.clean' lacks entries"),
        (lambda g: g["constants"].update({"%5000": {"shape": [1 << 30], "numbers": [1.0]}}), "do not fill their shape"),
        (lambda g: g["constants"].update({"%5000": {"shape": [1], "file": "/etc/passwd"}}), "graph.constants"),
    ],
)
def test_a_hostile_graph_is_one_sentence_before_onnx_runtime_sees_it(bundle, monkeypatch, change, words):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = json.loads((bundle.path / "manifest.json").read_text())
    change(said["graph"])
    assert words in refusal(from_bytes, sealed(said), "'manifest.json'")


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
        (lambda h: h.update({"../../x\n": h.pop("fc1.bias")}), "its entries differ in '../../x '"),
        (lambda h: h.update(__metadata__={"a": 1}), "has metadata that is not text"),
    ],
)
def test_a_hostile_base_is_one_sentence(copy, change, words):
    replace_base(copy, 1, with_header((copy / "base-1.safetensors").read_bytes(), change))
    assert words in refusal(Model.load, copy)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("fc1.weight", float("nan")), ("conv1.bias", float("inf")), ("norm1.noisy.running_var", -1.0)],
)
def test_numbers_that_would_give_nan_are_one_sentence(copy, entry, value):
    tensors = load((copy / "base-1.safetensors").read_bytes())
    tensors[entry].flatten()[0] = value
    replace_base(copy, 1, save(tensors))
    assert f"has NaN, infinite or impossible numbers in '{entry}'" in refusal(Model.load, copy)


def test_numbers_that_overflow_are_one_sentence(copy):
    tensors = load((copy / "base-0.safetensors").read_bytes())
    replace_base(copy, 0, save({n: v * 1e30 if n.startswith("fc") else v for n, v in tensors.items()}))
    assert "overflow on these images" in refusal(Model.load(copy), pictures(2))


@pytest.mark.parametrize("path", ["nowhere", "base-0.safetensors", "a\0b", ""])
def test_what_is_no_bundle_is_one_sentence(bundle, path):
    where = bundle.path / path if path and "\0" not in path else path or bundle.path.parent
    assert "bundle" in refusal(Model.load, where)
