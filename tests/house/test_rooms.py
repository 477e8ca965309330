"""Who may import whom: a room knows only those below it, also in strings; rooms stay small, and docs draw their map."""

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import splitmix

SOURCE = Path(splitmix.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = {  # from the ground up: what each room may import of the others
    "core": [],
    "nets": ["core"],
    "attacks": ["core"],
    "objectives": ["core", "attacks"],
    "methods": ["core", "objectives"],
    "data": ["core"],
    "engines": ["core", "data"],
    "runtime": ["core", "nets", "attacks"],
    "serve": ["core", "attacks", "runtime"],
    "runs": ["core", "nets", "attacks", "objectives", "methods", "data", "engines", "runtime"],
    "flower": ["core", "nets", "attacks", "data", "engines", "runs"],
    "report": ["core", "data", "runs"],
    "api": ["core", "nets", "data", "engines", "runtime", "runs", "report"],
    "compare": ["core", "nets", "objectives", "methods", "data", "engines", "runs", "report"],
    "cli": [
        *("core", "nets", "attacks", "methods", "data", "engines", "runtime", "serve", "runs", "flower", "report"),
        "compare",
    ],
}
OUTSIDE = {  # what else, besides the standard library; rooms that are not listed are free
    "core": {"torch", "numpy", "PIL"},
    "nets": {"torch"},
    "attacks": {"torch", "pyautoattack"},
    "objectives": {"torch"},
    "methods": {"torch", "numpy", "dp_accounting"},
}
EXCLUSIVE = {  # the only files that may import a package
    "cyclopts": "cli/*.py",
    "flwr": "flower/*.py",
    "pyautoattack": "attacks/autoattack.py",
    "dp_accounting": "methods/privacy.py",
    "pyarrow": "data/doors/tables.py",
    "jinja2": "report/*.py",
}
NAMED = re.compile(r"\bsplitmix((?:\.\w+)+)")  # a module in a string: to be started, imported or written into a program


def local(path):
    return path.relative_to(SOURCE).as_posix()


def room_of(path):
    return path.relative_to(SOURCE).parts[0]


@cache
def nodes(path):
    """All that a file is made up of, as its syntax tree has it."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path):
    """Full names of all that a file imports, anywhere in it: modules, and what is taken from them."""
    names = set()
    package = ["splitmix", *path.relative_to(SOURCE).parts[:-1]]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names |= {".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names}
    return names


@cache
def mentions(path):
    """Modules of ours that a file names in its strings, docstrings apart."""
    prose = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    found = {f"splitmix{name}" for text in texts for name in NAMED.findall(text)}
    return {name for name in found if name.split(".")[1] in ROOMS}


def module_of(name):
    """The file that a full name lies in, if it is one of ours."""
    parts = name.split(".")[1:] if name.split(".")[0] == "splitmix" else None
    while parts:
        for path in (SOURCE.joinpath(*parts).with_suffix(".py"), SOURCE.joinpath(*parts, "__init__.py")):
            if path.exists():
                return path
        parts = parts[:-1]
    return None


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_only_those_below_it(room):
    known = [room, "__version__", *ROOMS[room]]
    for path in (path for path in FILES if room_of(path) == room):
        ours = {name for name in imports(path) | mentions(path) if name.startswith("splitmix.")}
        assert [name for name in sorted(ours) if name.split(".")[1] not in known] == [], local(path)


def test_the_rooms_stand_on_one_another():
    seen = set()
    for room, below in ROOMS.items():
        assert set(below) <= seen, f"{room} knows rooms that stand above it"
        seen.add(room)
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == seen


def test_no_module_imports_itself_by_a_detour():
    graph = {path: {module_of(name) for name in imports(path)} - {None, path} for path in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(local(path) for path in error.args[1]))


@pytest.mark.parametrize("room", OUTSIDE)
def test_a_room_needs_few_other_packages(room):
    used = {name.split(".")[0] for path in FILES if room_of(path) == room for name in imports(path)}
    assert used - sys.stdlib_module_names - {"splitmix"} <= OUTSIDE[room]


@pytest.mark.parametrize("package", EXCLUSIVE)
def test_an_optional_package_is_imported_in_one_place(package):
    users = [path for path in FILES if any(name.split(".")[0] == package for name in imports(path))]
    assert [local(path) for path in users if not path.match(EXCLUSIVE[package])] == []


def test_the_map_in_the_docs_is_that_of_the_house():
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| ([^|]*) \|$", text.partition("## A map")[2], re.MULTILINE)
    assert {room: re.findall(r"\b(?!none)\w+", below) for room, below in rows} == ROOMS


@pytest.mark.slow
def test_a_cast_says_why_it_is_true():
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for call in (node for node in nodes(path) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in ("cast", "typing.cast"):
                assert "#" in lines[call.lineno - 1] + lines[call.lineno - 2], f"{local(path)}:{call.lineno}"


def test_the_library_does_not_know_the_papers_reproduction():
    assert [local(path) for path in FILES if "splitmix_paper" in path.read_text(encoding="utf-8")] == []


UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch.load"}


@pytest.mark.slow
def test_nothing_is_ever_unpickled():
    for path in FILES:
        assert not [name for name in imports(path) if name in UNSAFE or name.split(".")[0] in UNSAFE], local(path)
        calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
        assert "torch.load" not in {ast.unparse(call.func) for call in calls}, local(path)
        given = {(keyword.arg, ast.unparse(keyword.value)) for call in calls for keyword in call.keywords}
        assert ("allow_pickle", "True") not in given, local(path)


def test_rooms_stay_small():
    for folder in {path.parent for path in FILES}:
        assert len(list(folder.glob("*.py"))) <= 15, local(folder)
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, local(path)


def test_the_walk_sees_what_is_there(tmp_path):
    assert "splitmix.core.types.Part" in imports(SOURCE / "core" / "parts.py")
    assert "torch" in imports(SOURCE / "core" / "parts.py")
    assert len(FILES) > 30
    written = tmp_path / "starts.py"
    written.write_text(
        '"""Prose on splitmix.cli."""\nstart = ["-m", "splitmix.runs.run"]\ncode = "from splitmix.cli import app"\n'
    )
    assert mentions(written) == {"splitmix.runs.run", "splitmix.cli"}
