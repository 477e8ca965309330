"""Make a results page from finished runs: every number is read from their `result.json`.

python results/summarise.py "Five-domain digits" results/digits.md RUN [RUN ...]

Runs that differ only in their seed share a row: mean and standard deviation over seeds.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from splitmix.core.files import write_atomically
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.finish import NORM_TEXT

WIDTHS = ("1/8", "1/4", "1/2", "1")
IRRELEVANT = {"checkpoint_every"}  # settings that do not change a result


def main() -> None:
    title, page, *folders = sys.argv[1:]
    groups: dict[str, list[dict[str, Any]]] = {}
    for folder in map(Path, folders):
        result = json.loads((folder / "result.json").read_text())
        groups.setdefault(command(read_toml(folder / "config.toml")), []).append(result)
    write_atomically(Path(page), "\n".join(lines(title, groups)).encode())
    rows = [row for results in groups.values() for result in results for row in kept(result)]
    write_atomically(Path(page).with_suffix(".json"), (json.dumps(rows, indent=1) + "\n").encode())


def command(config: Mapping[str, Any]) -> str:
    """The command of a run, without its seed."""
    default = make_config({"task": config["task"]}).model_dump()
    own = [(k, v) for k, v in config.items() if k not in ("task", "seed", *IRRELEVANT) and v != default[k]]
    return " ".join(["splitmix train", config["task"], *(f"-o {key}={_value(value)}" for key, value in own)])


def lines(title: str, groups: Mapping[str, list[dict[str, Any]]]) -> Iterable[str]:
    yield f"# {title}\n"
    first = next(iter(groups.values()))[0]
    yield f"Data: {first['data']}. {len(first['clients'])} clients."
    yield "Accuracy in %: the mean over clients of each client's test accuracy; ± is the standard deviation over seeds."
    yield "The best round and the order of bases were chosen on validation images, test images scored at the end.\n"
    for name, results in groups.items():
        seeds = ", ".join(str(result["seed"]) for result in results)
        yield f"## `{name}`\n"
        yield f"Seeds {seeds}; {first['rounds']} rounds, the best validation round kept"
        best = ", ".join(str(result["best_round"] + 1) for result in results)
        yield f"({best}); order of bases: {results[0]['order']}.\n"
        yield "| norm statistics | " + " | ".join(f"width {width}" for width in WIDTHS) + " |"
        yield "|---|" + "---:|" * len(WIDTHS)
        for norm in dict.fromkeys(row["norm"] for row in results[0]["scores"]):
            cells = [spread([accuracy(result, norm, width) for result in results]) for width in WIDTHS]
            yield f"| {NORM_TEXT[norm]} | {' | '.join(cells)} |"
        yield ""
        yield "| domain, at width 1 | " + " | ".join(first["domains"]) + " |"
        yield "|---|" + "---:|" * len(first["domains"])
        main_norm = results[0]["scores"][0]["norm"]
        by_domain = [
            spread([row(result, main_norm, "1")["domains"][name] for result in results]) for name in first["domains"]
        ]
        yield f"| {NORM_TEXT[main_norm]} | {' | '.join(by_domain)} |"
        yield ""
        yield from (f"- seed {result['seed']}: weights `{result['weights_sha256'][:16]}`" for result in results)
        yield ""


def kept(result: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for score in result["scores"]:
        yield {"seed": result["seed"], "weights_sha256": result["weights_sha256"], **score}


def row(result: Mapping[str, Any], norm: str, width: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in result["scores"] if (r["norm"], r["width"]) == (norm, width))
    return found


def accuracy(result: Mapping[str, Any], norm: str, width: str) -> float:
    return float(row(result, norm, width)["accuracy"])


def spread(values: list[float]) -> str:
    """Mean and standard deviation in per cent."""
    text = f"{100 * mean(values):.1f}"
    return f"{text} ± {100 * stdev(values):.1f}" if len(values) > 1 else text


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)


if __name__ == "__main__":
    main()
