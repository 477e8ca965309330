"""What can be done with a trained model: saved and loaded, used as a plain module, logged, reported and looked at."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import splitmix
from helpers.plain_nets import group_norm_net, resnet
from helpers.small_task import SETTINGS, small_folder, small_task, striped_images
from helpers.toys import Tiny, plain_build
from splitmix.cli import main
from splitmix.core.errors import UserError
from splitmix.core.net import Net
from splitmix.nets import NETS
from splitmix.runs.config import make_config
from splitmix.runtime.bundle import Bundle

pytestmark = pytest.mark.slow  # whole runs
QUICK = {"rounds": 2, "atom": "1/4", "budgets": "1/2 1", "workers": 1, "progress": False, "eval_every": 2}


def bright_task(**settings):
    """Classes by brightness, in colour."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = rng.random((90, 8, 8, 3)) * 0.4 + labels[:, None, None, None] * 0.2
    return splitmix.task_from_arrays({"here": (images, labels)}, clients=2, **settings)


X = torch.rand(5, 8, 8, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def dialled(told):
    """A plain ResNet with a dial."""
    objective = {"name": "adversarial", "steps": 1}
    return splitmix.train(bright_task(), resnet, objective=objective, on_round=told.append, **QUICK)


@pytest.fixture(scope="module")
def own():
    return splitmix.train(bright_task(), group_norm_net, **QUICK)


# --- as a plain module ---


@pytest.mark.parametrize("robust", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("width", ["1/4", "3/4"])
def test_a_module_is_the_model_at_a_width_and_a_dial(dialled, width, robust):
    module = dialled.module(width, robust)
    assert not module.training
    torch.testing.assert_close(module(X.permute(0, 3, 1, 2)), dialled(X, width, robust), rtol=1e-4, atol=1e-5)


def test_a_module_has_nothing_of_ours_in_its_bases(dialled):
    assert type(dialled.module("1/4", 0.5)) is type(resnet(1))
    assert dialled.module("1/4").state_dict().keys() == resnet(1).state_dict().keys()


@pytest.mark.parametrize("method", ["splitmix", "fedavg", "heterofl"])
@pytest.mark.parametrize("build", [Tiny, plain_build])
def test_every_method_gives_a_module(build, method):
    settings = {**SETTINGS, "rounds": 1, "method": method, "budgets": "1/4 1"}
    settings = {key: value for key, value in settings.items() if key not in ("net", "clients")}
    model = splitmix.train(small_task(), build, workers=1, progress=False, **settings)
    x, _ = striped_images(6, seed=9)
    module = model.module(model.widths[-1])
    images = torch.from_numpy(x).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(module(images), model(x, model.widths[-1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [None, lambda width: nn.Linear(3, 2)])
def test_a_module_of_a_table_takes_features_as_they_stand_there(build, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3)) * [1, 1e-3, 10] + [0, 5000, 1]
    rows = [[*map(repr, map(float, row)), "ab"[int(row[0] > 0)]] for row in x]
    (tmp_path / "t.csv").write_text("\n".join(map(",".join, [["p", "q", "r", "label"], *rows])))
    model = splitmix.train(tmp_path / "t.csv", build, clients=2, **QUICK)
    module = model.module()
    torch.testing.assert_close(module(torch.from_numpy(x)), model(x), rtol=1e-4, atol=1e-5)
    assert model(x).std(0).min() > 0.01  # and the numbers tell
    assert "mean" in module.state_dict()


def test_the_widest_is_meant_where_no_width_is_given():
    model = splitmix.train(bright_task(), group_norm_net, **{**QUICK, "budgets": "1/4 1/2"})
    assert torch.equal(model(X), model(X, "1/2"))
    assert model.predict(X).mean_bases == 2
    assert len(model.module().bases) == 2


def test_a_module_can_be_exported_and_saved(own, tmp_path):
    module, x = own.module("1/2"), X.permute(0, 3, 1, 2)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), module(x))
    torch.save(module.state_dict(), tmp_path / "net.pt")
    other = splitmix.train(bright_task(), group_norm_net, **{**QUICK, "seed": 2, "rounds": 1}).module("1/2")
    other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(other(x), module(x))


def test_norms_that_stayed_with_the_clients_make_no_module():
    model = splitmix.train(bright_task(), resnet, norm="local", **QUICK)
    with pytest.raises(UserError, match=r"stayed with its clients, .* train with norm=post"):
        model.module()


def test_without_a_dial_robust_is_refused(own):
    for call in (own.module, lambda robust: own.predict(X, robust=robust), lambda robust: own(X, 1, robust)):
        with pytest.raises(UserError, match="no robustness dial"):
            call(robust=0.5)


# --- saved and loaded ---


def test_a_saved_run_is_loaded_with_its_net_and_task(dialled, tmp_path):
    again = splitmix.load(dialled.save(tmp_path / "run"), build=resnet, task=bright_task())
    assert again.result == dialled.result
    assert again.metrics == dialled.metrics
    assert torch.equal(again(X, "1/2", 0.5), dialled(X, "1/2", 0.5))
    assert again.save(tmp_path / "run") == tmp_path / "run"


def test_another_run_is_not_overwritten(dialled, own, tmp_path):
    own.save(tmp_path / "run")
    with pytest.raises(UserError, match="already holds another run"):
        dialled.save(tmp_path / "run")


def test_neither_a_run_nor_a_bundle_goes_among_other_files(own, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match="is no empty folder; save to another"):
            own.save(place)
        with pytest.raises(UserError, match=r"is not empty|is a file; give the bundle a folder of its own"):
            own.bundle(place)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_of_the_command_line_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_folder(tmp_path / "data")
    words = ["task=data", "net=digit", "rounds=1", "atom=1/4", "budgets=1/4", "clients=2"]
    monkeypatch.setitem(NETS, "digit", Tiny)
    main(["train", *(word for key in words for word in ("-o", key)), "--out", "run", "--workers", "1"])
    model = splitmix.load("run")
    assert model.predict(striped_images(4)[0], "1/4").classes.shape == (4,)
    assert model.folder == Path("run")


def test_a_folder_that_is_none_is_one_sentence():
    with pytest.raises(UserError, match="there is no folder"):
        splitmix.load("nowhere")


def test_what_is_ones_own_is_given_again(own, tmp_path):
    folder = own.save(tmp_path / "run")
    with pytest.raises(UserError, match=r"the net 'helpers.plain_nets:group_norm_net' .* give it again: .*build=build"):
        splitmix.load(folder, task=bright_task())
    with pytest.raises(UserError, match=r"the task 'arrays' .* give it again: .*task=task"):
        splitmix.load(folder, build=group_norm_net)
    with pytest.raises(UserError, match=r"the run's weights are not those of this net: '0.weight' has shape"):
        splitmix.load(folder, build=resnet, task=bright_task())


def test_no_module_is_imported_because_a_folder_names_it(own, tmp_path, monkeypatch):
    folder = own.save(tmp_path / "run")
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("helpers.plain_nets:group_norm_net", "hostile:build"))
    with pytest.raises(UserError, match=r"'hostile:build' .* is one of your own"):
        splitmix.load(folder, task=bright_task())


# --- rounds ---


def test_each_round_is_told_when_it_is_done(dialled, told):
    assert [one.round for one in told] == [1, 2]
    assert told[0].accuracy == {}
    assert list(told[1].accuracy) == ["1/4", "1/2", "3/4", "1"]
    stored = [row for row in dialled.metrics if row["kind"] == "round"]
    assert [(one.loss, one.lr, one.seconds) for one in told] == [(r["loss"], r["lr"], r["seconds"]) for r in stored]
    with pytest.raises(FrozenInstanceError):
        told[0].loss = 0


# --- to look at ---


def test_everything_has_a_line_for_its_repr(dialled):
    setup = dialled.setup
    found = dialled.predict(torch.cat([X] * 60))
    manifest = Bundle.open(Path(__file__).parents[1] / "fixtures" / "digit.bundle").manifest
    for value in (
        manifest,
        manifest.table,
        dialled,
        setup,
        setup.task,
        dialled.outcome,
        dialled.net,
        setup.config,
        Net(resnet),
        found,
    ):
        assert len(repr(value)) < 250
        assert "\n" not in repr(value)
    assert repr(setup) == "Setup(splitmix on arrays: 2 clients, 4 x width 1/4, 2 rounds, seed 1)"
    assert repr(dialled).startswith("Trained(splitmix on arrays: 2 clients, 4 x width 1/4; ")
    assert repr(setup.task) == "Task(arrays: 2 clients, 72 training and 18 test samples of shape (8, 8, 3), 3 classes)"
    assert repr(make_config({"rounds": 3})) == "Config(rounds=3)"


def test_a_notebook_shows_a_table_of_widths(dialled):
    page = dialled._repr_html_()
    assert page.count("<tr") == 1 + 4
    for words in ("3/4", "parameters", "MACs"):
        assert words in page


def test_a_report_needs_no_folder_of_its_own(own, tmp_path):
    page = own.report(tmp_path / "run")
    assert page == tmp_path / "run" / "report.html"
    assert "One training run, four widths" in page.read_text()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["task"] == "arrays"
    with pytest.raises(UserError, match="this run has no folder yet"):
        own.report()


def test_a_picture_of_widths_and_one_of_the_dial(dialled, own):
    assert "<svg" in dialled.plot()._repr_html_()
    assert "dial" in dialled.plot("dial").alt
    with pytest.raises(UserError, match="no robustness dial"):
        own.plot("dial")
    with pytest.raises(UserError, match="'words' cannot be drawn; choose widths or dial"):
        own.plot("words")


def test_the_library_lists_what_it_offers():
    assert set(dir(splitmix)) == set(splitmix.__all__)
    for name in dir(splitmix):
        assert getattr(splitmix, name) is not None
    assert isinstance(splitmix.slim(nn.Linear(2, 2)).module, nn.Linear)
