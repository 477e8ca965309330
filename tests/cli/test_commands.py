"""The table of commands: what is listed, and what listing it loads."""

import subprocess
import sys

import pytest
from cyclopts import App

from splitmix import __version__
from splitmix.cli import main
from splitmix.cli.commands import COMMANDS, help_of

HEAVY = ("torch", "numpy", "pydantic", "matplotlib")
LISTED = f"""
import sys
from splitmix.cli import main
main(["--help"])
main(["--version"])
print("loaded", [name for name in {HEAVY} if name in sys.modules])
"""


@pytest.fixture(scope="module")
def listed() -> str:
    """What a fresh process prints when asked for help and version."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", LISTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_and_version_do_not_wait_for_pytorch(listed):
    assert listed.endswith(f"{__version__}\nloaded []\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_its_first_sentence_and_its_help_shows_an_example(listed, capsys, name):
    sentence = help_of(COMMANDS[name]).splitlines()[0]
    line = next(line for line in listed.splitlines() if line.startswith(f"│ {name} "))
    assert line.split(maxsplit=2)[2].startswith(sentence[:30])
    assert sentence in " ".join(helped(capsys, name).split())


@pytest.mark.parametrize("words", [(), ("data", "list"), ("data", "show"), ("data", "prepare")], ids=" ".join)
def test_help_of_all_and_of_groups_shows_examples(capsys, words):
    helped(capsys, *words)


def helped(capsys, *words):
    """The help of a command; it shows an example."""
    main([*words, "--help"])
    usage, told = capsys.readouterr().out.split("\n", 1)
    assert usage.startswith(f"Usage: {' '.join(('splitmix', *words))}")
    assert f"{' '.join(('splitmix', *words))}" in told
    return told


def test_no_file_where_a_command_is_run_stands_in_for_what_it_imports(tmp_path, monkeypatch):
    app = App()
    app.command("imposter:run")
    (tmp_path / "imposter.py").write_text("def run(): pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    monkeypatch.setattr("splitmix.cli.command_line", lambda: app)
    with pytest.raises(ImportError, match="imposter"):
        main(["run"])
