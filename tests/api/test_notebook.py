"""The notebook of the examples runs, and what it shows is stored in it."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "your_net.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_its_cells_run_one_after_the_other(capsys):
    names = {"__name__": "notebook"}
    for cell in CELLS:
        exec(compile("".join(cell["source"]), "cell", "exec"), names)
    assert capsys.readouterr().out.count("bases") == 3
    assert names["model"].result["stacked"] == "yes"
    assert len(names["losses"]) == 6


def test_its_outputs_are_stored_and_small():
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    shown = [output for cell in CELLS for output in cell["outputs"]]
    pages = ["".join(output["data"].get("text/html", "")) for output in shown if "data" in output]
    assert sum("<table" in page for page in pages) == 1
    assert sum("<svg" in page for page in pages) == 1
    assert NOTEBOOK.stat().st_size < 100_000
