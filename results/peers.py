"""Make the page that sets Split-Mix beside its peers: every number is read from a comparison and from its tuning.

python results/peers.py results/peers.md COMPARED TUNED
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from splitmix.compare.statistics import clear_lead
from splitmix.compare.tuning import read_tuning, tuning_table
from splitmix.core.files import write_atomically
from splitmix.runs.config import read_toml

WIDTHS = ("1/8", "1/4", "1/2", "1")
Values = Mapping[tuple[str, str], list[float]]  # accuracy of each seed, by method and width


def main() -> None:
    page, compared, tuned = map(Path, sys.argv[1:])
    found = json.loads((compared / "rows.json").read_text())
    write_atomically(page, ("\n".join(lines(found, compared, tuned)) + "\n").encode())
    tuning = json.loads((tuned / "tuning.json").read_text())
    write_atomically(
        page.with_suffix(".json"), (json.dumps({"compared": found, "tuned": tuning}, indent=1) + "\n").encode()
    )


def lines(found: Mapping[str, Any], compared: Path, tuned: Path) -> Iterator[str]:
    values = {(row["method"], row["width"]): list(row["seeds"].values()) for row in found["rows"]}
    tuning = read_tuning(tuned / "tuning.json")
    run = compared / found["runs"][0]["folder"]
    config, result = read_toml(run / "config.toml"), json.loads((run / "result.json").read_text())
    seeds = sorted({entry["seed"] for entry in found["runs"]})
    yield "# Split-Mix and its peers on five-domain digits\n"
    yield f"Data: {result['data']}. {len(result['clients'])} clients, {config['cohort']} drawn for each round,"
    yield f"{found['rounds']} rounds, seeds {', '.join(map(str, seeds))}, budgets {config['budgets']} in client order."
    yield f"Norms: {found['norm']}. Everything but the method and its learning rate is the same.\n"
    yield "```sh"
    yield tuning["command"]
    yield found["command"]
    yield "```\n"
    yield (compared / "table.md").read_text().strip() + "\n"
    yield "The ms were measured while the computer did other work too: they compare widths, not computers. In order,"
    yield "weak budgets and domains coincide, which is hard on methods that slice one net: the domains of weak"
    yield "clients never train the outer slices.\n"
    yield "## Where Split-Mix wins and loses\n"
    yield from standing(values)
    yield "\n## Does SHeteroFL fall at full width when every client counts once?\n"
    yield from fall(values)
    yield "\n## The search behind it\n"
    tried = ", ".join(map(str, tuning["seeds"]))
    yield f"Each method got the same {len(tuning['rates'])} rates, {tuning['rounds']} rounds each, seed {tried}.\n"
    yield tuning_table(tuning).to_markdown().strip()


def standing(values: Values) -> Iterator[str]:
    """Split-Mix against each other method, in points."""
    for width in WIDTHS:
        ours = values["splitmix", width]
        told = []
        for (label, at), theirs in values.items():
            if at == width and label != "splitmix":
                lead = 100 * (fmean(ours) - fmean(theirs))
                sure = clear_lead(ours, theirs) or clear_lead(theirs, ours)
                told.append(f"{label} {lead:+.1f}{'' if sure else ' (within chance)'}")
        yield f"- width {width}: Split-Mix {100 * fmean(ours):.1f} %; its lead over {', '.join(told)}"


def fall(values: Values) -> Iterator[str]:
    for label in ("sheterofl", "heterofl", "fedrolex"):
        half, full = values[label, "1/2"], values[label, "1"]
        change = 100 * (fmean(full) - fmean(half))
        sure = "beyond chance" if clear_lead(half, full) or clear_lead(full, half) else "within chance"
        told = f"{100 * fmean(half):.1f} % at 1/2, {100 * fmean(full):.1f} % at 1"
        yield f"- {label}: {told}: {change:+.1f} points, {sure}"


if __name__ == "__main__":
    main()
