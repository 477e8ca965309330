"""What a notebook shows of a trained model: a table of its widths, and what its dial does."""

from html import escape
from pathlib import Path

from splitmix.engines.simulator import default_workers
from splitmix.report.drawing import Picture
from splitmix.report.grid_page import by_dial
from splitmix.report.pages import render
from splitmix.report.run_page import run_headline
from splitmix.report.tables import width_table
from splitmix.runs.finish import Outcome, served_with
from splitmix.runs.measure.evaluate import FinishedRun, scored_norm
from splitmix.runs.measure.grid import Sweep, measure_grid
from splitmix.runs.records import Result, main_scores
from splitmix.runs.setup import Setup

DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)


def width_html(result: Result) -> str:
    """Accuracy, parameters and MACs of each width, as a table that stands by itself."""
    return f"<p>{escape(run_headline(result))}</p>{render('table.html.j2', table=width_table(result))}"


def dial_picture(setup: Setup, outcome: Outcome, folder: Path | None) -> Picture:
    """Clean accuracy of every width by the robustness dial, measured on test images."""
    norm = scored_norm(setup, main_scores(outcome.result)[0].get("norm"), None, fixed=True)
    weights, question = served_with(setup, outcome.weights, norm)
    run = FinishedRun(folder or Path(), setup, weights, norm, question, outcome.result)
    return by_dial(measure_grid(run, Sweep(dials=DIALS), workers=default_workers()))
