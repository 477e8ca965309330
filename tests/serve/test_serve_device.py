"""A server and commands on a device: PyTorch is not there, and predictions are answered at every width and dial."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from helpers.bundles import images
from splitmix import Model
from splitmix.runtime.bundle import packaged

pytest.importorskip("fastapi", reason='serving is not installed; pip install "splitmix[serve]"')
pytest.importorskip("onnxruntime", reason='ONNX Runtime is not installed; pip install "splitmix[onnx]"')

from helpers.serving import HANGS, started

pytestmark = pytest.mark.slow  # processes

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "onnxscript"):
            raise ImportError(f"{name} is not on this device", name=name)
sys.meta_path.insert(0, Refuse())
from splitmix.cli import main
main(sys.argv[1:])
"""


def command(*words):
    return [sys.executable, "-c", WITHOUT, *map(str, words)]


def place(tmp_path):
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source), "SPLITMIX_CACHE": str(tmp_path)}


def ask(address, path, **said):
    """The status and what is answered; a question that says nothing is a GET."""
    body = json.dumps(said).encode() if said else None
    try:
        with urlopen(Request(address + path, body, {"content-type": "application/json"}), timeout=HANGS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, json.load(refused)


def test_a_server_without_pytorch_answers_at_every_width_and_dial(tmp_path):
    pixels, model = images(1)[0], Model.load(packaged(), backend="torch")
    with started(command("serve", "--port", "0"), env=place(tmp_path)) as run:
        try:
            line = run.stdout.readline()
            address = next((word for word in line.split() if word.startswith("http://")), "").rstrip("/")
            assert address, run.stderr.read()
            _, about = ask(address, "/api/model")
            for width in about["widths"]:
                for robust in (0.0, 0.3, 1.0):
                    _, said = ask(address, "/api/predict", pixels=pixels.tolist(), width=width, robust=robust)
                    expected = model.predict(pixels[None], width=width, robust=robust).probabilities[0]
                    np.testing.assert_allclose(said["probabilities"], expected, atol=1e-4)
                    assert len(said["votes"]) == said["bases"]
            hurried = ask(address, "/api/predict", pixels=pixels.tolist(), deadline_ms=1000, confidence=0.5)
            planned = ask(address, "/api/plan", max_ms=1000)
            refused = ask(address, "/api/predict", pixels=pixels.tolist(), attack=True)
        finally:
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=HANGS)
    assert (run.returncode, out, err) == (0, "Stopped.\n", "")
    assert len(about["widths"]) == 8
    assert about["attack"] is None  # the page turns its switch off
    assert (hurried[0], planned[0], planned[1]["fits"]) == (200, 200, True)
    assert refused == (422, {"error": "this server offers no attack; leave it out"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["card", packaged()], "mini-digits"),
        (["plan", packaged(), "--max-ms", "1000"], "Width "),
        (["probe", packaged()], "ONNX Runtime"),
        (["--help"], "serve"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_on_bundles_need_no_pytorch(tmp_path, words, said):
    done = subprocess.run(command(*words), capture_output=True, text=True, env=place(tmp_path), timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


@pytest.mark.parametrize("words", [["train", "mini"], ["nets"], ["export", packaged()]], ids=lambda words: words[0])
def test_commands_that_need_pytorch_say_so_in_one_sentence(tmp_path, words):
    done = subprocess.run(command(*words), capture_output=True, text=True, env=place(tmp_path), timeout=HANGS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "splitmix: this needs PyTorch, which is not installed; install torch\n"
