"""The code blocks of the documentation run."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from splitmix import train
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
from splitmix.report import drawing
from splitmix.runs.config import make_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


ALONE = [
    page for page in PAGES if page.stem != "start-to-device"
]  # whose blocks stand in an order; it has its own test
CODE = [pytest.param(text, id=f"{page.stem}-{i}") for page in ALONE for i, text in enumerate(blocks(page, "python"))]
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for page in ALONE
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
    """Attacks take one of their steps; pictures are drawn, but only the tests of reports write them out."""
    walk = PGD._walk
    monkeypatch.setattr(PGD, "_walk", lambda attack, *given: walk(replace(attack, steps=1), *given))
    monkeypatch.setattr(drawing, "rendered", lambda figure, kind: b"<svg></svg>")


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


EXTEND = blocks(ROOT / "docs" / "extend.md", "python")
ADDED = {  # what a block of that page puts into a table, and how a run is told to use it
    "METHODS": {"method": "narrowest"},
    "SERVERS": {"server": "careful"},
    "NETS": {"net": "perceptron"},
    "OBJECTIVES": {"objective": "soft"},
    "ATTACKS": {"objective": {"name": "adversarial", "attack": "noise"}},
    "BUDGETS": {"budgets": "coin"},
    "TASKS": {"task": "snow"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("fewer", "same_tables")
@pytest.mark.parametrize("table", ADDED)
def test_what_the_page_on_extending_adds_can_be_trained(table: str) -> None:
    (code,) = [block for block in EXTEND if re.search(rf"^{table}\[", block, re.MULTILINE)]
    exec(compile(code, "block", "exec"), {"__name__": "block"})
    trained = train(**{"clients": 4, "rounds": 1, "val_ratio": 0.25, "progress": False} | ADDED[table])
    assert trained.result["rounds"] == 1


def test_what_the_page_on_extending_adds_is_ten_lines() -> None:
    set_apart = ("from", "import", "config", "setup")
    for block in (*EXTEND, *blocks(ROOT / "docs" / "paper.md", "python")):
        assert len([line for line in block.splitlines() if line.strip() and not line.startswith(set_apart)]) <= 10


TABLES = re.findall(r"\| `(\w+)` in `([\w/.]+)` \| `([\w/.]+)` \|", (ROOT / "docs" / "extend.md").read_text())


@pytest.mark.parametrize(("table", "file", "contract"), TABLES, ids=[table for table, *_ in TABLES])
def test_a_table_stands_where_the_page_on_extending_says_and_its_contract_runs_over_it(
    table: str, file: str, contract: str
) -> None:
    assert {*ADDED, "COMMANDS"} == {name for name, *_ in TABLES}
    assert re.search(rf"^{table}\b.* = {{", (ROOT / "src" / "splitmix" / file).read_text(), re.MULTILINE)
    assert re.search(rf"(parametrize|fixture)\(.*\b{table}\b", (ROOT / contract).read_text())


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
