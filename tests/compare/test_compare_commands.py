"""The command that tells costs, and one sentence for each mistake of the commands that set methods side by side."""

import json

import pytest

from splitmix.cli import main


def told(capsys, *arguments):
    main(["cost", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_with_a_method_the_json_tells_widths_and_clients(capsys):
    found = told(capsys, "digit", "--method", "heterofl", "--budgets", "1/8", "1/4", "--batch", "16")
    assert (found["net"], found["method"], found["atom"], found["batch"]) == ("digit", "heterofl", "1/8", 16)
    assert [row["width"] for row in found["widths"]] == ["1/8", "1/4"]
    assert found["widths"][1] == {
        "width": "1/4",
        "parts": 1,
        "parameters": 892154,
        "macs": 3692032,
        "activations": 35786,
    }
    narrow = found["clients"][0]
    assert narrow == {
        **{"budget": "1/8", "trains": "1/8", "forward": 1158528, "macs": 3 * 16 * 1158528},
        **{"memory": 4 * (3 * 224194 + 16 * 17898), "down": 224194, "up": 224194},
    }


def test_a_method_may_have_settings(capsys):
    found = told(capsys, "digit", "--method", '{name="fedavg", width="1/4", mode="strict"}', "--width", "1/4")
    assert [row["trains"] for row in found["clients"]] == ["nothing", "1/4", "1/4", "1/4"]


def test_people_see_both_tables(capsys):
    main(["cost", "digit", "--width", "1/8", "--budgets", "1/8 1"])
    shown = capsys.readouterr().out
    assert "parameters of one net" in shown
    assert "A client's round under SplitMix" in shown
    assert "8 x 1/8" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cost digit --method hetrofl", "did you mean 'heterofl'?"),
        ("cost digit --method heterofl --width 3/8", "width 3/8 was never trained; choose one of 1/8, 1/4, 1/2, 1"),
        ("cost digit --budgets 3/16", "the atom 1/8 does not divide the budget 3/16"),
        ("cost digit --budgets exponentail", "did you mean 'exponential'?"),
        ("cost digit --batch 1", "batch 1 is too small"),
        ("compare mini --methods splitmx", "did you mean 'splitmix'?"),
        ("compare mini --methods fedavg:width", "write key=value"),
        ("compare mini --seeds -1", "seed"),
        ("compare nowhere.toml", "no config file"),
        ("compare mini --tuned nowhere.json", "no tuning record"),
        ("compare mini -o roundz=3", "did you mean 'rounds'?"),
        ("compare mini --workers 0", "too few"),
        ("tune mini --rates 0", "a learning rate of 0"),
        ("tune mini --rates fast", "fast"),
        ("tune mini --methods splitmix:lr=1", "own learning rate"),
        ("tune mini --rounds 0", "rounds"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(words.split())
    printed = capsys.readouterr()
    assert (left.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert told in printed.err
    assert not list(tmp_path.iterdir())
