"""Who may import whom: each layer knows only those below it, and what is optional stays in one file."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

import splitmix

SOURCE = Path(splitmix.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
BELOW = {  # what each layer may import of this package, besides itself
    "core": [],
    "nets": ["core"],
    "attacks": ["core"],
    "data": ["core.types", "core.errors", "core.random", "core.files"],
    "methods": ["core"],
    "engines": ["core", "data"],
    "runtime": ["core", "nets", "attacks"],
    "paper": ["core", "nets", "attacks", "data", "methods", "engines", "experiments"],
}
OUTSIDE = {  # what else, besides the standard library; layers that are not listed are free
    "core": {"torch", "numpy"},
    "nets": {"torch"},
    "attacks": {"torch", "pyautoattack"},
    "methods": {"torch", "numpy"},
}
EXCLUSIVE = {  # the only files that may import a package
    "cyclopts": ["cli.py", "cli_*.py"],
    "flwr": ["engines/flower/*.py"],
    "pyautoattack": ["attacks/ensemble.py"],
}


def local(path):
    return path.relative_to(SOURCE).as_posix()


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path):
    """Full names of all that a file imports, anywhere in it: modules, and what is taken from them."""
    names = set()
    package = ["splitmix", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names |= {".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names}
    return names


def inside(name, allowed):
    return any(name == f"splitmix.{prefix}" or name.startswith(f"splitmix.{prefix}.") for prefix in allowed)


def files_of(layers):
    return [pytest.param(path, id=local(path)) for path in FILES if path.relative_to(SOURCE).parts[0] in layers]


@pytest.mark.parametrize("path", files_of(BELOW))
def test_a_layer_imports_only_what_is_below_it(path):
    layer = path.relative_to(SOURCE).parts[0]
    ours = {name for name in imports(path) if name.split(".")[0] == "splitmix"}
    assert [name for name in sorted(ours) if not inside(name, [layer, "__version__", *BELOW[layer]])] == []


@pytest.mark.parametrize("path", files_of(OUTSIDE))
def test_a_layer_needs_few_other_packages(path):
    layer = path.relative_to(SOURCE).parts[0]
    packages = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names - {"splitmix"}
    assert packages <= OUTSIDE[layer]


@pytest.mark.parametrize("package", EXCLUSIVE)
def test_an_optional_package_is_imported_in_one_place(package):
    users = [path for path in FILES if any(name.split(".")[0] == package for name in imports(path))]
    assert [local(path) for path in users if not any(path.match(place) for place in EXCLUSIVE[package])] == []


def test_only_its_commands_use_the_papers_evidence():
    users = {path for path in FILES if any(inside(name, ["paper"]) for name in imports(path))}
    assert {local(path) for path in users if path.parent.name != "paper"} == {"cli_paper.py"}


UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch.load"}


@pytest.mark.parametrize("path", [pytest.param(path, id=local(path)) for path in FILES])
def test_nothing_is_ever_unpickled(path):
    assert not [name for name in imports(path) if name in UNSAFE or name.split(".")[0] in UNSAFE]
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    assert "torch.load" not in {ast.unparse(call.func) for call in calls}
    given = {(keyword.arg, ast.unparse(keyword.value)) for call in calls for keyword in call.keywords}
    assert ("allow_pickle", "True") not in given


def test_the_walk_sees_what_is_there():
    assert "splitmix.core.types.Part" in imports(SOURCE / "core" / "parts.py")
    assert "torch" in imports(SOURCE / "core" / "parts.py")
    assert len(FILES) > 30
