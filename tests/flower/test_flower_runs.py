"""Whole runs over a grid of nodes: the same folders as simulated runs; no processes."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')


from helpers.flower_grid import LocalGrid
from helpers.tiny_task import SETTINGS, stripes, stripes_folder
from splitmix.core.errors import UserError
from splitmix.flower.forking import SuperLink, be_node
from splitmix.flower.node import NodeConfig, app
from splitmix.flower.server import Order, run_on_grid
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stripes_folder(tmp_path_factory.mktemp("data") / "own")


def stripes_config(folder, **more):
    return make_config({**SETTINGS, "task": str(folder), "rounds": 2, "order": "validation", **more})


def stripes_grid(folder, clients=4, **more):
    budgets = ["1/4", "1/4", "1/2", "1"]
    about = {"num-partitions": clients, "task": str(folder), **more}
    return LocalGrid(app, {50 + k: {"partition-id": k, "budget": budgets[k], **about} for k in range(clients)})


@pytest.mark.parametrize("method", ["splitmix", "heterofl", "sheterofl", {"name": "fjord"}])
@pytest.mark.slow
def test_a_run_on_a_grid_leaves_what_a_simulated_run_leaves(folder, tmp_path, method):
    config = stripes_config(folder, method=method)
    run_on_grid(stripes_grid(folder), Order(config, tmp_path / "grid", wait=10))
    run_in_folder(set_up(config), tmp_path / "simulated")
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("grid", "simulated"))
    for key in ("weights_sha256", "bases", "best_round", "clients", "domains", "task"):
        assert ours[key] == theirs[key], key
    assert [row["accuracy"] for row in ours["scores"]] == [row["accuracy"] for row in theirs["scores"]]


@pytest.mark.parametrize("method", ["splitmix", "heterofl"])
@pytest.mark.slow
def test_nodes_name_their_budgets_and_the_record_of_the_run_tells_them(folder, tmp_path, method):
    grid = stripes_grid(folder)
    grid.nodes[51]["budget"] = "3/4"
    config = stripes_config(folder, method=method, order="natural", budgets="1/4 1")
    run_on_grid(grid, Order(config, tmp_path / "grid", wait=10))
    told = make_config(read_toml(tmp_path / "grid" / "config.toml"))
    assert told.budgets == {"name": "each", "widths": ["1/4", "3/4", "1/2", "1"]}
    run_in_folder(set_up(told), tmp_path / "simulated")
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("grid", "simulated"))
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert ours["clients"] == theirs["clients"]
    assert run_on_grid(grid, Order(config, tmp_path / "grid", wait=10, resume=True)) is None  # it is finished


@pytest.mark.slow
def test_a_run_resumes_with_other_nodes_and_remembers_who_is_away(folder, tmp_path):
    config, grid = stripes_config(folder, rounds=3), stripes_grid(folder)

    class Stop:
        def round(self, row):
            if row["round"] == 1:
                raise KeyboardInterrupt

        begin = scores = note = lambda self, *_: None
        end = lambda self: None  # noqa: E731

    with pytest.raises(KeyboardInterrupt):
        run_on_grid(grid, Order(config, tmp_path / "run", wait=10), [Stop()])
    again = stripes_grid(folder)
    away = again.nodes.pop(50)
    run_on_grid(again, Order(config, tmp_path / "run", wait=0.1, resume=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "round"][-1]
    assert away
    assert last["cohort"] == [0, 1, 2, 3]
    assert last["missing"] == [{"client": 0, "reason": "not connected"}]


@pytest.mark.slow
def test_nodes_bring_images_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = {}
    for client in range(3):
        x, y = stripes(40 + 10 * client, seed=client)
        (tmp_path / f"site{client}").mkdir()
        np.savez(tmp_path / f"site{client}" / "images.npz", x=x, y=y)
        nodes[client] = {"partition-id": client, "data": str(tmp_path / f"site{client}"), "budget": "1/2"}
    nodes[2] = {"partition-id": 2, "loader": "helpers.tiny_task:stripes", "budget": "1"}
    config = make_config({**SETTINGS, "task": "nodes", "clients": 3, "rounds": 2, "order": "natural"})
    grid = LocalGrid(app, nodes)
    outcome = run_on_grid(grid, Order(config, tmp_path / "run", wait=10))
    told = [(row["domain"], row["train"] + row["val"] + row["test"]) for row in outcome.result["clients"]]
    assert told == [("images", 40), ("images", 50), ("stripes", 60)]
    for _, content in grid.sent:  # the server knows shapes and counts, and sends what it knows
        assert set(content.config_records) == {"about"}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"task": "mini"}, "has no partition-id"),
        ({"partition-id": 0}, "names no images"),
        ({"partition-id": 0, "task": "mini", "data": "x"}, "names task and data"),
        ({"partition-id": 0, "task": "mini", "colour": 1}, "unknown key 'colour'"),
    ],
)
def test_a_node_says_which_client_it_is_and_where_its_images_are(node, why):
    with pytest.raises(UserError, match=why):
        NodeConfig.read(node)


@pytest.mark.parametrize(
    ("more", "why"),
    [({"clients": None}, "the number of clients must be given"), ({"norm": "local"}, "norm 'local' keeps norms")],
)
def test_what_cannot_be_done_on_flower_is_said_first(folder, tmp_path, more, why):
    config = make_config({key: value for key, value in {**SETTINGS, "task": str(folder), **more}.items() if value})
    with pytest.raises(UserError, match=why):
        run_on_grid(stripes_grid(folder), Order(config, tmp_path / "run", wait=1))


def test_a_node_elsewhere_than_on_linux_is_pointed_to_flowers_own(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="flower-supernode"):
        be_node({"partition-id": 0, "num-partitions": 4, "task": "mini"}, SuperLink("127.0.0.1:9"))
