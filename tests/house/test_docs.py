"""The code blocks of the documentation run."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from splitmix.attacks import ATTACKS
from splitmix.attacks.pgd import PGD
from splitmix.cli import command_line, main
from splitmix.core.types import Setting
from splitmix.core.width import parse_width
from splitmix.data import tasks
from splitmix.data.budgets import BUDGETS, parse_budgets
from splitmix.methods import METHODS, find_method
from splitmix.methods.optimizers import SERVERS
from splitmix.nets import NETS
from splitmix.objectives import OBJECTIVES
from splitmix.runs.config import make_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


CODE = [pytest.param(text, id=f"{page.stem}-{i}") for page in PAGES for i, text in enumerate(blocks(page, "python"))]
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for page in PAGES
    for text in blocks(page, "sh")
    for line in text.splitlines()
    if line.startswith("splitmix ")
]


CONFIGS = [(page, text) for page in PAGES for text in blocks(page, "toml")]


@pytest.mark.parametrize(("page", "text"), CONFIGS, ids=[f"{page.stem}-{i}" for i, (page, _) in enumerate(CONFIGS)])
def test_a_toml_block_is_a_config(page: Path, text: str) -> None:
    config = make_config(tomllib.loads(text))
    budgets = parse_budgets(config.budgets, clients=20).at(0)
    assert find_method(config.method, Setting(parse_width(config.atom), budgets, seed=0)).widths


def test_every_method_has_a_page() -> None:
    assert {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} == {*METHODS, "oat", "README"}


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded task with every twelfth image: blocks and commands are run as they stand, on less."""
    domains = tasks.mini_domains()
    arrays = ("x_train", "y_train", "x_test", "y_test")
    thinned = tuple(replace(domain, **{name: getattr(domain, name)[::12] for name in arrays}) for domain in domains)
    monkeypatch.setattr(tasks, "mini_domains", lambda: thinned)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)  # one core: no process is started


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks that take one of their steps."""
    walk = PGD._walk
    monkeypatch.setattr(PGD, "_walk", lambda attack, *given: walk(replace(attack, steps=1), *given))


@pytest.fixture
def same_tables() -> Iterator[None]:
    """What a block adds to a table is gone after it."""
    tables: list[dict] = [METHODS, SERVERS, NETS, OBJECTIVES, ATTACKS, BUDGETS, tasks.TASKS]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.slow
@pytest.mark.usefixtures("fewer", "same_tables")
@pytest.mark.parametrize("code", CODE)
def test_a_python_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "block", "exec"), {"__name__": "block"})


def test_the_first_example_is_short() -> None:
    code = blocks(ROOT / "README.md", "python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


@pytest.mark.slow
@pytest.mark.usefixtures("fewer", "shorter")
def test_the_commands_of_all_pages_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert COMMANDS
    for words in COMMANDS:
        if words[0] == "paper":  # runs for minutes; its own tests run its parts
            command_line().parse_args(words, exit_on_error=False, print_error=False)
        else:
            main([*words, *(["-o", "rounds=1", "-o", "clients=4"] if words[0] == "train" else [])])


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
