"""The model card: what a manifest says, as a page to read that no text of it can spoil."""

import json

import pytest
from torch import nn

from helpers.bundles import own_bundle, random_bundle
from splitmix.cli import main
from splitmix.runtime.about.card import CARD, card, plain
from splitmix.runtime.bundle import Bundle, packaged

EVIL = "<script>alert(1)</script> [x](http://evil.example) | `**` \u202e\x1b[31m\n# new"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return random_bundle(tmp_path_factory.mktemp("card") / "digits.bundle", grid=True)


def test_a_bundle_has_its_card(made):
    said = made.manifest
    text = (made.path / CARD).read_text()
    assert text == card(said)
    for cost in said.costs:
        assert f"| {cost.width} | {cost.bases} | {cost.parameters:,} | {cost.macs:,} |" in text
    for row in said.table.rows:
        assert f"{100 * row.clean:.1f}" in text
    assert said.table.attack in text.replace("\\", "")
    assert all(name in text for name in said.classes)


def test_a_plain_model_has_one_dial_and_was_never_attacked(tmp_path):
    text = card(random_bundle(tmp_path / "plain", dual=False).manifest)
    assert "A model whose width is set" in text
    assert "robust" not in text
    assert "never measured under attack" in text or "No accuracy was measured" in text


def test_a_model_of_a_table_names_its_columns_and_has_no_norms_to_calibrate(tmp_path, made):
    pytest.importorskip("onnxruntime", reason="ONNX Runtime checks the graph")
    scaling = {"mean": [0.0, 1.0], "deviation": [1.0, 2.0], "columns": ["age", "height|cm"]}
    text = card(own_bundle(tmp_path / "b", table_net, (2,), kind="features", scaling=scaling).manifest)
    assert r"plain numbers of the columns age, height\|cm, in this order" in text
    assert "splitmix calibrate" not in text
    assert "splitmix calibrate" in card(made.manifest)


def table_net(width):
    return nn.Sequential(nn.Linear(2, int(8 * width)), nn.ReLU(), nn.Linear(int(8 * width), 3))


def saying(said, text):
    """A manifest with the same text wherever it may say what it likes."""
    table = said.table.model_copy(update={"attack": text, "split": text, "interval": text})
    classes, trained = [text, *said.classes[1:]], {"task": text, text: text}
    return said.model_copy(update={"classes": classes, "norm_text": text, "trained": trained, "table": table})


def test_no_text_of_a_manifest_is_markdown_html_or_a_code_of_a_terminal(made):
    text = card(saying(made.manifest, EVIL))
    assert not any(mark in text for mark in ("<", "](", "\x1b", "\u202e", "http://"))
    assert len(text.splitlines()) == len(card(saying(made.manifest, "harmless")).splitlines())
    assert plain("a|b") == r"a\|b"


def test_the_command_prints_the_card_or_the_manifest(made, capsys):
    main(["card", str(made.path)])
    assert capsys.readouterr().out.strip() == card(made.manifest).strip()
    main(["card", str(made.path), "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads((made.path / "manifest.json").read_text())


def test_without_a_bundle_it_is_the_one_of_the_package(capsys):
    main(["card"])
    kept = (packaged() / CARD).read_text()
    assert capsys.readouterr().out.strip() == kept.strip() == card(Bundle.open(packaged()).manifest).strip()


def test_the_card_counts_the_round_that_was_kept_from_one():
    said = Bundle.open(packaged()).manifest
    assert f"| round kept | {int(said.trained['best_round']) + 1} |" in card(said)
