"""The record `costs.json` of a run: what each client spends over it, and which data reaches which parameters."""

from pathlib import Path

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from splitmix.compare.costs import account_of, profiles_of, run_costs
from splitmix.compare.coverage import coverage
from splitmix.runs.records import DamagedError, parse_record, write_record
from splitmix.runs.setup import Setup


class ReachedShares(TypedDict):
    """The share of the parameters that each domain's data trained: of all, and of each slice."""

    domains: dict[str, float]
    slices: list[str]
    reached: dict[str, list[float]]


class StoredCosts(TypedDict):
    """The content of `costs.json`: bytes and MACs of each client over the whole run, and what its data reached."""

    down: list[int]
    up: list[int]
    macs: list[int]
    memory: list[int]
    coverage: ReachedShares


def costs_of(setup: Setup) -> StoredCosts:
    """Count what each client spends over the run, and what its data reaches; nothing is trained."""
    account, profiles = account_of(setup), profiles_of(setup)
    spent = run_costs(account, profiles, setup.how)
    each = [spent[client] for client in sorted(spent)]
    found = coverage(account, profiles, setup.how, setup.domains)
    return {
        "down": [client.down for client in each],
        "up": [client.up for client in each],
        "macs": [client.macs for client in each],
        "memory": [client.memory for client in each],
        "coverage": {
            "domains": dict(found.domains),
            "slices": list(found.slices),
            "reached": {domain: list(shares) for domain, shares in found.reached.items()},
        },
    }


def read_costs(folder: Path) -> StoredCosts | None:
    """What a run costs, if it was counted and can be read."""
    try:
        return parse_record((folder / "costs.json").read_bytes(), StoredCosts)
    except (OSError, DamagedError):
        return None


def write_costs(folder: Path, costs: StoredCosts) -> None:
    """Keep what a run costs beside it."""
    write_record(folder / "costs.json", dict(costs), indent=None)
