"""The table of commands: what is listed, and what listing it loads."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from cyclopts import App

from splitmix import __version__
from splitmix.cli import COMMANDS, command_line, help_of, main

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


def test_a_command_is_one_file_and_one_line_in_the_table(bundle, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "extend.md"
    code = page.read_text(encoding="utf-8").partition("## A command")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "widest.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "widest", "widest:widest")
    monkeypatch.setattr("splitmix.cli.command_line", command_line.__wrapped__)
    assert "Print the widest width of a bundle." in helped(capsys, "widest")
    main(["widest", str(bundle.path)])
    assert capsys.readouterr().out == f"{bundle.path}: 1/4\n"


def test_a_package_that_is_half_gone_takes_no_command_with_it(monkeypatch, capsys):
    gone = EntryPoint("gone", "no_such_package.commands:app", "splitmix.commands")
    monkeypatch.setattr("splitmix.cli.entry_points", lambda group: [gone])
    monkeypatch.setattr("splitmix.cli.command_line", command_line.__wrapped__)
    assert "gone" not in helped(capsys)


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


def test_shells_complete_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "splitmix.bash"
    main(["--install-completion", "--shell", "bash", "--output", str(script)])
    assert str(script) in capsys.readouterr().out
    assert all(name in script.read_text() for name in COMMANDS)


@pytest.mark.parametrize("words", [("nets",), ("paper", "list"), ("flower",)], ids=" ".join)
def test_how_to_begin_is_said_once_and_not_under_every_command(capsys, words):
    assert "Begin with" not in helped(capsys, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "mini"], "stopped; go on with --resume"),
        (["compare"], "stopped; repeat the command to go on"),
        (["nets"], "stopped"),
    ],
)
def test_a_stopped_command_says_how_to_go_on_where_it_can(monkeypatch, capsys, words, said):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("splitmix.cli.command_line", stop)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert (stopped.value.code, capsys.readouterr().err) == (130, f"splitmix: {said}\n")
