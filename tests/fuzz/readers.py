"""Every reader of what strangers send: what it takes, how its mutants are made, and what it may answer."""

import asyncio
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from fuzz.data_files import Reader, npz, old_pickle, parquet, pictures, table
from fuzz.mutators import blind, forge_graph, forge_json, replace_one
from helpers.bundles import made_up_grid, own_bundle, random_bundle, replace_base, sealed, with_header
from helpers.made_runs import fake_run
from helpers.plain_nets import IMAGE, PLAIN_NETS, ManyOperators
from helpers.serving import OPEN, PICTURES, png
from helpers.toys import PLAN, bases, toy_weights
from splitmix.core.errors import UserError
from splitmix.core.types import Train, Update
from splitmix.report.tables import width_table
from splitmix.runs.config import make_config, parse_override, read_config, to_toml
from splitmix.runs.folder import RunFolder, State, _seal
from splitmix.runs.measure.grid import read_grid
from splitmix.runs.records import read_metrics, read_result
from splitmix.runtime.model import Model
from splitmix.serve.app import make_app


def toml(folder: Path) -> Reader:
    text = to_toml(
        make_config({"budgets": {"name": "each", "widths": ["1/8", "1"]}, "clients": 2, "milestones": [1, 2]})
    )

    def read(data: bytes) -> None:
        (folder / "a.toml").write_bytes(data)
        read_config(str(folder / "a.toml"))

    return Reader((text.encode(), b'task = "mini"\nmethod = {name = "fedavg", width = "1/8"}\n'), read)


def override(folder: Path) -> Reader:
    def read(data: bytes) -> None:
        key, value = parse_override(data.decode(errors="surrogateescape"))
        make_config({key: value})

    seeds = (b"rounds=12", b"atom=1/8", b'objective={name="adversarial", eps="8/255"}', b"budgets=['1/8', '1']")
    return Reader(seeds, read)


def result(folder: Path) -> Reader:
    fake_run(folder / "run")
    file = folder / "run" / "result.json"
    seed = file.read_bytes()

    def read(data: bytes) -> None:
        file.write_bytes(data)
        width_table(read_result(folder / "run")).to_text()

    return Reader((seed,), read, (blind, forge_json, forge_json))


def metrics(folder: Path) -> Reader:
    fake_run(folder / "run")
    file = folder / "run" / "metrics.jsonl"
    row = {"kind": "score", "round": 1, "width": "1/8", "accuracy": 0.5, "domains": {"a": 0.5}}
    seen = {"kind": "round", "round": 1, "cohort": [0, 1], "missing": [{"client": 1, "reason": "late"}]}
    seeds = tuple(json.dumps(line).encode() for line in (row, seen))

    def read(data: bytes) -> None:
        file.write_bytes(data)
        read_metrics(folder / "run")

    return Reader(seeds, read, (blind, forge_json))


def grid(folder: Path) -> Reader:
    def read(data: bytes) -> None:
        (folder / "grid.json").write_bytes(data)
        read_grid(folder / "grid.json")

    return Reader((json.dumps(made_up_grid("1/8", 2, dual=True)).encode(),), read, (blind, forge_json))


def checkpoint(folder: Path) -> Reader:
    """A manifest and its tensors, in one."""
    run, weights, between = RunFolder(folder), {"0.w": torch.ones(1, 3)}, b"\n=====\n"
    for finished in (1, 2):
        best = {"0.w": torch.zeros(1, 3)}
        run.save_state(State(finished, weights, 0, 0.5, best), "settings")
    manifest = run.checkpoints / "round-000002.json"
    tensors = manifest.with_suffix(".safetensors")

    def forge(data: bytes, rng: Random) -> bytes:
        """Other words, or other tensors and the hash that goes with them."""
        words, whole = data.split(between)
        if rng.random() < 0.5:
            return forge_json(words, rng) + between + whole
        other = blind(whole, rng) if rng.random() < 0.5 else with_header(whole, lambda header: replace_one(header, rng))
        said = json.loads(words)
        return json.dumps({**said, "sha256": _seal(other, said)}).encode() + between + other

    def read(data: bytes) -> None:
        words, _, numbers = data.partition(between)
        manifest.write_bytes(words)
        tensors.write_bytes(numbers)
        state, notes = run.load_state(["settings"], weights)
        if notes and state.round == 1:
            raise UserError(notes[0])

    return Reader((manifest.read_bytes() + between + tensors.read_bytes(),), read, (blind, forge, forge))


def bundle_manifest(folder: Path) -> Reader:
    path = random_bundle(folder / "whole", atom="1/64", bases=2, grid=True).path
    seed = (path / "manifest.json").read_bytes()

    def forge(data: bytes, rng: Random) -> bytes:
        said = json.loads(forge_json(data, rng))
        return sealed(said) if isinstance(said, dict) else b"[]"

    def read(data: bytes) -> None:
        (path / "manifest.json").write_bytes(data)
        assert torch.isfinite(Model.load(path).logits_by_base(PICTURES[:1], robust=0.5)).all()

    return Reader((seed,), read, (blind, forge, forge))


def bundle_graph(folder: Path) -> Reader:
    """Graphs of several nets, each with the hash that goes with what was made of it."""
    pytest.importorskip("onnxruntime", reason='ONNX Runtime is not installed; pip install "splitmix[onnx]"')
    kinds = {"resnet": "image", "transformer": "signal", "group-norm": "image", "signal": "signal"}
    paths = [own_bundle(folder / name, *PLAIN_NETS[name], kind=kind).path for name, kind in kinds.items()]
    paths.append(own_bundle(folder / "many", ManyOperators, IMAGE).path)
    seeds = [(path / "manifest.json").read_bytes() for path in paths]

    def forge(data: bytes, rng: Random) -> bytes:
        said = json.loads(data)
        forge_graph(said["graph"], rng)
        return sealed(said)

    def read(data: bytes) -> None:
        hashes = [json.loads(seed)["bases"][0]["sha256"].encode() for seed in seeds]
        where = next((path for path, known in zip(paths, hashes, strict=True) if known in data), paths[0])
        (where / "manifest.json").write_bytes(data)
        model = Model.load(where)
        model.predict(np.zeros((2, *model.image), np.float32))

    return Reader(tuple(seeds), read, (blind, forge, forge, forge))


def bundle_base(folder: Path) -> Reader:
    path = random_bundle(folder / "whole", atom="1/64", bases=2).path
    seed, told = (path / "base-0.safetensors").read_bytes(), (path / "manifest.json").read_bytes()

    def forge(data: bytes, rng: Random) -> bytes:
        size = rng.choice((None, None, None, 0, 2**63, 2**64 - 1, rng.randrange(10**6)))
        return with_header(data, lambda header: replace_one(header, rng), size=size)

    def read(data: bytes) -> None:
        (path / "manifest.json").write_bytes(told)
        replace_base(path, 0, data)
        assert torch.isfinite(Model.load(path).logits_by_base(PICTURES[:1], robust=0.5)).all()

    return Reader((seed,), read, (blind, forge))


def _asked(folder: Path, kind: str) -> Callable[[bytes], object]:
    """The server's own program, asked without a network; an error of its own is no answer."""
    app = make_app(Model.load(random_bundle(folder / "whole", atom="1/64", bases=2).path), limits=OPEN)
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)

    async def ask(data: bytes) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/api/predict", content=data, headers={"content-type": kind})

    def read(data: bytes) -> None:
        answer = asyncio.run(ask(data))
        if answer.status_code >= 500:
            raise AssertionError(f"the server answered {answer.status_code}: {answer.text[:200]}")
        if answer.status_code >= 400:
            raise UserError(answer.json()["error"])

    return read


def json_body(folder: Path) -> Reader:
    said = {"pixels": PICTURES[0].tolist(), "width": "1/64", "robust": 0.5, "confidence": 0.5, "label": 3}

    def forge(data: bytes, rng: Random) -> bytes:
        settings = {key: value for key, value in said.items() if key != "pixels"}
        replace_one(settings, rng)
        return json.dumps({"pixels": said["pixels"], **settings}).encode()

    seed = json.dumps(said).encode()
    return Reader((seed,), _asked(folder, "application/json"), (blind, forge, forge))


def form(folder: Path) -> Reader:
    def part(name: str, value: bytes, more: str = "") -> bytes:
        return f'--fence\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"

    picture = part("image", png(PICTURES[0]), '; filename="a.png"')
    seeds = (picture + part("width", b"1/64") + b"--fence--\r\n", part("robust", b"0.5") + picture + b"--fence--\r\n")

    def near(data: bytes, rng: Random) -> bytes:
        """Damage to what is not the picture."""
        at = rng.choice((0, len(data) - 120))
        return data[:at] + blind(data[at : at + 120], rng) + data[at + 120 :]

    return Reader(seeds, _asked(folder, "multipart/form-data; boundary=fence"), (blind, near, near))


def registration(folder: Path) -> Reader:
    from helpers.flower_nodes import toy_member
    from splitmix.flower.wire import read_member, to_text

    def read(data: bytes) -> None:
        read_member(data.decode(errors="replace"), 4)

    return Reader((to_text(toy_member(0)).encode(),), read, (blind, forge_json, forge_json), (ValueError,))


def flower_answer(folder: Path) -> Reader:
    """The words of an answer, or the beginning of its tensors: whichever a mutant begins with."""
    from flwr.app import ConfigRecord

    from splitmix.core.admission import Rejected
    from splitmix.flower.wire import pack_answer, unpack_answer

    parts = bases(0, 1)
    job = Train(0, 0, parts, PLAN, 1)
    weights = {name: value[:2] for name, value in toy_weights().items()}
    whole = pack_answer(job, Update(0, 0, parts, weights, 4, {"loss": 0.5}))
    about: Any = whole["about"]
    words, begin = about["answer"].encode(), zlib.decompress(about["entries"])

    def read(data: bytes) -> None:
        is_words, data = data[:1] == b"w", data[1:]
        said = {
            "answer": data.decode(errors="replace") if is_words else about["answer"],
            "entries": about["entries"] if is_words else zlib.compress(data),
        }
        whole["about"] = ConfigRecord(said)
        found = unpack_answer(job, whole, 10**7)
        if isinstance(found, Rejected):
            raise UserError(found.reason)

    def forge(data: bytes, rng: Random) -> bytes:
        if data[:1] == b"w":
            return b"w" + forge_json(data[1:], rng)
        return b"t" + with_header(data[1:], lambda header: replace_one(header, rng))

    seeds = (b"w" + words, b"t" + begin)

    def damage(data: bytes, rng: Random) -> bytes:
        return data[:1] + blind(data[1:], rng)

    return Reader(seeds, read, (damage, forge, forge))


READERS: dict[str, Callable[[Path], Reader]] = {
    "npz": npz,
    "table": table,
    "parquet": parquet,
    "pictures": pictures,
    "pickle": old_pickle,
    "toml": toml,
    "override": override,
    "result": result,
    "metrics": metrics,
    "grid": grid,
    "checkpoint": checkpoint,
    "bundle manifest": bundle_manifest,
    "bundle graph": bundle_graph,
    "bundle base": bundle_base,
    "json body": json_body,
    "form": form,
    "registration": registration,
    "flower answer": flower_answer,
}
