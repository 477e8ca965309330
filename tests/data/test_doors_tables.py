"""Tables: which column is what, how features are scaled, and what is refused with its line and column."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import splitmix
from splitmix.core.errors import UserError
from splitmix.data.doors import read, tables

HEAD = "width,height,label\n"


def rows(count=20, classes=("oak", "elm")):
    rng = np.random.default_rng(0)
    return [f"{rng.normal(5, 2):.4f},{100 * rng.random():.3f},{classes[i % len(classes)]}\n" for i in range(count)]


def write(folder, lines, name="trees.csv", head=HEAD):
    file = folder / name
    file.write_text(head + "".join(lines))
    return file


def test_a_table_is_scaled_by_the_statistics_of_its_training_rows(tmp_path):
    file = write(tmp_path, rows())
    (domain,) = read(file)
    assert (domain.name, domain.class_names, domain.kind) == ("trees", ("elm", "oak"), "features")
    assert domain.scaling.columns == ("width", "height")
    assert np.allclose(domain.x_train.mean(0), 0, atol=1e-6)
    assert np.allclose(domain.x_train.std(0), 1, atol=1e-5)
    raw = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1))
    scaled = {tuple(row) for row in domain.scaling(raw).tolist()}
    assert {tuple(row) for row in np.concatenate([domain.x_train, domain.x_test]).tolist()} == scaled


def test_a_column_that_never_changes_is_only_moved(tmp_path):
    (domain,) = read(write(tmp_path, ["7,1,a\n", "7,2,b\n"] * 10))
    assert (domain.x_train[:, 0] == 0).all()


def test_the_label_and_the_domain_may_be_named_and_columns_left_out(tmp_path):
    head, lines = "id,size,species,site\n", [f"x{i},{i},{'ab'[i % 2]},{'NS'[i // 20]}\n" for i in range(40)]
    north, south = read(write(tmp_path, lines, head=head), {"label": "species", "domain": "site", "without": ["id"]})
    assert (north.name, south.name, north.scaling.columns) == ("N", "S", ("size",))
    assert north.scaling == south.scaling


def test_labels_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    (domain,) = read(write(tmp_path, [f"{i},{i},{(10, 9, -1)[i % 3]}\n" for i in range(30)]))
    assert domain.class_names == ("-1", "9", "10")


def test_a_label_is_one_class_however_its_umlauts_are_spelled(tmp_path):
    (domain,) = read(write(tmp_path, [f"{i},{i},{label}\n" for i in range(10) for label in ("öl", "o\u0308l", "gas")]))
    assert domain.class_names == ("gas", "öl")


def test_train_and_test_tables_are_kept_apart_and_others_are_domains(tmp_path):
    for name, count in (("train.csv", 20), ("test.csv", 8)):
        write(tmp_path, rows(count), name)
    (domain,) = read(tmp_path)
    assert (len(domain.y_train), len(domain.y_test)) == (20, 8)
    (tmp_path / "test.csv").rename(tmp_path / "north.csv")
    assert [domain.name for domain in read(tmp_path)] == ["north", "train"]


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ";"), ("t.tsv", "\t")])
def test_other_marks_between_cells_and_a_byte_order_mark_are_read(tmp_path, name, mark):
    text = "\ufeff" + (HEAD + "".join(rows())).replace(",", mark)
    (tmp_path / name).write_text(text)
    assert read(tmp_path / name)[0].scaling.columns == ("width", "height")


MISTAKES = {
    "no label": ("a,b\n", ["1,2\n"], "no label column"),
    "two labels": ("a,label,class\n", ["1,2,3\n"], "columns label and class"),
    "no names": ("", ["1,2,3\n"] * 5, "no names of columns"),
    "a name twice": ("a,a,label\n", ["1,2,3\n"], "the column 'a' twice"),
    "no features": ("label\n", ["x\n"], "no column of numbers"),
    "empty cell": (HEAD, ["1,2,oak\n", "1,,elm\n"], "line 3, column 'height': an empty cell"),
    "NaN": (HEAD, ["1,2,oak\n", "nan,2,elm\n"], "line 3, column 'width': 'nan' is no number"),
    "infinity": (HEAD, ["1,2,oak\n", "1,-inf,elm\n"], "line 3, column 'height': '-inf' is no number"),
    "text": (HEAD, ["1,tall,oak\n"], "line 2, column 'height': 'tall' is no number"),
    "a decimal comma": ("a;label\n", ["1,5;oak\n"], "'1,5' is no number; write decimals with a point"),
    "missing label": (HEAD, ["1,2,oak\n", "1,2, \n"], "line 3: column 'label' is empty"),
    "missing domain": ("a,domain,label\n", ["1,x,oak\n", "1,,oak\n"], "line 3: column 'domain' is empty"),
    "too few cells": (HEAD, ["1,2,oak\n", "1,2\n"], "line 3: 2 cells, but there are 3 columns"),
    "no rows": (HEAD, [], "has no rows"),
    "one class": (HEAD, ["1,2,oak\n"] * 9, "1 different labels"),
    "a number to predict": (HEAD, [f"1,2,0.{i}1\n" for i in range(9)], "is a fraction"),
    "control characters": ("a\x1b[31m,b,label\n", ["x,1,2\n"], "column 'a\ufffd[31m'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistaken_table_gets_one_sentence_with_file_line_and_column(tmp_path, name):
    head, lines, sentence = MISTAKES[name]
    with pytest.raises(UserError) as caught:
        read(write(tmp_path, lines, head=head))
    assert sentence in str(caught.value)
    assert "trees.csv" in str(caught.value)


def test_bytes_cells_and_classes_are_bounded(tmp_path, monkeypatch):
    file = write(tmp_path, rows(20, classes=[str(i) for i in range(20)]))
    for bound, least, sentence in (
        ("MOST_CLASSES", 19, "20 different labels"),
        ("MOST_CELLS", 10, "more than 10 cells"),
        ("MOST_BYTES", 50, "more than 50 bytes"),
    ):
        monkeypatch.setattr(tables, bound, least)
        with pytest.raises(UserError, match=sentence):
            read(file)


def test_a_file_that_is_no_text_gets_one_sentence(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,label\n\xff\xfe\xff,1\n")
    with pytest.raises(UserError, match="is no CSV text"):
        read(tmp_path / "t.csv")


def test_a_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no column 'kind'; it has width, height, label"):
        read(write(tmp_path, rows()), {"label": "kind"})


def write_parquet(file, **columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), file)
    return file


def test_parquet_reads_like_csv(tmp_path):
    pytest.importorskip("pyarrow")
    columns = np.genfromtxt(write(tmp_path, rows()), delimiter=",", names=True, dtype=None, encoding="utf-8")
    (tmp_path / "p").mkdir()
    file = write_parquet(
        tmp_path / "p" / "trees.parquet", **{name: list(columns[name]) for name in columns.dtype.names}
    )
    (text,), (packed,) = read(tmp_path / "trees.csv"), read(file)
    assert np.array_equal(text.x_train, packed.x_train)
    assert (text.class_names, text.scaling) == (packed.class_names, packed.scaling)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"a": [1.0, None], "label": ["x", "y"]}, "row 2, column 'a': an empty cell"),
        ({"a": [1.0, float("nan")], "label": ["x", "y"]}, "row 2, column 'a': 'nan'"),
        ({"a": ["red", "blue"], "label": ["x", "y"]}, "column 'a': 'red (string)' is no number"),
        ({"a": [1, 2], "label": ["x", None]}, "row 2: column 'label' is empty"),
        ({"a": [[1], [2]], "label": ["x", "y"]}, "column 'a'"),
    ],
)
def test_a_mistaken_parquet_table_gets_one_sentence(tmp_path, columns, sentence):
    with pytest.raises(UserError) as caught:
        read(write_parquet(tmp_path / "t.parquet", **columns))
    assert sentence in str(caught.value)
    assert "t.parquet" in str(caught.value)


def test_what_is_no_parquet_gets_one_sentence(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(tmp_path / "t.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"splitmix\[tables\]"):
        read(tmp_path / "t.parquet")


def build(width):
    hidden = int(16 * width)
    return nn.Sequential(nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 2))


def test_a_table_trains_and_the_model_takes_rows_as_they_stand_in_it(tmp_path):
    rng = np.random.default_rng(1)
    lines = [f"{1e6 + i % 2 * 5e3 + rng.normal(0, 300):.1f},{rng.random():.3f},{'ab'[i % 2]}\n" for i in range(200)]
    file = write(tmp_path, lines)
    settings = {"rounds": 3, "clients": 2, "atom": "1/2", "budgets": "1/2 1", "workers": 1, "progress": False}
    model = splitmix.train(file, build, **settings)
    assert model.result["scores"][-1]["accuracy"] > 0.9
    assert model.predict([[1e6, 0.5], [1.005e6, 0.5]]).classes.tolist() == [0, 1]
    assert (model.result["classes"], model.result["kind"]) == (["a", "b"], "features")
    assert model.result["scaling"]["columns"] == ["width", "height"]


def test_a_table_is_trained_and_bundled_without_a_net_of_ones_own(tmp_path):
    pytest.importorskip("onnxruntime", reason="graphs run on ONNX Runtime")
    rng = np.random.default_rng(1)
    lines = [f"{i % 2 + rng.normal(0, 0.1):.2f},{rng.random():.3f},{'ab'[i % 2]}\n" for i in range(120)]
    quiet = {"budgets": "1/4 1", "atom": "1/4", "clients": 2, "workers": 1, "progress": False}
    model = splitmix.train(write(tmp_path, lines), rounds=4, batch=16, **quiet)
    device = model.bundle(tmp_path / "b")
    assert (model.result["net"], model.result["stacked"], device.manifest.net.name) == ("mlp", "yes", "mlp")
    assert device.predict([[0.0, 0.5], [1.0, 0.5]]).classes.tolist() == [0, 1]


def test_signals_have_a_net_and_tokens_have_none(tmp_path):
    pytest.importorskip("onnxruntime", reason="graphs run on ONNX Runtime")
    rng, y = np.random.default_rng(0), np.arange(40) % 2
    np.savez(tmp_path / "waves.npz", x=rng.standard_normal((40, 2, 9)) + y[:, None, None], y=y)
    model = splitmix.train(tmp_path / "waves.npz", rounds=1, clients=2, workers=1, progress=False)
    assert (model.result["net"], model.bundle(tmp_path / "b").image) == ("cnn1d", (2, 9))
    with pytest.raises(UserError, match=r"no net in the table for tokens of shape \(9,\)"):
        splitmix.train((rng.integers(0, 5, (40, 9)), y), data={"kind": "tokens"}, clients=2, progress=False)


def test_a_hugging_face_data_set_of_numbers_reads_like_a_table():
    columns = {"a": [float(i) for i in range(20)], "b": [1, 2] * 10, "label": [i % 2 for i in range(20)]}
    (domain,) = read(Columns(columns, label=SimpleNamespace(names=["no", "yes"])))
    assert (domain.class_names, domain.scaling.columns, domain.kind) == (("no", "yes"), ("a", "b"), "features")
    columns["b"][3] = None
    with pytest.raises(UserError, match="column 'b' has no number in row 3"):
        read(Columns(columns, label=SimpleNamespace(names=["no", "yes"])))


class Columns:
    """Looks like a data set of Hugging Face."""

    def __init__(self, columns, **features):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: features.get(name, SimpleNamespace(dtype="float64")) for name in columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: held[key] for name, held in self.columns.items()}
