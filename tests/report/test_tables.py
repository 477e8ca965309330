"""Tables: what the width table says, and how it is shown."""

import io
import math
import re

import pytest
from jinja2 import Environment, PackageLoader
from rich.console import Console

from splitmix.report.tables import Column, Table, human, milliseconds, percent, show, width_table

RESULT = {
    **{"schema": 1, "task": "mini", "method": "splitmix", "data": "digits made here.", "norm_text": "fixed afterwards"},
    **{"seed": 7, "rounds": 40, "domains": ["pen", "sign"]},
    "clients": [{"client": i, "domain": name, "budget": "1", "test": 70} for i, name in enumerate(("pen", "sign"))],
    "scores": [
        {
            **{"width": width, "bases": bases, "norm": norm, "split": "test", "accuracy": accuracy, "ms": 0.9},
            "domains": {"pen": accuracy + 0.05, "sign": accuracy - 0.05},
            **{"parameters": 224_194 * bases, "macs": 1_158_144 * bases},
        }
        for norm, width, bases, accuracy in [
            *(("client", "1", 8, 0.91), ("client", "1/8", 1, 0.8512)),
            *(("batch", "1/8", 1, 0.80), ("batch", "1", 8, 0.90)),
        ]
    ],
}
TABLE = Table(
    "Fruit", [Column("name", "name", number=False), Column("n", "count", human)], [("fig", 12), ("lemon", 34567)]
)


def shown(table, **settings):
    screen = io.StringIO()
    show(table, Console(file=screen, width=40, **settings))
    return screen.getvalue()


def test_rows_go_from_narrow_to_wide_and_other_norms_stand_beside_the_first():
    rows = width_table(RESULT).records()
    assert [(row["width"], row["accuracy"], row["accuracy.batch.test"]) for row in rows] == [
        *(("1/8", 0.8512, 0.80), ("1", 0.91, 0.90))
    ]
    assert width_table(RESULT).cells()[0] == ["1/8", "1", "85.1", "80.0", "90.1", "80.1", "224k", "1.16M", "0.90"]


def test_the_caption_says_how_the_numbers_were_made():
    caption = width_table(RESULT).caption
    told = (
        "mean over 2 clients",
        "Seed 7, 40 rounds",
        "use fixed afterwards",
        "of the test batch itself",
        "digits made",
    )
    assert all(words in caption for words in told)


def test_the_caption_says_which_norm_statistics_were_chosen_and_by_how_much():
    chosen = {**RESULT, "chosen_by": {"client": 0.712, "global": 0.803}}
    assert "the widest mix has 80.3 % with global ones, 71.2 % with client ones." in width_table(chosen).caption
    assert "widest mix" not in width_table(RESULT).caption


def test_the_caption_says_at_which_widths_bases_do_not_count_alike():
    assert "by fitted shares at 1/4, 1, elsewhere" in width_table({**RESULT, "times": {"1/4": [2], "1": [1]}}).caption
    assert "fitted" not in width_table({**RESULT, "times": {}}).caption


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00k"), (999_999, "1.00M"), (41_476_000, "41.5M"), (2e12, "2.00T"), (None, "-")],
)
def test_counts_have_three_digits(value, text):
    assert human(value) == text


@pytest.mark.parametrize("form", [percent, human, milliseconds])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_unknown_is_a_dash(form, value):
    assert form(value) == "-"


def test_what_a_result_does_not_have_is_a_dash():
    table = width_table({**RESULT, "scores": [{"width": "1", "accuracy": math.nan}]})
    assert table.cells() == [["1", "-", "-", "-", "-", "-"]]


def test_a_pipe_gets_plain_text_that_is_never_cut():
    text = shown(width_table(RESULT), force_terminal=False)
    assert "\x1b" not in text
    assert text.isascii()
    assert any(line.split()[:3] == ["1/8", "1", "85.1"] and line.endswith("0.90") for line in text.splitlines())


def test_a_terminal_gets_bold_type_and_lines():
    text = shown(TABLE, force_terminal=True)
    assert "\x1b[1m" in text
    assert "34.6k" in text


def test_a_narrow_terminal_leaves_columns_out_and_says_so():
    text = re.sub(r"\x1b\[\d*m", "", shown(width_table(RESULT), force_terminal=True))
    assert "Too wide for this screen: batch norms %, pen %, sign %." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 40
    assert "85.1" in text


def test_plain_numbers_stand_to_the_right_and_names_to_the_left():
    assert TABLE.to_text() == "Fruit\n\nname   count\n-----  -----\nfig       12\nlemon  34.6k"


def test_brackets_in_a_name_are_no_markup():
    table = Table("[red]t", [Column("a", "[bold]x")], [("[/] and more",)], "[blink]c")
    text = shown(table, force_terminal=True)
    assert all(words in text for words in ("[red]t", "[bold]x", "[/]", "[blink]c"))


def test_markdown_aligns_and_escapes():
    table = Table("T", [Column("d", "a|b", number=False), Column("n", "n")], [("<i>*x*\nnext", 1)], "c_d")
    assert table.to_markdown() == "**T**\n\n| a\\|b | n |\n|---|---:|\n| \\<i\\>\\*x\\* next | 1 |\n\nc\\_d\n"


def test_html_is_escaped_and_numbers_have_a_class():
    table = Table("T", [Column("d", "<b>", number=False), Column("n", "n")], [("<script>", 1)], "a & b", {(0, "n")})
    parts = Environment(loader=PackageLoader("splitmix.report"), autoescape=True).get_template("parts.html.j2")
    html = re.sub(r"\n\s*", "", parts.module.framed(table))
    assert '<th scope="row">&lt;script&gt;</th><td class="number"><strong>1</strong></td>' in html
    assert '<p class="note">a &amp; b</p>' in html
    assert "<script>" not in html


def test_no_character_of_a_name_is_a_command_of_latex():
    name = r"\input{x} & $a_1^2$ #~%[1]*"
    text = Table("T", [Column("n", "n", number=False)], [(name,)]).to_latex()
    assert r"\textbackslash{}input\{x\} \& \$a\_1\textasciicircum{}2\$ \#\textasciitilde{}\%{[}1]{*} \\" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_what_stands_in_a_table_does_not_steer_the_terminal(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None)
    show(Table("a\x1b[1m", [Column("b", "c\x1b[2m")], [["d\x1b[3m"]], "e\x1b[4m"), console)
    assert "\x1b" not in console.file.getvalue()
    assert console.file.getvalue().count("\ufffd") == 4


def test_on_a_narrow_screen_a_name_stands_beside_the_first_line_of_its_text_and_is_never_cut():
    words = Table(
        "", [Column("a", "name", number=False), Column("b", "about", number=False)], [("n" * 30, "word " * 9)]
    )
    lines = [line.split() for line in shown(words, force_terminal=True, color_system=None).splitlines()]
    names = [line[0] for line in lines if line and line[0][0] == "n" and line[0] != "name"]
    first = next(line for line in lines if "word" in line)
    assert "".join(names) == "n" * 30
    assert first[0] == names[0]
