"""Make the page on the robustness dial: both dials of one model, and one model beside a separate one for each trade.

python results/robustness.py results/robustness.md JOINT GREEDY TUNED RUNS

JOINT is a run with a grid, GREEDY the same with the greedy order of bases. TUNED holds three tunings: tune-at, tune-oat
and tune-dat. RUNS holds runs with a grid each, named at0-s1 (weight 0, seed 1), oat-s1, dat-s1 and so on.
"""

import json
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from splitmix.compare.tuning import read_tuning, tuning_table
from splitmix.core.files import write_atomically
from splitmix.report.drawing import Picture, save
from splitmix.report.grid_page import Point, grid_table, ra_sa, tradeoff
from splitmix.report.tables import Column, Table, percent
from splitmix.runs.config import read_toml
from splitmix.runs.grid import read_grid

NAMES = {"at": "FedAvg+AT", "oat": "FedAvg+OAT", "dat": "Split-Mix+DAT"}
ABOUT = {
    "at": "adversarial training on single norms, a model for each weight of the attacked images",
    "oat": "once-for-all adversarial training, one model with FiLM norms",
    "dat": "dual norms, one model: Algorithm 4 with a single base",
}
Grid = Any  # a GridRecord, looked at by names that are put together here
Curve = list[Point]
Curves = dict[str, dict[int, Curve]]  # kind -> seed -> its points, less robust first


def main() -> None:
    page, joint, greedy, tuned, runs = map(Path, sys.argv[1:])
    grid = read_grid(joint / "grid.json")
    grids = {folder.name: read_grid(folder / "grid.json") for folder in sorted(runs.iterdir())}
    curves = gathered(grids)
    pictures = {"joint": ra_sa(grid), "only": drawn(curves, one_of(grids)["attack"])}
    for name, picture in pictures.items():
        save(picture, page.with_name(f"{page.stem}-{name}.png"))
    tunings = {kind: read_tuning(tuned / f"tune-{kind}" / "tuning.json") for kind in NAMES}
    text = [
        *joint_lines(joint, grid, page.stem),
        *order_lines(joint, greedy),
        *only_lines(runs, grids, curves, tunings, page.stem),
    ]
    write_atomically(page, ("\n".join(text) + "\n").encode())
    rows = {"joint": grid, "only": grids, "tuned": tunings}
    write_atomically(page.with_suffix(".json"), (json.dumps(rows, indent=1) + "\n").encode())


def gathered(grids: Mapping[str, Grid]) -> Curves:
    """The points of each kind and seed: of the models of a kind without a dial, of the dials of a model with one."""
    curves: Curves = {kind: {} for kind in NAMES}
    for name, grid in grids.items():
        model, seed = name.rsplit("-s", 1)
        kind = model.rstrip("0123456789.")
        points = curves[kind].setdefault(int(seed), [])
        points += [Point(model[len(kind) :] or f"{r['robust']:g}", r["clean"], r["attacked"]) for r in grid["rows"]]
    for seeds in curves.values():
        for points in seeds.values():
            points.sort(key=lambda point: float(point.name))
    return curves


def averaged(seeds: Mapping[int, Curve]) -> Curve:
    """Over seeds, point by point."""
    return [
        Point(points[0].name, fmean(p.clean for p in points), fmean(p.attacked for p in points))
        for points in zip(*seeds.values(), strict=True)
    ]


def drawn(curves: Curves, attack: str) -> Picture:
    points = {NAMES[kind]: averaged(seeds) for kind, seeds in curves.items()}
    title = "One model with a dial beside a separate model for each trade"
    return tradeoff(points, attack, title, "mean over seeds; a point for each weight or dial")


def gaps(curve: Curve, separate: Curve) -> list[float | None]:
    """Clean accuracy of each point over the separate models' at the same accuracy under attack, on the straight lines
    between those of them that no other beats in both; none where the point is more robust than all of them."""
    front: list[Point] = []
    for point in sorted(separate, key=lambda point: (-point.attacked, -point.clean)):
        if not front or point.clean > front[-1].clean:
            front.append(point)
    front.reverse()  # more robust and less accurate from one to the next
    return [gap(point, front) for point in curve]


def gap(point: Point, front: Sequence[Point]) -> float | None:
    if point.attacked > front[-1].attacked:
        return None
    place = bisect_right([other.attacked for other in front], point.attacked)
    if place == 0:  # less robust than all of them: beside the most accurate
        return point.clean - front[0].clean
    if place == len(front):
        return point.clean - front[-1].clean
    one, two = front[place - 1], front[place]
    share = (point.attacked - one.attacked) / (two.attacked - one.attacked)
    return point.clean - (one.clean + share * (two.clean - one.clean))


def gaps_by_seed(curves: Curves, kind: str) -> list[tuple[float | None, ...]]:
    """For each point of a kind, its gap to the separate models of the same seed."""
    return list(zip(*(gaps(curve, curves["at"][seed]) for seed, curve in curves[kind].items()), strict=True))


def verdict(found: Sequence[float | None]) -> str:
    """What the gaps of all seeds say of a point."""
    if all(value is None for value in found):
        return "more robust than any separate model"
    known = [value for value in found if value is not None]
    if len(known) < len(found):
        return "at the robust end of the curve"
    return "above" if min(known) > 0 else "below" if max(known) < 0 else "on the curve, as far as seeds tell"


def joint_lines(folder: Path, grid: Grid, stem: str) -> Iterator[str]:
    config, result = read_toml(folder / "config.toml"), json.loads((folder / "result.json").read_text())
    yield "# The robustness dial on five-domain digits\n"
    yield f"Data: {result['data']}. Domains: {', '.join(result['domains'])}."
    yield f"{len(result['clients'])} clients, {config['cohort']} drawn for each round.\n"
    yield "## Both dials of one model\n"
    yield f"Split-Mix, 8 bases of width 1/8, budgets {config['budgets']} in client order, Algorithm 4:"
    yield f"{config['rounds']} rounds, learning rate {config['lr']}, seed {config['seed']}, tracked norms.\n"
    yield f"![Clean accuracy against accuracy under attack]({stem}-joint.png)\n"
    yield grid_table(grid).to_markdown().strip() + "\n"
    yield from settings_lines(folder)
    yield "\nThe grid: `splitmix eval RUN --width 1/8 1/4 1/2 1 --robust 0 .2 .5 .8 1 --attack pgd20 --images N`,"
    yield f"where {grid['samples'] // grid['clients']} images of each client were drawn.\n"


def order_lines(joint: Path, greedy: Path) -> Iterator[str]:
    """The same weights with the most helpful base first."""
    found = {folder: json.loads((folder / "result.json").read_text()) for folder in (joint, greedy)}
    if found[joint]["weights_sha256"] != found[greedy]["weights_sha256"]:
        sys.exit(f"'{greedy}' has other weights than '{joint}'")
    natural, best = ({row["width"]: row["accuracy"] for row in found[folder]["scores"]} for folder in (joint, greedy))
    yield "Bases are mixed in their natural order, as in the paper. With all test images, at dial 0:\n"
    yield "| width | " + " | ".join(natural) + " |"
    yield "|---|" + "---:|" * len(natural)
    yield "| natural order % | " + " | ".join(percent(value) for value in natural.values()) + " |"
    yield "| greedy order % | " + " | ".join(percent(value) for value in best.values()) + " |"
    worse = [width for width in natural if best[width] < natural[width]]
    yield "\nThe greedy order is our default: it is better at narrow widths, so that further bases have less to add."
    yield f"It is worse at {', '.join(worse) or 'none'}.\n"


def only_lines(
    runs: Path, grids: Mapping[str, Grid], curves: Curves, tunings: Mapping[str, Any], stem: str
) -> Iterator[str]:
    folder = runs / f"dat-s{min(curves['dat'])}"
    config, grid, seeds = read_toml(folder / "config.toml"), one_of(grids), sorted(curves["dat"])
    width = grid["rows"][0]["width"]
    yield "## One model beside a separate one for each trade\n"
    yield f"One net of width {width} that every client trains, budgets lifted: {config['rounds']} rounds, seeds"
    yield f"{', '.join(map(str, seeds))}, tracked norms. The three differ in their objective alone.\n"
    yield from (f"- **{NAMES[kind]}**: {ABOUT[kind]}" for kind in NAMES)
    yield f"\n![The curves of all three]({stem}-only.png)\n"
    yield points_table(curves, grid).to_markdown().strip() + "\n"
    yield from summary(curves)
    yield "\nTraining is short here. With few rounds the two norms of a layer have hardly parted, so that the dial of"
    yield "dual norms spans little; compare the model above, which was trained longer.\n"
    yield "### The search behind it\n"
    yield "Each of the three got the same rates, rounds and seed; the separate models share the rate"
    yield "that was found at weight 0.5.\n"
    for kind, tuning in tunings.items():
        yield f"{NAMES[kind]}: `{tuning['command']}`\n"
        yield tuning_table(tuning).to_markdown().strip() + "\n"
    yield "### Settings\n"
    yield from settings_lines(folder)


def points_table(curves: Curves, grid: Grid) -> Table:
    """A row for each point: means over seeds, and how far it is from the separate models."""
    rows = []
    for kind, seeds in curves.items():
        found = gaps_by_seed(curves, kind)
        for point, values in zip(averaged(seeds), found, strict=True):
            told = "-" if kind == "at" else ", ".join("-" if v is None else f"{100 * v:+.1f}" for v in values)
            what = "-" if kind == "at" else verdict(values)
            rows.append([NAMES[kind], point.name, point.clean, point.attacked, told, what])
    columns = [
        Column("model", "model", number=False),
        Column("dial", "weight or dial"),
        Column("clean", "clean %", percent),
        Column("attacked", "under attack %", percent),
        Column("gap", "points over separate models, by seed"),
        Column("verdict", "so it is", number=False),
    ]
    rooms = [(row["clean_high"] - row["clean"], row["attacked_high"] - row["attacked"]) for row in grid["rows"]]
    clean, attacked = (100 * fmean(room) for room in zip(*rooms, strict=True))
    caption = (
        f"Means over {grid['clients']} clients and seeds, {grid['samples']:,} {grid['split']} images. For one seed the "
        f"95 % interval reaches {clean:.1f} points either way on clean images and {attacked:.1f} under attack. "
        f"Attack: {grid['attack']}; white box, at the dial that is served. Points over separate models: clean accuracy "
        "beyond that of the separate models of the same seed at the same accuracy under attack, on straight lines "
        "between those that none of them beats in both respects; '-': more robust than all of them."
    )
    return Table("Clean accuracy and accuracy under attack", columns, rows, caption)


def summary(curves: Curves) -> Iterator[str]:
    for kind in curves:
        first, *_, last = averaged(curves[kind])
        clean, attacked = 100 * (last.clean - first.clean), 100 * (last.attacked - first.attacked)
        yield f"- {NAMES[kind]} spans {clean:+.1f} points of clean accuracy and {attacked:+.1f} under attack."
    for kind in ("dat", "oat"):
        found = gaps_by_seed(curves, kind)
        names = [point.name for point in averaged(curves[kind])]
        told = "; ".join(f"dial {name}: {verdict(values)}" for name, values in zip(names, found, strict=True))
        yield f"- {NAMES[kind]} against the curve of the separate models: {told}."


def settings_lines(folder: Path) -> Iterator[str]:
    yield "```toml"
    yield (folder / "config.toml").read_text().strip()
    yield "```"


def one_of(grids: Mapping[str, Grid]) -> Grid:
    """Any of several grids, all of which must tell of the same images under the same attack."""
    keys = ("attack", "clients", "samples", "split", "norm")
    first, *others = ({key: grid[key] for key in keys} for grid in grids.values())
    if any(other != first for other in others):
        sys.exit(f"the grids differ in {', '.join(keys)}: they cannot be compared")
    return next(iter(grids.values()))


if __name__ == "__main__":
    main()
