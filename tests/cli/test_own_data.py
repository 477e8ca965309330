"""Data of one's own on the command line: from a folder or a table to a report and a bundle, and mistakes."""

import numpy as np
import pytest
from torch import nn

import splitmix
from helpers.picture_folders import write_tree
from splitmix.cli import main

SMALL = ["-o", "rounds=1", "-o", "clients=2", "-o", "budgets=1/8", "--workers", "1"]


@pytest.mark.slow
def test_the_names_of_class_folders_come_along_into_report_and_bundle(tmp_path, capsys):
    pets, run = write_tree(tmp_path / "pets"), tmp_path / "run"
    main(["train", str(pets), "-o", "data={size=28}", *SMALL, "--out", str(run)])
    main(["bundle", str(run), "--out", str(tmp_path / "pets.bundle")])
    page = (run / "report.html").read_text()
    assert "image of 28 x 28 x 3; classes cat, dog" in page
    model = splitmix.Model.load(tmp_path / "pets.bundle")
    assert (model.classes, model.image) == (("cat", "dog"), (28, 28, 3))


def rows(width):
    hidden = int(16 * width)
    return nn.Sequential(nn.Linear(1, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 2))


@pytest.mark.slow
def test_a_bundle_of_a_table_takes_rows_as_they_stand_in_it(tmp_path):
    table = tmp_path / "trees.csv"
    table.write_text("size,label\n" + "".join(f"{1000 + i % 2 * 50 + i % 7},{'ab'[i % 2]}\n" for i in range(80)))
    settings = {"rounds": 2, "clients": 2, "budgets": "1/2 1", "atom": "1/2", "workers": 1, "progress": False}
    trained = splitmix.train(table, rows, **settings)
    model = trained.bundle(tmp_path / "trees.bundle")
    x = np.array([[1003.0], [1053.0]])
    assert np.allclose(model(x, width=1), trained(x, width=1), atol=1e-4)
    assert model.classes == ("a", "b")


def test_a_run_of_a_table_is_not_attacked_and_a_table_is_no_folder_to_calibrate_on(tmp_path, capsys):
    table = tmp_path / "trees.csv"
    table.write_text("size,label\n" + "".join(f"{i % 2 * 50 + i % 7},{'ab'[i % 2]}\n" for i in range(80)))
    quick = ["-o", "rounds=1", "-o", "clients=2", "-o", "atom=1/2", "-o", "budgets=1/2 1", "--workers", "1"]
    main(["train", str(table), *quick, "--out", str(tmp_path / "run")])
    main(["bundle", str(tmp_path / "run"), "--out", str(tmp_path / "b")])
    for command, sentence in (
        (
            ["eval", str(tmp_path / "run"), "--attack", "fgsm", "--workers", "1"],
            "but the task 'trees' has features; leave",
        ),
        (["calibrate", str(tmp_path / "b"), str(tmp_path)], "has no .npz files; this model takes features"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert sentence in " ".join(capsys.readouterr().err.split())


def one_class(root):
    return write_tree(root / "pets", classes=("cat",))


def no_label(root):
    (root / "t.csv").write_text("a,b\n1,2\n")
    return root / "t.csv"


def missing(root):
    return root / "none.csv"


def unknown_kind(root):
    (root / "notes.txt").write_text("x")
    return root / "notes.txt"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (one_class, "give two classes or more"),
        (no_label, "no label column"),
        (missing, "there is no file or folder"),
        (unknown_kind, "is no data that can be read"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(tmp_path, capsys, make, sentence):
    with pytest.raises(SystemExit) as ended:
        main(["train", str(make(tmp_path)), *SMALL])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split())
    assert "Traceback" not in told


def test_preparing_looks_at_every_picture(tmp_path, capsys):
    pets = write_tree(tmp_path / "pets", count=20)
    main(["data", "prepare", str(pets)])
    assert "is ready" in capsys.readouterr().out
    (pets / "dog" / "7.png").write_bytes(b"torn")
    with pytest.raises(SystemExit):
        main(["data", "prepare", str(pets)])
    assert "7.png" in capsys.readouterr().err


def test_a_contact_sheet_has_the_names_of_the_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["data", "show", str(write_tree(tmp_path / "pets", count=20)), "--out", "sheet.png"])
    assert (tmp_path / "sheet.png").stat().st_size > 1000
