"""A picture of the budgets: one bar per client, coloured by domain."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from splitmix.core.errors import UserError
from splitmix.core.width import Width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6d31", "#666666")  # safe for all eyes


def budget_picture(budgets: Sequence[Width], domains: Sequence[str], path: str | Path) -> None:
    """Draw the budget of each client, coloured by the client's domain, into a .png, .svg or .pdf file."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UserError("pictures need matplotlib; install it by: pip install 'splitmix[plots]'") from None
    if len(budgets) != len(domains) or not budgets:
        raise UserError(f"{len(budgets)} budgets but {len(domains)} domains; give one of each per client")
    inches = min(4 + 0.1 * len(budgets), 12)
    figure = Figure(figsize=(inches, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for number, domain in enumerate(dict.fromkeys(domains)):
        clients = [client for client, name in enumerate(domains) if name == domain]
        heights = [float(budgets[client]) for client in clients]
        axes.bar(clients, heights, width=0.78, color=COLOURS[number % len(COLOURS)], label=domain, zorder=2)
    widths = _spaced(sorted({*budgets, Width(1)}))
    axes.set_yticks([float(width) for width in widths], [str(width) for width in widths])
    axes.set(xlabel="client", ylabel="budget (width)", ylim=(0, 1.04), xlim=(-0.8, len(budgets) - 0.2))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(
        loc="outside upper left", ncols=int(inches // 1.5), frameon=False, handlelength=0.9, handletextpad=0.5
    )
    _save(figure, Path(path))


def _spaced(widths: Sequence[Width]) -> list[Width]:
    """The widths that can be written beside the axis without touching one another, from the largest down."""
    kept = [widths[-1]]
    for width in reversed(widths[:-1]):
        if kept[-1] - width >= Width(1, 16):
            kept.append(width)
    return kept


def _save(figure: "Figure", path: Path) -> None:
    """Write to a neighbour and rename, so that a reader never sees half a picture."""
    kind = path.suffix.lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"cannot draw into {path}; choose a name that ends in .png, .svg or .pdf")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(draft, format=kind, dpi=150)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
