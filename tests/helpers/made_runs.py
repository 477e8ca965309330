"""Finished runs made by hand, for tests of what compares them."""

import json

from splitmix.compare.standings import read_method_runs

WIDTHS = ("1/8", "1/4", "1/2", "1")
DOMAINS = ("pen", "sign")
COVERAGE = {"domains": {"pen": 0.5, "sign": 1.0}, "slices": ["1/8", "1"], "reached": {"pen": [1, 0.4], "sign": [1, 1]}}
COSTS = {**{key: [400, 800, 1600, 3200] for key in ("down", "up", "macs", "memory")}, "coverage": COVERAGE}


def as_toml(method):
    if isinstance(method, str):
        return json.dumps(method)
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in method.items()) + "}"


def fake_run(folder, method="splitmix", *, seed=1, accuracy=0.8, widths=WIDTHS, domains=DOMAINS, **more):
    """A finished run of 20 rounds: `accuracy` at the narrowest width, two points more at each wider one."""
    folder.mkdir(parents=True)
    reached = {width: accuracy + 0.02 * i for i, width in enumerate(widths)}
    config = f'task = "mini"\nmethod = {as_toml(method)}\nlr = 0.1\natom = "1/8"\nseed = {seed}\n'
    (folder / "config.toml").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fake_metrics(reached)))
    (folder / "costs.json").write_text(json.dumps(COSTS))
    clients = [
        {"client": i, "domain": domains[i % 2], "budget": width, "train": 50, "test": 70}
        for i, width in enumerate(WIDTHS)
    ]
    result = {
        **{"schema": 1, "task": "mini", "seed": seed, "rounds": 20, "seconds": 40.0, "norm_text": "fixed"},
        "method": method if isinstance(method, str) else method["name"],
        "domains": list(domains),
        "clients": clients,
        "scores": [fake_score(i, width, value, domains) for i, (width, value) in enumerate(reached.items())],
        **more,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def fake_metrics(reached):
    for round in range(20):
        yield {"kind": "round", "round": round, "clients": 4, "parameters": 4000, "seconds": 2.0}
    for round in range(4, 20, 5):
        for width, value in reached.items():
            accuracy = value * (round + 1) / 20
            yield {"kind": "score", "round": round, "split": "val", "width": width, "accuracy": accuracy}


def fake_score(i, width, value, domains):
    return {
        **{"width": width, "bases": 1, "norm": "client", "split": "test", "accuracy": value},
        "domains": {domain: value - 0.01 * j for j, domain in enumerate(domains)},
        "clients": [value - 0.02, value, value, value + 0.02],
        **{"parameters": 1000 * (i + 1), "macs": 10_000 * (i + 1), "ms": 0.5},
    }


def make_entry(root, label, *accuracies, method=None, **settings):
    """An entry whose seeds reach the given accuracies at the narrowest width."""
    folders = {}
    for seed, accuracy in enumerate(accuracies, start=1):
        folders[seed] = root / f"run{len(list(root.iterdir()))}"
        fake_run(folders[seed], method or label, seed=seed, accuracy=accuracy, **settings)
    return read_method_runs(label, folders)
