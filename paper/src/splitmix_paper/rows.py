"""The rows of each entry: what its table shows and its claims are judged by."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, pstdev
from typing import NamedTuple

from splitmix.compare.maps import fedavg_domains
from splitmix.compare.standings import MethodRuns as Runs
from splitmix.core.width import Width, parse_width
from splitmix.nets import find_net
from splitmix.runs.records import domain_names
from splitmix_paper.claims import Values
from splitmix_paper.expected import AUTHORS, PRINTED
from splitmix_paper.found import Found, Row, learning_curve, scores_of, width_rows
from splitmix_paper.printed import DIGITS_BY_AUTHORS, SCALINGS, WIDTHS
from splitmix_paper.sets import COHORTS, FEDAVG, OURS, SHETEROFL, SPLITMIX

BYTES = 4  # of a parameter


def rows_of(found: Found) -> list[Row]:
    """All rows, the paper's values beside them; what is remembered comes first, but runs that are here count."""
    printed = found.entry.printed
    rows: dict[tuple[str, str], Row] = {}
    for row in (*_remembered(found), *(ROWS[found.entry.shown](found) if found.mixed else ())):
        known = rows.get((row.series, row.key), row)
        rows[row.series, row.key] = replace(
            row, values={**known.values, **row.values}, printed=printed.get(row.series, {}).get(row.key)
        )
    return list(rows.values())


def _remembered(found: Found) -> Iterator[Row]:
    for row in found.memory["rows"] if found.memory else ():
        yield Row(row["series"], row["key"], row["seeds"])


def values_of(found: Found, rows: Sequence[Row]) -> Values:
    """The same numbers as claims look at them, and some that are made of them."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in [*rows, *DERIVED.get(found.entry.shown, _nothing)(found, rows)]:
        if row.values:
            values.setdefault(row.series, {})[row.key] = list(row.values.values())
    return values


def printed_values(found: Found) -> Values:
    """What the paper prints, as claims look at it."""
    return {series: {key: [value] for key, value in keys.items()} for series, keys in found.entry.printed.items()}


def _nothing(found: Found, rows: Sequence[Row]) -> Iterator[Row]:
    return iter(())


def _widths(found: Found) -> Iterator[Row]:
    for label, runs in found.runs.items():
        yield from width_rows(runs, label, WIDTHS)
    if OURS in found.runs:
        yield from width_rows(found.runs[OURS], f"{OURS}, calibrated norms", WIDTHS, norm="client")


def _widths_derived(found: Found, rows: Sequence[Row]) -> Iterator[Row]:
    """What others measured for Split-Mix, where a claim asks for it; only full runs can be held against it."""
    if found.scale != "smoke" and any(row.series == OURS for row in rows):
        for series, values in ((AUTHORS, DIGITS_BY_AUTHORS), (PRINTED, found.entry.printed.get(SPLITMIX, {}))):
            for width, value in values.items():
                yield Row(series, width, {1: value})


def _ablation(found: Found) -> Iterator[Row]:
    """Rows in the order of the paper; a training with the statistics of the batch is scored in two ways."""
    ways = (("batch average", "batch average", "batch"), ("post average", "batch average", "client"))
    for words, trained, norm in (*ways, *((name, name, "") for name in ("tracked", "locally tracked"))):
        for scaling in SCALINGS:
            if (runs := found.runs.get(f"{trained}, {scaling}")) is not None:
                yield from width_rows(runs, f"{words}, {scaling}", WIDTHS, norm)


def _budgets(found: Found) -> Iterator[Row]:
    """Widths that clients trained, and those of the paper's tables."""
    for label, runs in found.runs.items():
        trained = {client["budget"] for client in runs.runs[0].result["clients"]}
        yield from width_rows(runs, label, [*WIDTHS, *trained])


def _contact_derived(found: Found, rows: Sequence[Row]) -> Iterator[Row]:
    for cohort in COHORTS:
        for label in (SPLITMIX, SHETEROFL):
            for row in rows:
                if (row.series, row.key) == (f"{cohort} clients: {label}", "1"):
                    yield Row(label, f"{cohort} clients", row.values)


def _final(found: Found) -> Iterator[Row]:
    """Validation accuracy after the last round; FedAvg's nets make one series."""
    for label, runs in found.runs.items():
        study, _, method = label.partition(": ")
        series = f"{study}: FedAvg" if method in FEDAVG else label
        for width in (width for width in WIDTHS if width in runs.widths):
            yield Row(series, width, {run.seed: learning_curve(run, width)[-1][1] for run in runs.runs})


def _full_width(found: Found) -> Iterator[Row]:
    """The last validation at the widest width, and the round in which all of a data set reach the same level."""
    curves = {label: learning_curve(runs.runs[0], runs.widths[-1]) for label, runs in found.runs.items()}
    for label, runs in found.runs.items():
        yield Row(label, runs.widths[-1], {runs.runs[0].seed: curves[label][-1][1]})
        study = label.partition(": ")[0]
        wanted = found.entry.needs(found.scale)
        rivals = [need.label for need in wanted if need.label.startswith(f"{study}: ")]
        if all(rival in curves for rival in rivals):
            level = min(max(y for _, y in curves[rival]) for rival in rivals)
            reached = next(x for x, y in curves[label] if y >= level - 1e-9)
            yield Row(label, "rounds", {runs.runs[0].seed: reached})


def _clients(found: Found) -> Iterator[Row]:
    for label, runs in found.runs.items():
        run, scores = runs.runs[0], scores_of(runs.runs[0])
        shares = [100 * share for share in scores[runs.widths[-1]].get("clients", []) if share is not None]
        yield Row(label, "accuracy", {run.seed: fmean(shares)})
        yield Row(label, "spread", {run.seed: pstdev(shares)})
        rounds = run.result.get("rounds", 1)
        if run.costs:
            yield Row(label, "download", {run.seed: fmean(run.costs["down"]) / BYTES / rounds / 1e6})
            yield Row(label, "work", {run.seed: fmean(run.costs["macs"]) / rounds / 1e9})


def _domains(found: Found) -> Iterator[Row]:
    """The share of parameters that each domain trains, and its worst loss against FedAvg of the same width."""
    base = fedavg_domains(found.picked(*FEDAVG))
    for runs in found.picked(SPLITMIX, SHETEROFL):
        run = runs.runs[0]
        if run.costs:
            shares = {name: 100 * share for name, share in run.costs["coverage"]["domains"].items()}
            for name, share in shares.items():
                yield Row(runs.label, f"{name}: trained", {run.seed: share})
        for name in domain_names(run.result):
            losses = list(_losses(runs, base, name))
            if losses:
                yield Row(runs.label, f"{name}: worst", {run.seed: min(losses)})


def _losses(runs: Runs, base: Mapping[str, Mapping[str, float]], domain: str) -> Iterator[float]:
    for width, score in runs.runs[0].scores.items():
        mine, theirs = score.get("domains", {}).get(domain), base.get(width, {}).get(domain)
        if mine is not None and theirs is not None:
            yield 100 * (mine - theirs)


def _domains_derived(found: Found, rows: Sequence[Row]) -> Iterator[Row]:
    for label in (SPLITMIX, SHETEROFL):
        for ending, key in ((": trained", "least trained"), (": worst", "worst domain")):
            values = [row.mean for row in rows if row.series == label and row.key.endswith(ending)]
            if known := [value for value in values if value is not None]:
                yield Row(label, key, {1: min(known)})
        yield Row(label, "all", {1: 100.0})


def _clock(found: Found) -> Iterator[Row]:
    """The middle one of a run's rounds, for each seed."""
    for label, runs in found.runs.items():
        if label.startswith("time of "):
            times = {
                run.seed: median(row["seconds"] for row in run.metrics if row["kind"] == "round") for run in runs.runs
            }
            yield Row(label.removeprefix("time of "), "seconds", times)


def _dials(found: Found) -> Iterator[Row]:
    for label, grid in found.grids():
        seed = found.runs[label].runs[0].seed
        several = len({row["width"] for row in grid["rows"]}) > 1
        for row in grid["rows"]:
            width = f", width {row['width']}" if several else ""
            dial = f", dial {row['robust']:g}" if len(grid["rows"]) > 1 else ""
            for kind, share in (("clean", row["clean"]), ("attacked", row["attacked"])):
                if share is not None:
                    yield Row(f"{label}{width}{dial}", kind, {seed: 100 * share})


def _dials_derived(found: Found, rows: Sequence[Row]) -> Iterator[Row]:
    """By dial at one width, and by width at one dial."""
    for row in rows:
        at = turned(row.series)
        if at.width:
            yield Row(f"{at.label}, {row.key} at {at.dial or '0'}", at.width, row.values)
        else:
            yield Row(at.label, f"{row.key} at {at.dial or '0'}", row.values)


class Turned(NamedTuple):
    """What was trained, and where its dials stood; empty: it has but one."""

    label: str
    width: str = ""
    dial: str = ""


def turned(series: str) -> Turned:
    """The parts of a series of dials.

    >>> turned("FedAvg + AT 0.5"), turned("Split-Mix + DAT, width 1/8, dial 0.2")
    (Turned(label='FedAvg + AT 0.5', width='', dial=''), Turned(label='Split-Mix + DAT', width='1/8', dial='0.2'))
    """
    label, *parts = series.split(", ")
    return Turned(label, **dict(part.split() for part in parts))


def _layers(found: Found) -> Iterator[Row]:
    """Outputs and kernels of our net's layers at full width."""
    module = find_net(found.entry.net)(Width(1))
    for name, entry in module.named_parameters():
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and layer.startswith(("conv", "fc")):
            yield Row(layer, "outputs", {0: float(entry.shape[1])})
            if entry.dim() == 5:
                yield Row(layer, "kernel", {0: float(entry.shape[-1])})


def _layers_derived(found: Found, rows: Sequence[Row]) -> Iterator[Row]:
    for series, keys in found.entry.printed.items():
        for key, value in keys.items():
            yield Row(series, f"{key} of the paper", {0: value})


ROWS: Mapping[str, Callable[[Found], Iterator[Row]]] = {
    "widths": _widths,
    "ablation": _ablation,
    "budgets": _budgets,
    "contact": _widths,
    "convergence": _final,
    "full-width": _full_width,
    "clients": _clients,
    "domains": _domains,
    "clock": _clock,
    "dials": _dials,
    "layers": _layers,
    "samples": lambda found: iter(()),
}
DERIVED: Mapping[str, Callable[[Found, Sequence[Row]], Iterator[Row]]] = {
    "widths": _widths_derived,
    "contact": _contact_derived,
    "domains": _domains_derived,
    "dials": _dials_derived,
    "layers": _layers_derived,
}


def in_order(keys: Sequence[str]) -> list[str]:
    """Widths from narrow to wide, all else as it comes."""
    unique = list(dict.fromkeys(keys))
    try:
        return sorted(unique, key=parse_width)
    except ValueError:
        return unique
