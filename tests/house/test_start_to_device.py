"""docs/start-to-device.md from top to bottom: every block is run, in its order, in one folder."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.serving import send_file, serving
from splitmix.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "start-to-device.md").read_text()
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
DEVICE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "PIL"):
            raise ImportError(f"{name} is not on this device", name=name)
sys.meta_path.insert(0, Refuse())
runpy.run_path(sys.argv[1])
"""


class Reader:
    """Does what the page says; a server that it starts goes on until the end."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.served, self.answers, self.done = stack, "", [], []

    def python(self, text: str) -> None:
        if found := re.match(r"# (\w+\.py)\n", text):
            Path(found[1]).write_text(text)
        else:
            exec(compile(text, "block", "exec"), {"__name__": "block"})

    def sh(self, text: str) -> None:
        for line in text.splitlines():
            command, *words = shlex.split(line, comments=True)
            self.done.append(words[0] if command == "splitmix" else command)
            getattr(self, command)(words)

    def splitmix(self, words: list[str]) -> None:
        if words[0] == "serve":
            self.served = self.stack.enter_context(serving(Path(words[1])))
        else:
            main([*words, *(["-o", "rounds=1", "-o", "epochs=1"] if words[0] == "train" else [])])

    def curl(self, words: list[str]) -> None:
        fields = dict(word.split("=", 1) for word in words[1::2])
        assert words[-1] == "localhost:8000/api/predict"
        picture = Path(fields.pop("image").removeprefix("@")).read_bytes()
        self.answers.append(send_file(self.served, picture, **fields))

    def run_alone(self, words: list[str]) -> None:
        place = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([sys.executable, "-c", DEVICE, *words], capture_output=True, text=True, env=place)
        assert done.returncode == 0, done.stderr
        self.answers.append(done.stdout)


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the device of the page runs on ONNX Runtime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)  # one core: no process is started
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with ExitStack() as stack:
        stack.callback(sys.modules.pop, "mynet", None)
        reader = Reader(stack)
        for language, text in BLOCKS:
            if text.strip() == "python device.py":
                reader.run_alone(["device.py"])
            else:
                getattr(reader, language)(text)
    assert reader.done == ["train", "report", "bundle", "card", "plan", "calibrate", "serve", "curl"]
    asked, alone = reader.answers
    assert asked.json()["label"] in ("cross", "disc", "square")
    assert asked.json()["width"] == "1/2"
    assert [line.split()[0] for line in alone.splitlines()[:4]] == ["1/4", "1/2", "3/4", "1"]
    assert Path("runs/shapes/report.html").exists()
