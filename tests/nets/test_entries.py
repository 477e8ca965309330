"""What of a user's net are its weights: each once, whole numbers not, and those that are frozen stay as they are."""

import numpy as np
import pytest
import torch

import splitmix
from helpers.bundles import own_bundle
from helpers.plain_nets import IMAGE, OddEntries
from splitmix.api.train import Trained
from splitmix.core.net import Net
from splitmix.core.types import Layout
from splitmix.core.width import Width
from splitmix.report.tables import width_table

NARROW = Width(1, 4)


def test_a_weight_in_two_places_is_one_entry_that_stands_in_both():
    net = Net(OddEntries)
    assert "one.weight" in net.shapes(NARROW)
    assert "other.weight" not in net.shapes(NARROW)
    start = net.init(Layout(1, NARROW), 0)
    net.run(NARROW, start, torch.rand(2, *IMAGE))
    module = net.template(NARROW).module
    assert module.other.weight is module.one.weight


def test_whole_numbers_are_as_the_net_makes_them():
    assert "places" not in Net(OddEntries).shapes(NARROW)


def test_whole_numbers_go_where_the_samples_are():
    net = Net(OddEntries)
    start = {name: value.to("meta") for name, value in net.init(Layout(1, NARROW), 0).items()}
    assert net.run(NARROW, start, torch.rand(2, *IMAGE, device="meta")).device.type == "meta"


def test_what_is_frozen_is_no_parameter_to_learn():
    net = Net(OddEntries)
    assert net.shapes(NARROW).keys() - net.parameter_names(NARROW) == {"row.weight"}


def bright_task():
    """Classes by brightness."""
    labels = np.arange(90) % 3
    images = np.random.default_rng(0).random((90, 8, 8, 3)) * 0.4 + labels[:, None, None, None] * 0.2
    return splitmix.task_from_arrays({"here": (images, labels)}, clients=2)


@pytest.fixture(scope="module")
def model() -> Trained:
    return splitmix.train(
        bright_task(), OddEntries, rounds=2, atom="1/4", budgets="1/2 1", workers=1, progress=False, eval_every=2
    )


@pytest.mark.slow
def test_a_run_leaves_what_is_frozen(model):
    start = model.net.init(model.setup.method.layout, model.setup.config.seed)
    moved = {name for name, value in start.items() if not torch.equal(model.weights[name], value)}
    assert moved == model.net.parameter_names(NARROW)


@pytest.mark.slow
@pytest.mark.parametrize("width", ["1/4", 1])
def test_a_module_has_the_weights_in_all_their_places(model, width):
    x = torch.rand(4, 8, 8, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.module(width)(x.permute(0, 3, 1, 2)), model(x, width), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_where_no_norm_has_statistics_the_table_names_none(model):
    table = width_table(model.result)
    assert [column.heading for column in table.columns[:4]] == ["width", "bases", "accuracy %", "here %"]
    assert "Norms use no statistics, as the net has no batch norm layers." in table.caption
    assert "chosen_by" not in model.result


@pytest.mark.slow
def test_such_a_net_is_bundled(tmp_path):
    pytest.importorskip("onnxruntime", reason="ONNX Runtime checks the graph")
    assert (
        own_bundle(tmp_path / "odd", OddEntries, IMAGE).manifest.graph.entries.keys()
        == Net(OddEntries).shapes(NARROW).keys()
    )
