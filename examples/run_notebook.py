"""Runs the cells of a notebook and stores what they show; Jupyter is not needed.

python examples/run_notebook.py examples/your_net.ipynb
"""

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path


def run(file: Path) -> None:
    """Run the code cells in order, in one namespace, and write the notebook with their outputs."""
    notebook = json.loads(file.read_text())
    names: dict[str, object] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, start=1):
        cell["outputs"], cell["execution_count"] = outputs("".join(cell["source"]), names, count), count
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def outputs(code: str, names: dict[str, object], count: int) -> list[dict[str, object]]:
    """What a cell prints, and what its last expression is."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    told: list[dict[str, object]] = []
    if printed.getvalue():
        told.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        told.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return told


if __name__ == "__main__":
    run(Path(sys.argv[1]))
