"""A picture of the budgets: one bar per client, coloured by domain."""

from collections.abc import Sequence
from pathlib import Path

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.core.width import Width
from splitmix.report.drawing import COLOURS, rendered


def budget_picture(budgets: Sequence[Width], domains: Sequence[str], path: str | Path) -> None:
    """Draw the budget of each client, coloured by the client's domain, into a .png, .svg or .pdf file."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UserError("pictures need matplotlib; install it by: pip install 'splitmix[plots]'") from None
    file = Path(path)
    kind = file.suffix.lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"cannot draw into {path}; choose a name that ends in .png, .svg or .pdf")
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
    write_atomically(file, rendered(figure, kind, dpi=150))


def _spaced(widths: Sequence[Width]) -> list[Width]:
    """The widths that can be written beside the axis without touching one another, from the largest down."""
    kept = [widths[-1]]
    for width in reversed(widths[:-1]):
        if kept[-1] - width >= Width(1, 16):
            kept.append(width)
    return kept
