"""Clean accuracy against accuracy under attack: one model with a dial beside a separate model for each trade.

python benchmarks/tradeoff.py    draws results/robustness-joint.png and robustness-only.png from their rows
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from evidence import RESULTS, Row, by_width, distinct, paired, read_rows, where

from splitmix.report.drawing import save
from splitmix.report.grid_page import TradeoffPoint, attack_tradeoff

NAMES = {"at": "FedAvg+AT", "oat": "FedAvg+OAT", "dat": "Split-Mix+DAT", "drawn": "Split-Mix+DAT, drawn dials"}
Curve = list[TradeoffPoint]
MEASURES = ("clean", "attacked")
LEVELS = 1000  # at which curves are compared


def main() -> None:
    rows = read_rows("robustness")
    joint, only = where(rows, part="recommended"), where(rows, part="one net")
    widths = {f"width {width}": averaged(joint, width=width) for width in distinct(joint, "width")}
    title = "One model, both dials: each width from accurate (dial 0) to robust (dial 1)"
    one = attack_tradeoff(widths, joint[0]["attack"], title, "mean over seeds; a point for each dial")
    title = "One model with a dial beside a separate model for each trade"
    kinds = {name: averaged(only, kind=kind) for kind, name in NAMES.items() if where(only, kind=kind)}
    many = attack_tradeoff(kinds, only[0]["attack"], title, "mean over seeds; a point for each weight or dial")
    for name, picture in {"joint": one, "only": many}.items():
        save(picture, RESULTS / f"robustness-{name}.png")


def curve(rows: Iterable[Row]) -> Curve:
    """The points of one model or of one kind and seed, less robust first."""
    points = [TradeoffPoint(row.get("point", f"{row['robust']:g}"), row["clean"], row["attacked"]) for row in rows]
    return sorted(points, key=lambda point: float(point.name))


def averaged(rows: Sequence[Row], **wanted: str) -> Curve:
    """A curve over seeds, point by point."""
    curves = [curve(where(rows, seed=seed, **wanted)) for seed in distinct(rows, "seed", **wanted)]
    return [
        TradeoffPoint(points[0].name, fmean(p.clean for p in points), fmean(p.attacked for p in points))
        for points in zip(*curves, strict=True)
    ]


def gaps(rows: Sequence[Row], kind: str) -> list[tuple[float | None, ...]]:
    """For each point of a kind and each seed: clean accuracy beyond that of the separate models of the same seed at the
    same accuracy under attack; None where the point is more robust than all of them. Seeds without any are left out."""
    found, separate = [], distinct(rows, "seed", kind="at")
    for seed in (seed for seed in distinct(rows, "seed", kind=kind) if seed in separate):
        front = undominated(curve(where(rows, kind="at", seed=seed)))
        found.append([gap(point, front) for point in curve(where(rows, kind=kind, seed=seed))])
    return list(zip(*found, strict=True))


def undominated(separate: Curve) -> Curve:
    """Those that no other beats in both, more robust and less accurate from one to the next."""
    front: Curve = []
    for point in sorted(separate, key=lambda point: (-point.attacked, -point.clean)):
        if not front or point.clean > front[-1].clean:
            front.append(point)
    return front[::-1]


def gap(point: TradeoffPoint, front: Sequence[TradeoffPoint]) -> float | None:
    """How far a point is above the straight lines between the points of a front.

    >>> front = [TradeoffPoint("0", 0.8, 0.4), TradeoffPoint("1", 0.6, 0.6)]
    >>> round(gap(TradeoffPoint("", 0.75, 0.5), front), 3), gap(TradeoffPoint("", 0.75, 0.7), front)
    (0.05, None)
    """
    clean = clean_at(front, point.attacked)
    return None if clean is None else point.clean - clean


def clean_at(front: Sequence[TradeoffPoint], attacked: float) -> float | None:
    """The clean accuracy of a front at some accuracy under attack, on straight lines; None beyond its end."""
    if attacked > front[-1].attacked:
        return None
    place = bisect_right([other.attacked for other in front], attacked)
    if place in (0, len(front)):  # less robust than all of them, or as robust as the most robust
        return front[min(place, len(front) - 1)].clean
    one, two = front[place - 1], front[place]
    share = (attacked - one.attacked) / (two.attacked - one.attacked)
    return one.clean + share * (two.clean - one.clean)


def covered(points: Curve, separate: Curve) -> float:
    """Over how much of what separate models span under attack one model is on or above their front.

    >>> separate = [TradeoffPoint("0", 0.8, 0.4), TradeoffPoint("1", 0.6, 0.6)]
    >>> covered([TradeoffPoint("", 0.75, 0.5)], separate)  # at most half as robust: above from 0.45 to 0.5
    0.25
    """
    front, own = undominated(separate), undominated(points)
    low, high = front[0].attacked, front[-1].attacked
    levels = [low + (high - low) * (place + 0.5) / LEVELS for place in range(LEVELS)]
    pairs = [(clean_at(own, level), clean_at(front, level)) for level in levels]
    return sum(one is not None and other is not None and one >= other for one, other in pairs) / LEVELS


def wrong_steps(rows: Sequence[Row]) -> tuple[int, list[str]]:
    """How many steps of the dial or the width a model has, and those that go the wrong way beyond chance.

    A higher dial is to be less accurate and more robust, a wider model to be better in both.
    """
    dials, widths = sorted(distinct(rows, "robust")), by_width(rows)
    dial_steps = [({"width": w, "robust": a}, {"width": w, "robust": b}) for w in widths for a, b in pairwise(dials)]
    width_steps = [({"width": a, "robust": d}, {"width": b, "robust": d}) for d in dials for a, b in pairwise(widths)]
    steps = [(one, other, what, -1 if what == "clean" else 1) for one, other in dial_steps for what in MEASURES]
    steps += [(one, other, what, 1) for one, other in width_steps for what in MEASURES]
    wrong = [
        "{} from width {width} at dial {robust:g} to width {} at dial {:g}".format(what, *other.values(), **one)
        for one, other, what, sign in steps
        if sign * (change := paired(where(rows, **other), where(rows, **one), what)).low < 0 > sign * change.high
    ]
    return len(steps), wrong


def verdict(found: Sequence[float | None]) -> str:
    """What the gaps of all seeds say of a point."""
    known = [value for value in found if value is not None]
    if not known:
        return "more robust than any separate model"
    if len(known) < len(found):
        return "at the robust end of the curve"
    return "above" if min(known) > 0 else "below" if max(known) < 0 else "on the curve, as far as seeds tell"


if __name__ == "__main__":
    main()
