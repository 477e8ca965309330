"""Tables for people and programs: one set of rows, for a terminal, a page, Markdown, LaTeX or a program."""

import math
import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from splitmix.core.errors import printable
from splitmix.runs.records import Result, domain_names, score_groups

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

NORM_WORDS = {
    "batch": "statistics of the test batch itself",
    "client": "fixed statistics that each client took from its own training images",
    "global": "one set of fixed statistics for all clients",
    "tracked": "running statistics, averaged by the server",
    "local": "running statistics that never leave the client",
    "stored": "statistics stored with the weights",
}
Around = tuple[str, str]
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
    **{"±": r"$\pm$", "…": r"\ldots{}", "[": "{[}", "*": "{*}"},  # after a line's end, [ and * would be commands
}


def percent(value: float | None) -> str:
    """A share as per cent.

    >>> percent(0.8512), percent(None)
    ('85.1', '-')
    """
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def human(value: float | None) -> str:
    """A count in three digits.

    >>> human(224_194), human(1_158_144), human(999_999), human(12)
    ('224k', '1.16M', '1.00M', '12')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 1000:
        return f"{value:.0f}"
    digits, power = f"{value:.2e}".split("e")
    thousands, shift = divmod(int(power), 3)
    if thousands > 4:
        return f"{value:.2e}"
    return f"{float(digits) * 10**shift:.{max(0, 2 - shift)}f}{'kMGT'[thousands - 1]}"


def milliseconds(value: float | None) -> str:
    """A duration with two digits or more.

    >>> milliseconds(0.9), milliseconds(12.34)
    ('0.90', '12.3')
    """
    return "-" if value is None or not math.isfinite(value) else f"{value:.{2 if value < 10 else 1}f}"


def plain(value: object) -> str:
    """A value as it is."""
    return "-" if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """A column: its key in JSON, its heading, and how a value is shown."""

    key: str
    heading: str
    show: Callable[[Any], str] = plain
    number: bool = True  # numbers stand to the right
    spare: bool = False  # may be left out on a narrow screen


@dataclass(frozen=True)
class Table:
    """Rows of raw values under columns that know how to show them; some cells may be bold, some rows grey."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    bold: Collection[tuple[int, str]] = ()  # row number and key of the column
    grey: Collection[int] = ()  # row numbers

    def cells(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [
            [printable(column.show(value)) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def dressed(self, bold: Around, grey: Around, escaped: Callable[[str], str]) -> list[list[str]]:
        """The rows in some language, with what that puts around text that is bold or grey."""

        def dress(i: int, key: str, text: str) -> str:
            before, after = bold if (i, key) in self.bold else grey if i in self.grey else ("", "")
            return f"{before}{escaped(text)}{after}"

        keys = [column.key for column in self.columns]
        return [[*map(dress, [i] * len(keys), keys, row)] for i, row in enumerate(self.cells())]

    def to_rich(self, gap: int = 2) -> "RichTable":
        """For a terminal; headings have a line for each word."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text  # names from files are text, never markup

        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)
        table.title, table.title_justify = Text(f"{self.title}\n", "bold"), "left"
        for column in self.columns:
            heading = Text("\n".join(column.heading.split()))  # a name that is too long is broken, never cut
            table.add_column(heading, justify="right" if column.number else "left", overflow="fold")
        for i, row in enumerate(self.cells()):
            strong = [j == 0 or (i, column.key) in self.bold for j, column in enumerate(self.columns)]
            style = "dim" if i in self.grey else ""
            table.add_row(*(Text(cell, style or "bold" * bold) for cell, bold in zip(row, strong, strict=True)))
        table.caption, table.caption_justify = Text(f"\n{self.caption}", "dim"), "left"
        return table

    def room(self, gap: int = 2) -> int:
        """How wide it is in a terminal."""
        words = [max(map(len, column.heading.split()), default=0) for column in self.columns]
        return sum(map(max, zip(words, *([len(c) for c in row] for row in self.cells()), strict=True))) + gap * len(
            words
        )

    def to_text(self) -> str:
        """For a file or a pipe: plain characters, never cut to the width of a screen."""
        starred = {key for _, key in self.bold}
        cells = self.dressed(("", "*"), ("", ""), str)
        for i, row in enumerate(cells):  # a star must not push the figures out of line
            row[:] = [
                text + " " * (column.key in starred and column.number and (i, column.key) not in self.bold)
                for text, column in zip(row, self.columns, strict=True)
            ]
        lines = [[column.heading for column in self.columns], *cells]
        sizes = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        forms = [f"{'>' if column.number else '<'}{size}" for column, size in zip(self.columns, sizes, strict=True)]
        lines.insert(1, ["-" * size for size in sizes])
        shown = ["  ".join(map(format, line, forms)) for line in lines]
        caption = textwrap.wrap(self.caption, width=max(60, len(shown[0])))
        return "\n".join(line.rstrip() for line in (self.title, "", *shown, *([""] if caption else []), *caption))

    def to_markdown(self) -> str:
        """For a README."""
        lines = [f"**{_markdown(self.title)}**", ""]
        lines.append(_markdown_row([column.heading for column in self.columns]))
        lines.append("|" + "|".join("---:" if column.number else "---" for column in self.columns) + "|")
        lines += [f"| {' | '.join(row)} |" for row in self.dressed(("**", "**"), ("*", "*"), _markdown)]
        return "\n".join(lines + (["", _markdown(self.caption)] if self.caption else [])) + "\n"

    def to_latex(self) -> str:
        """For a paper: a table in the style of the package booktabs; grey rows need the package xcolor."""
        head = " & ".join(latex(column.heading) for column in self.columns)
        rows = self.dressed((r"\textbf{", "}"), (r"\textcolor{gray}{", "}"), latex)
        lines = [r"% needs \usepackage{booktabs, xcolor}", r"\begin{table}", r"\centering"]
        lines += [rf"\begin{{tabular}}{{{''.join('r' if column.number else 'l' for column in self.columns)}}}"]
        lines += [r"\toprule", rf"{head} \\", r"\midrule", *(rf"{' & '.join(row)} \\" for row in rows), r"\bottomrule"]
        caption = " ".join(latex(text) for text in (f"{self.title}.", self.caption) if text)
        return "\n".join([*lines, r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]) + "\n"

    def records(self) -> list[dict[str, object]]:
        """The raw values of each row, by the keys of the columns."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


def show(table: Table, console: "Console") -> None:
    """Print a table: with lines and bold type on a terminal, as plain text into a file or pipe."""
    columns = [replace(column, heading=printable(column.heading)) for column in table.columns]
    table = replace(table, title=printable(table.title), columns=columns, caption=printable(table.caption))
    if not console.is_terminal:
        console.out(table.to_text(), highlight=False)
        return
    left_out: list[str] = []
    while table.room(gap=1) > console.width and any(column.spare for column in table.columns):
        i = max(i for i, column in enumerate(table.columns) if column.spare)
        left_out.insert(0, table.columns[i].heading)
        rows = [[*row[:i], *row[i + 1 :]] for row in table.rows]
        table = replace(table, columns=[*table.columns[:i], *table.columns[i + 1 :]], rows=rows)
    if left_out:
        table = replace(table, caption=f"{table.caption} Too wide for this screen: {', '.join(left_out)}.")
    console.print(table.to_rich(gap=2 if table.room(gap=2) <= console.width else 1))


def width_table(result: Result) -> Table:
    """What each width reaches and costs; other norm statistics stand beside the main ones."""
    (main, scores), *others = score_groups(result).items()
    domains = [name for name in domain_names(result) if any(name in score.get("domains", {}) for score in scores)]
    columns = [
        Column("width", "width"),
        Column("bases", "bases"),
        Column("accuracy", "accuracy %", percent),
        *(
            Column(f"accuracy.{norm}.{split}", _beside(norm, split, main), percent, spare=True)
            for (norm, split), _ in others
        ),
        *(Column(f"domains.{name}", f"{name} %", percent, spare=True) for name in domains),
        Column("parameters", "parameters", human),
        Column("macs", "MACs", human),
        Column("ms", "ms per image", milliseconds),
    ]
    beside = [{score["width"]: score["accuracy"] for score in group} for _, group in others]
    rows = [
        (
            *(score["width"], score.get("bases"), score["accuracy"]),
            *(accuracies.get(score["width"]) for accuracies in beside),
            *(score.get("domains", {}).get(name) for name in domains),
            *(score.get("parameters"), score.get("macs"), score.get("ms")),
        )
        for score in scores
    ]
    title = f"Accuracy and cost by width: {result.get('method', 'unknown method')} on {result.get('task', 'a task')}"
    return Table(title, columns, rows, _caption(result, main, [key for key, _ in others]))


def norm_text(result: Result) -> str:
    """Which norm statistics the main scores use, in words."""
    norm = next(iter(score_groups(result)))[0]
    return result.get("norm_text", NORM_WORDS.get(norm, norm)).rstrip(".")


def norm_choice(result: Result) -> str:
    """Which norm statistics were chosen and by how much, in a sentence; nothing where there was no choice."""
    found = result.get("chosen_by", {})
    told = [f"{percent(found[norm])} % with {norm} ones" for norm in sorted(found, key=lambda norm: -found[norm])]
    return f"On validation images the widest mix has {', '.join(told)}." if told else ""


def _caption(result: Result, main: tuple[str, str], others: Sequence[tuple[str, str]]) -> str:
    """How the numbers were made, in sentences."""
    norm, split = main
    sentences = [f"Accuracy is the mean over {len(result['clients'])} clients, each on its own {split} images."]
    sentences += [f"Norms use {norm_text(result)}.", *filter(None, [norm_choice(result)])]
    beside = dict.fromkeys(name for name, _ in others if name != norm)
    sentences += [f"'{name} norms' use {NORM_WORDS.get(name, name)}." for name in beside]
    if result.get("times"):
        sentences.append(f"Bases count by fitted shares at {', '.join(result['times'])}, elsewhere alike.")
    sentences.append(f"Seed {result.get('seed', '-')}, {result.get('rounds', '-')} rounds.")
    if "data" in result:
        sentences.append(f"Data: {result['data'].rstrip('.')}.")
    return " ".join(sentences)


def _beside(norm: str, split: str, main: tuple[str, str]) -> str:
    return " ".join(([f"{norm} norms"] if norm != main[0] else []) + ([split] if split != main[1] else []) + ["%"])


def _markdown(text: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(text.splitlines()))


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def latex(text: str) -> str:
    """Text as LaTeX would print it, character by character.

    >>> print(latex("50 % of a_b ± 1"))
    50 \\% of a\\_b $\\pm$ 1
    """
    return "".join(_LATEX.get(character, character) for character in " ".join(text.splitlines()))
