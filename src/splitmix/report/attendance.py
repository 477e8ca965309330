"""Who took part in a run, who did not and why: read from the rows of `metrics.jsonl`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from splitmix.report.tables import Column, Table, human
from splitmix.runs.records import AttendanceRow, MetricRow

Try = MetricRow | AttendanceRow  # of a round: the one that counted, or one before it
SHOWN = 20  # clients in a table


def rounds(metrics: Iterable[MetricRow]) -> list[MetricRow]:
    """The rows of rounds that tell who was asked; those of older versions do not."""
    return [row for row in metrics if row["kind"] == "round" and "cohort" in row]


def tries(seen: Iterable[MetricRow]) -> list[Try]:
    """Every try of these rounds."""
    found: list[Try] = []
    for row in seen:
        found.append(row)
        found.extend(row.get("repeated", []))
    return found


def summary(metrics: Iterable[MetricRow]) -> str:
    """In a sentence, who failed; nothing if nobody did."""
    seen = rounds(metrics)
    tried = tries(seen)
    counts = {
        "answer did not come": sum(len(one.get("missing", [])) for one in tried),
        "update was rejected": sum(len(one.get("rejected", [])) for one in tried),
        "update was shortened": sum(len(one.get("clipped", [])) for one in seen),
        "round was repeated": sum(len(one.get("repeated", [])) for one in seen),
    }
    told = [_counted(what, count) for what, count in counts.items() if count]
    return f"In {len(seen)} round{'s' * (len(seen) > 1)}, {', '.join(told)}." if told else ""


def turnout(metrics: Iterable[MetricRow]) -> str:
    """In a sentence, how many clients took part at least once, and the bytes each way; nothing if no row tells."""
    seen = rounds(metrics)
    down, up = sum(one.get("bytes_down", 0) for one in seen), sum(one.get("bytes_up", 0) for one in seen)
    if not down:
        return ""
    asked = {client for one in seen for client in one.get("cohort", [])}
    came = {client for one in seen for client in {*one.get("cohort", [])} - _absent(one)}
    return (
        f"In {len(seen)} round{'s' * (len(seen) > 1)}, {len(came)} of the {len(asked)} clients that were asked took "
        f"part. {human(down)}B of tensors went to clients, {human(up)}B came back."
    )


def failures(metrics: Iterable[MetricRow]) -> Table | None:
    """How often each client failed, and why, most often first; None if nobody did."""
    seen = rounds(metrics)
    why: dict[int, Counter[str]] = {}
    totals = {kind: Counter[int]() for kind in ("missing", "rejected", "clipped")}
    for tried in tries(seen):
        for kind, client, reason in _failed(tried):
            totals[kind][client] += 1
            why.setdefault(client, Counter())[reason] += 1
    if not why:
        return None
    asked = Counter(client for one in seen for client in one.get("cohort", []))
    worst = sorted(why, key=lambda client: (-why[client].total(), client))
    rows = [
        [client, asked[client], *(total[client] for total in totals.values()), _reasons(why[client])]
        for client in worst[:SHOWN]
    ]
    more = f" {len(worst) - SHOWN} more clients failed less often." if len(worst) > SHOWN else ""
    columns = [
        *(Column("client", "client"), Column("rounds", "rounds asked"), Column("missing", "missing")),
        *(Column("rejected", "rejected"), Column("shortened", "shortened"), Column("why", "why", number=False)),
    ]
    return Table("Who failed", columns, rows, summary(metrics) + more)


def _absent(tried: Try) -> set[int]:
    return {one["client"] for one in (*tried.get("missing", []), *tried.get("rejected", []))}


def _failed(tried: Try) -> Iterator[tuple[str, int, str]]:
    yield from (("missing", one["client"], one["reason"]) for one in tried.get("missing", []))
    yield from (("rejected", one["client"], one["kind"]) for one in tried.get("rejected", []))
    yield from (("clipped", client, "too far") for client in tried.get("clipped", []))


def _reasons(found: Mapping[str, int]) -> str:
    return ", ".join(f"{reason[:60]} ({count})" if count > 1 else reason[:60] for reason, count in found.items())


def _counted(what: str, count: int) -> str:
    """
    >>> _counted("round was repeated", 1), _counted("answer did not come", 2), _counted("round was repeated", 2)
    ('1 round was repeated', '2 answers did not come', '2 rounds were repeated')
    """
    noun, verb, rest = what.split(" ", 2)
    return f"{count} {what}" if count == 1 else f"{count} {noun}s {verb.replace('was', 'were')} {rest}"
