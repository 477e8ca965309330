"""Whole runs over a grid of nodes: the same folders as simulated runs; no processes."""

import math
import runpy
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason='Flower is not installed; pip install "splitmix[flower]"')

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from helpers.flower_grid import LocalGrid
from helpers.flower_nodes import toy_fleet, toy_member
from helpers.picture_folders import write_tree
from helpers.runs import LEVERS
from helpers.small_task import SETTINGS, striped_images
from splitmix.core.errors import UserError
from splitmix.core.width import Width
from splitmix.flower.fleet import Fleet
from splitmix.flower.node import NodeConfig, app, client_app, equip, introduce
from splitmix.flower.server import ROSTER, Order, read_roster, remote_setup, roster_text, run_on_grid
from splitmix.flower.submit import write_app
from splitmix.flower.wire import Agreement
from splitmix.runs.config import make_config, read_toml
from splitmix.runs.records import read_metrics, read_result
from splitmix.runs.run import run_in_folder
from splitmix.runs.setup import set_up

pytestmark = pytest.mark.usefixtures("hurried")
BUDGETS = ["1/4", "3/4", "1/2", "1"]


def stripes_config(folder, **more):
    return make_config({**SETTINGS, "task": folder, "rounds": 2, "order": "validation", **more})


def stripes_grid(folder):
    about = {"num-partitions": 4, "task": folder}
    return LocalGrid(app, {50 + k: {"partition-id": k, "budget": BUDGETS[k], **about} for k in range(4)})


@pytest.mark.parametrize(
    "changed",
    [
        *({"method": method} for method in ("splitmix", "heterofl", "sheterofl", {"name": "fjord"})),
        {"method": LEVERS, "server": "momentum", "average": 1.0, "optimizer": "adam", "proximal": 0.1},
        {"objective": {"name": "adversarial", "steps": 2}, "norm": "post", "norm_rate": 10.0},
        {"statistics": "chosen", "mix": "fitted"},
    ],
)
@pytest.mark.slow
def test_a_run_on_nodes_that_name_their_budgets_leaves_what_a_simulated_run_leaves(own, tmp_path, changed):
    told = on_nodes_and_simulated(own, tmp_path, **changed, budgets="1/4 1")
    assert told.budgets == {"name": "each", "widths": BUDGETS}


@pytest.mark.slow
def test_a_private_run_on_nodes_has_the_weights_and_the_epsilon_of_a_simulated_one(own, tmp_path):
    pytest.importorskip("dp_accounting", reason='pip install "splitmix[privacy]"')
    on_nodes_and_simulated(own, tmp_path, privacy={"clip": 0.5, "noise": 2.0}, order="natural", cohort=2, rounds=3)
    ours, theirs = (
        [row["epsilon"] for row in read_metrics(tmp_path / name) if row["kind"] == "round"]
        for name in ("grid", "simulated")
    )
    assert ours == theirs
    assert [0 < epsilon < math.inf for epsilon in ours] == [True] * 3


def on_nodes_and_simulated(own, tmp_path, **changed):
    """Have the same run done on nodes and in the simulator, hold their results equal, and give the settings."""
    run_on_grid(stripes_grid(own), Order(stripes_config(own, **changed), tmp_path / "grid", wait=600))
    told = make_config(read_toml(tmp_path / "grid" / "config.toml"))
    run_in_folder(set_up(told), tmp_path / "simulated")
    ours, theirs = (read_result(tmp_path / name) for name in ("grid", "simulated"))
    for key in ("weights_sha256", "bases", "best_round", "clients", "domains", "task"):
        assert ours[key] == theirs[key], key
    assert [row["accuracy"] for row in ours["scores"]] == [row["accuracy"] for row in theirs["scores"]]
    return told


@pytest.mark.slow
def test_a_run_resumes_with_other_nodes_and_remembers_who_is_away(own, tmp_path):
    config = stripes_config(own, rounds=3, order="natural", eval_every=3)

    class Stop:
        def round(self, row):
            if row["round"] == 1:
                raise KeyboardInterrupt

        begin = scores = note = lambda self, *_: None
        end = lambda self: None  # noqa: E731

    with pytest.raises(KeyboardInterrupt):
        run_on_grid(stripes_grid(own), Order(config, tmp_path / "run", wait=600), [Stop()])
    again = stripes_grid(own)
    del again.nodes[50]
    order = Order(config, tmp_path / "run", resume=True, wait=0)
    run_on_grid(again, order)
    last = [row for row in read_metrics(tmp_path / "run") if row["kind"] == "round"][-1]
    assert last["cohort"] == [0, 1, 2, 3]
    assert last["missing"] == [{"client": 0, "reason": "not connected"}]
    assert run_on_grid(again, order) is None  # it is finished


@pytest.mark.slow
def test_nodes_bring_images_of_their_own(tmp_path):
    nodes = {}
    for client in range(2):
        x, y = striped_images(40 + 10 * client, seed=client)
        (tmp_path / f"site{client}").mkdir()
        np.savez(tmp_path / f"site{client}" / "images.npz", x=x, y=y)
        nodes[client] = {"partition-id": client, "data": str(tmp_path / f"site{client}"), "budget": "1/2"}
    nodes[2] = {"partition-id": 2, "loader": "helpers.small_task:striped_images", "budget": "1"}
    config = make_config({**SETTINGS, "task": "nodes", "clients": 3, "rounds": 1, "order": "natural"})
    grid = LocalGrid(app, nodes)
    run_on_grid(grid, Order(config, tmp_path / "run", wait=600))
    clients = read_result(tmp_path / "run")["clients"]
    told = [(row["domain"], row["train"] + row["val"] + row["test"]) for row in clients]
    assert told == [("images", 40), ("images", 50), ("striped_images", 60)]
    for _, content in grid.sent:  # the server knows shapes and counts, and sends what it knows
        assert set(content.config_records) == {"about"}


def test_a_node_says_what_its_pictures_or_table_are_and_reads_them_as_the_run_says(tmp_path):
    agreed = Agreement(make_config({"task": "nodes", "clients": 2, "data": {"size": 28}})).text()
    pets = write_tree(tmp_path / "pets")
    said = introduce(agreed, {"partition-id": 0, "data": str(pets)})
    assert (said.class_names, said.kind, said.image, said.net) == (("cat", "dog"), "image", (28, 28, 3), "digit")
    table = tmp_path / "trees.csv"
    table.write_text("size,species\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(40)))
    agreed = Agreement(make_config({"task": "nodes", "clients": 2, "data": {"label": "species"}})).text()
    said = introduce(agreed, {"partition-id": 0, "data": str(table)})
    assert (said.class_names, said.kind, said.image, said.net) == (("a", "b"), "features", (1,), None)
    NodeConfig.read({"partition-id": 0, "data": str(table)}).read_ahead()  # leaves the table to the run


@pytest.mark.parametrize("net", ["this:x", "builtins:print", "no_such_net"])
def test_a_node_cannot_have_the_server_or_another_node_import_anything(own, tmp_path, net):
    config = make_config({"task": own, "clients": 4, "budgets": "1/8"})
    members = [replace(toy_member(client), image=(28, 28, 3), budget=None) for client in range(4)]
    grid = LocalGrid(
        client_app(lambda text, node: replace(members[node["at"]], **node.get("says", {})), None),
        {50: {"at": 0, "says": {"net": net}}, **{60 + k: {"at": k} for k in range(1, 4)}},
    )
    sys.modules.pop("this", None)
    fleet = Fleet(grid, Agreement(config).text(), 4, Width(1, 8))
    fleet.gather(0)
    assert remote_setup(config, fleet).task.net == "digit"
    with pytest.raises(UserError, match="is none of"):
        equip(Agreement(config, 10, net).text(), {"partition-id": 0, "task": own})
    (tmp_path / ROSTER).write_text(roster_text({0: replace(members[0], net=net)}))
    assert read_roster(tmp_path, 4) == {}
    assert "this" not in sys.modules


def test_a_run_whose_nodes_name_no_net_asks_for_one(own):
    config = make_config({"task": own, "clients": 4})
    fleet, grid, _ = toy_fleet()
    for node in grid.nodes.values():
        node["says"] = {"net": None}
    fleet.gather(0)
    with pytest.raises(UserError, match="no node names a net of the table"):
        remote_setup(config, fleet)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"task": "mini"}, "has no partition-id"),
        ({"partition-id": 0}, "names no images"),
        ({"partition-id": 0, "task": "mini", "data": "x"}, "names task and data"),
        ({"partition-id": 0, "task": "mini", "colour": 1}, "unknown key 'colour'"),
        ({"partition-id": "first", "task": "mini"}, "partition-id of the node is 'first'"),
    ],
)
def test_a_node_says_which_client_it_is_and_where_its_images_are(node, why):
    with pytest.raises(UserError, match=why):
        NodeConfig.read(node)


@pytest.mark.parametrize(
    ("more", "why"),
    [({"clients": None}, "the number of clients must be given"), ({"norm": "local"}, "norm 'local' keeps norms")],
)
def test_what_cannot_be_done_on_flower_is_said_first(own, tmp_path, more, why):
    config = make_config({key: value for key, value in {**SETTINGS, "task": own, **more}.items() if value})
    with pytest.raises(UserError, match=why):
        run_on_grid(stripes_grid(own), Order(config, tmp_path / "run"))


@pytest.mark.slow  # imports all of Flower
def test_a_node_elsewhere_than_on_linux_is_pointed_to_flowers_own(monkeypatch):
    from splitmix.flower.forking import SuperLink, be_node

    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="flower-supernode"):
        be_node({"partition-id": 0, "num-partitions": 4, "task": "mini"}, SuperLink("127.0.0.1:9"))


def test_the_app_that_is_sent_to_a_superlink_has_a_server_a_client_and_the_order(own, tmp_path):
    order = Order(stripes_config(own), tmp_path / 'a "run"\x7f', command="splitmix train ü")
    write_app(tmp_path, order)
    sent = read_toml(tmp_path / "pyproject.toml")["tool"]["flwr"]["app"]["config"]["order"]
    assert Order.read(sent) == order
    assert isinstance(runpy.run_path(str(tmp_path / "client_app.py"))["app"], ClientApp)
    assert isinstance(runpy.run_path(str(tmp_path / "server_app.py"))["app"], ServerApp)
