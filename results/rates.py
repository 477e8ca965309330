"""The learning rates behind the short trainings on pictures: what `splitmix tune` tried, as one page.

python results/rates.py results/rates.md TUNED [TUNED ...]
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from splitmix.core.files import write_atomically
from splitmix.experiments.tuning import Tuning, read_tuning, tuning_table

KEPT = ("task", "command", "judged", "rounds", "settings", "chosen", "trials")


def main() -> None:
    page, *folders = map(Path, sys.argv[1:])
    tunings = [read_tuning(folder / "tuning.json") for folder in folders]
    write_atomically(page, ("\n".join(lines(tunings)).rstrip() + "\n").encode())
    rows = [kept(tuning) for tuning in tunings]
    write_atomically(page.with_suffix(".json"), (json.dumps(rows, indent=1) + "\n").encode())


def kept(tuning: Tuning) -> dict[str, Any]:
    """What a reader may check."""
    return {key: value for key, value in tuning.items() if key in KEPT}


def lines(tunings: Sequence[Tuning]) -> Iterator[str]:
    yield "# Learning rates on pictures\n"
    yield "The paper's tables at `cpu` scale train for few rounds, where the released rates are not the best. So each"
    yield "method got the same few rates, at the rounds and settings of its entries, and the entries use what was best"
    yield "on validation images. Behind a norm the step of a rescaled base is eight times as large at the same rate"
    yield "([errata](../docs/errata.md), point 23), so one rate for all would not be fair.\n"
    for tuning in tunings:
        yield f"## {' '.join([tuning['task'], *split(tuning)])}\n"
        yield f"```sh\n{tuning['command']}\n```\n"
        yield tuning_table(tuning).to_markdown()
        yield f"Seed {', '.join(map(str, tuning['seeds']))}; norms use the statistics of the batch."
        yield ""


def split(tuning: Tuning) -> list[str]:
    """How the images are dealt out, unless as the task does."""
    return [f"partition={tuning['settings']['partition']}"] if "partition" in tuning["settings"] else []


if __name__ == "__main__":
    main()
