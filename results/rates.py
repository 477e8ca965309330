"""The learning rates behind the short trainings on pictures: the records in `results/rates`, as one page.

python results/rates.py
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from splitmix.compare.tuning import Tuning, read_tuning, tuning_table
from splitmix.core.files import write_atomically

RATES = Path(__file__).with_suffix("")


def main() -> None:
    tunings = [read_tuning(file) for file in sorted(RATES.glob("*/tuning.json"))]
    write_atomically(RATES.with_suffix(".md"), ("\n".join(lines(tunings)).rstrip() + "\n").encode())


def lines(tunings: Sequence[Tuning]) -> Iterator[str]:
    yield "# Learning rates on pictures\n"
    yield "The paper's tables at `cpu` scale train for few rounds, where the released rates are not the best. So each"
    yield "method got the same few rates, at the rounds and settings of its entries, and the entries use what was best"
    yield "on validation images. Behind a norm the step of a rescaled base is eight times as large at the same rate"
    yield "([errata](../docs/errata.md), point 23), so one rate for all would not be fair. On CIFAR10 SHeteroFL"
    yield "takes five to seven times as long as Split-Mix: with three classes a client it was given two of the three"
    yield "rates, and of its search on the even split no record is left. Each command is the last of its search;"
    yield "earlier ones tried the other rates.\n"
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
