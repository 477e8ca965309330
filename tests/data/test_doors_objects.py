"""Arrays of any rank, data sets of PyTorch and Hugging Face: what becomes of them, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from splitmix.core.errors import UserError
from splitmix.core.inputs import made
from splitmix.data.doors import DOORS, read
from splitmix.data.reading import parse_reading
from splitmix.data.task import make_task

LABELS = np.arange(60) % 2
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("x", "how", "kind", "dtype"),
    [
        (RNG.random((60, 8, 8, 3)), {}, "image", np.float32),
        (RNG.integers(0, 255, (60, 8, 8, 3)), {}, "image", np.uint8),
        (RNG.normal(size=(60, 8, 8, 3)), {}, "signal", np.float32),
        (RNG.random((60, 5)), {}, "features", np.float32),
        (RNG.normal(size=(60, 3, 100)), {}, "signal", np.float32),
        (RNG.normal(size=(60, 4, 8, 8, 3)), {}, "signal", np.float32),
        (RNG.integers(0, 99, (60, 12)), {}, "features", np.float32),
        (RNG.integers(0, 99, (60, 12)), {"kind": "tokens"}, "tokens", np.int64),
        (RNG.integers(0, 99, (60, 2, 12)), {"kind": "signal"}, "signal", np.float32),
        (torch.rand(60, 5), {}, "features", np.float32),
    ],
)
def test_arrays_of_any_rank_are_taken_for_what_they_look_like_or_are_said_to_be(x, how, kind, dtype):
    (domain,) = read((x, LABELS), how)
    assert (domain.kind, domain.x_train.dtype, domain.x_train.shape[1:]) == (kind, dtype, tuple(x.shape[1:]))


def test_a_dict_names_domains_or_training_and_test_parts():
    x = RNG.random((60, 5))
    assert [domain.name for domain in read({"north": (x, LABELS), "south": (x, LABELS)})] == ["north", "south"]
    (domain,) = read({"train": (x, LABELS), "test": (x[:9], LABELS[:9])})
    assert (len(domain.y_train), len(domain.y_test)) == (60, 9)
    assert len(read((x, LABELS, x[:9], LABELS[:9]))[0].y_test) == 9


def test_labels_that_are_words_are_the_names_of_classes():
    x, words = RNG.random((60, 5)), np.array(["oak", "elm", "ash"])[np.arange(60) % 3]
    (domain,) = read((x, words, x[:9], list(words[:9])))
    assert domain.class_names == ("ash", "elm", "oak")
    assert [domain.class_names[label] for label in domain.y_train] == words.tolist()
    north, south = read({"north": (x, words), "south": (x[:40], ["oak", "elm"] * 20)})
    assert north.class_names == south.class_names
    assert set(south.y_train) == {1, 2}


def test_one_standardised_domain_makes_all_of_them_signals():
    pixels, standardised = RNG.random((60, 4, 4, 1)), RNG.normal(size=(60, 4, 4, 1))
    task = make_task("t", read({"a": (pixels, LABELS), "b": (standardised, LABELS)}), clients=2)
    assert task.kind == "signal"


@pytest.mark.parametrize(
    ("source", "how", "sentence"),
    [
        ((RNG.random((60, 4, 4, 1)) * 9, LABELS), {}, "say kind='signal' if they were standardised"),
        ((RNG.integers(0, 9, (60, 4, 4)), LABELS), {}, "write x[..., None] for grey images"),
        ((RNG.random((60, 9)), LABELS), {"kind": "tokens"}, "give whole numbers from 0 on"),
        ((-RNG.integers(1, 9, (60, 9)), LABELS), {"kind": "tokens"}, "give whole numbers from 0 on"),
        ((RNG.random((60, 9, 2)), LABELS), {"kind": "features"}, "give (n, features)"),
        ((RNG.random(60), LABELS), {}, "or more axes"),
        (([[1, 2], [3]], [0, 1]), {}, "do not form an array"),
        (({1: 2}, 3), {}, "item 0 of the data set is no (x, y)"),
        (np.zeros((60, 9)), {}, "an array alone is no data with labels; give a tuple (x, y)"),
        ((np.zeros((60, 9)), LABELS, LABELS), {}, "a tuple of 3 arrays is no data with labels"),
        ({"x": np.zeros((60, 9)), "y": LABELS}, {}, "a dict with x and y in the place of domains"),
        ({}, {}, "there are no domains"),
        (7, {}, "a int is no data that can be read"),
        ("no/such/place", {}, "there is no file or folder"),
        (TensorDataset(torch.zeros(0, 2), torch.zeros(0)), {}, "has no items"),
        (TensorDataset(torch.zeros(4, 2)), {}, "item 0 of the data set is no (x, y)"),
    ],
)
def test_what_cannot_be_read_gets_one_sentence(source, how, sentence):
    with pytest.raises(UserError) as caught:
        read(source, how)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"labels": "y"}, "did you mean 'label'"),
        ({"size": 0}, "size of data is '0'"),
        ({"size": "28x28x2"}, "with 1 or 3 channels"),
        ({"size": 99999}, "size of data is '99999'"),
        ({"kind": "film"}, "unknown kind of data 'film'"),
        ({"label": 3}, "label of data is '3'"),
        ({"without": "id"}, "give a list of columns"),
        ({"test_ratio": 2}, "test_ratio of data is '2'"),
    ],
)
def test_mistaken_settings_get_one_sentence(how, sentence):
    with pytest.raises(UserError) as caught:
        parse_reading(how)
    assert sentence in str(caught.value)


def test_every_door_says_what_it_takes():
    assert len({door.about for door in DOORS}) == len(DOORS) == 4


class Shapes(Dataset):
    """Pictures of Pillow's, as torchvision's data sets give them."""

    classes = ("round", "square")

    def __init__(self, count=40, size=(9, 7)):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row >= self.count:
            raise IndexError(row)
        return Image.new("RGB", self.size if row else (9, 7), (row, 0, 0)), row % 2


def test_a_torch_data_set_of_pictures_brings_its_classes():
    (domain,) = read(Shapes())
    assert (domain.x_train.shape[1:], domain.class_names, domain.kind) == ((7, 9, 3), ("round", "square"), "image")
    assert sorted(np.concatenate([domain.x_train, domain.x_test])[:, 0, 0, 0]) == list(range(40))
    with pytest.raises(UserError, match=r"item 1 of the data set has shape .* by data=\{size=...\}"):
        read(Shapes(size=(5, 5)))
    assert read(Shapes(size=(5, 5)), {"size": 8})[0].x_train.shape[1:] == (8, 8, 3)


@pytest.mark.parametrize("parts", [("north", "south"), ("train", "test")])
def test_a_torch_data_set_may_have_words_for_labels(parts):
    def worded(kinds):
        return [(torch.rand(3, 8, 8), kinds[i % len(kinds)]) for i in range(30)]

    domains = read({parts[0]: worded(["oak", "elm", "ash"]), parts[1]: worded(["oak", "elm"])})
    assert {domain.class_names for domain in domains} == {("ash", "elm", "oak")}
    assert set(domains[-1].y_test) == {1, 2}
    assert domains[0].x_train.shape[1:] == (8, 8, 3)


def test_a_part_of_a_torch_data_set_brings_its_classes():
    (domain,) = read(Subset(Shapes(), range(20)))
    assert domain.class_names == tuple(Shapes.classes)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.rand(60) + 0.1, r"item 0 of the data set is no .* is a fraction"),
        (["a", 1] * 30, "item 1 of the data set has the label 1, the first 'a'; give one kind"),
        (torch.eye(60), "with a whole number or a word y"),
    ],
)
def test_labels_of_a_torch_data_set_that_are_no_classes_get_one_sentence(labels, words):
    with pytest.raises(UserError, match=words):
        read([(torch.rand(5), label) for label in labels])


def test_items_with_names_are_no_pairs():
    with pytest.raises(UserError, match="it has the names x, y"):
        read([{"x": 1, "y": "a"}] * 9)


def test_tensors_of_images_have_their_channels_moved_behind():
    x = torch.rand(40, 3, 6, 5)
    (domain,) = read(TensorDataset(x, torch.arange(40) % 2))
    assert domain.x_train.shape[1:] == (6, 5, 3)
    assert read(TensorDataset(x, torch.arange(40) % 2), {"kind": "signal"})[0].x_train.shape[1:] == (3, 6, 5)


def test_a_data_set_that_does_not_fit_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("splitmix.data.doors.objects.MOST_MEMORY", 1000)
    with pytest.raises(UserError, match="more than 1,000 bytes; give a folder of pictures"):
        read(Shapes())


class HuggingFace:
    """Looks like a data set of Hugging Face with a column of pictures."""

    def __init__(self, count=30, names=("cat", "dog"), broken=None):
        self.pictures = [Image.new("L", (50 + row, 60), row) for row in range(count)]
        self.labels, self.broken, self.column_names = [row % 2 for row in range(count)], broken, ["image", "label"]
        self.features = {"image": type("Image", (), {})(), "label": SimpleNamespace(names=list(names))}

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, key):
        if isinstance(key, str):
            return {"label": self.labels, "site": getattr(self, "sites", None)}[key]
        if key == self.broken:
            raise OSError("truncated")
        return {"image": self.pictures[key], "label": self.labels[key]}


def test_a_hugging_face_data_set_of_pictures_is_decoded_when_it_is_needed():
    domains = read({"a": HuggingFace(), "b": HuggingFace(24)}, {"size": "8x8x1"})
    task = make_task("t", domains, clients=2)
    assert (task.class_names, task.image, task.kind) == (("cat", "dog"), (8, 8, 1), "image")
    rows = np.arange(len(task.train.labels))
    shown = [domain.x_train.take(np.arange(len(domain.y_train))) for domain in domains]
    assert np.array_equal(made(task.train.images, rows), np.concatenate(shown))
    assert read({"train": HuggingFace(), "test": HuggingFace(6)})[0].x_test.shape == (6, 32, 32, 3)


class Columns:
    """Looks like a data set of Hugging Face without pictures."""

    def __init__(self, **columns):
        self.columns_, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace(dtype="int64") for name in columns}

    def __len__(self):
        return len(self.columns_["label"])

    def __getitem__(self, name):
        return self.columns_[name]


class Frame(Columns):
    """Looks like a table of pandas, which has axes as an array has."""

    ndim, iloc = 2, None

    def __init__(self, **columns):
        super().__init__(**columns)
        self.columns = self.column_names
        del self.features, self.column_names


WORDS = [("oak", "elm")[row % 2] for row in range(60)]


def test_a_column_of_lists_is_tokens_or_a_signal_where_it_is_the_only_one():
    ids, waves = RNG.integers(0, 99, (60, 12)), RNG.normal(size=(60, 3, 40))
    (domain,) = read(Columns(input_ids=ids.tolist(), label=WORDS), {"kind": "tokens"})
    assert (domain.kind, domain.x_train.dtype, domain.class_names) == ("tokens", np.int64, ("elm", "oak"))
    rows = Columns(text=["a"] * 60, input_ids=list(ids), label=WORDS, site=["n", "s"] * 30)
    north, south = read(rows, {"kind": "tokens", "without": ["text"], "domain": "site"})
    held = np.concatenate([part for one in (north, south) for part in (one.x_train, one.x_test)])
    assert sorted(map(tuple, held)) == sorted(map(tuple, ids))
    assert read(Columns(wave=waves.tolist(), label=WORDS))[0].x_train.shape[1:] == (3, 40)
    with pytest.raises(UserError, match="the lists of column 'input_ids' are not equally long; pad or cut"):
        read(Columns(input_ids=[[1] * (row + 1) for row in range(60)], label=WORDS), {"kind": "tokens"})
    with pytest.raises(UserError, match="column 'input_ids' holds lists; they are read where they are the only column"):
        read(Columns(input_ids=ids.tolist(), age=list(range(60)), label=WORDS))


@pytest.mark.parametrize("kind", [Columns, Frame])
def test_columns_of_numbers_are_a_table(kind):
    (domain,) = read(kind(age=np.arange(60.0), speed=RNG.random(60), wood=WORDS, label=WORDS), {"without": ["wood"]})
    assert (domain.kind, domain.class_names, domain.scaling.columns) == ("features", ("elm", "oak"), ("age", "speed"))
    parts = {name: kind(age=np.arange(60.0), label=WORDS) for name in ("train", "test")}
    assert read(parts)[0].x_test.shape == (60, 1)
    with pytest.raises(UserError, match="row 1 has no label"):
        read(kind(age=np.arange(60.0), label=["oak", float("nan")] * 30))


def test_a_column_may_name_the_domain_of_each_picture():
    data = HuggingFace()
    data.sites = [("north", "south")[row // 2 % 2] for row in range(30)]
    data.column_names.append("site")
    data.features["site"] = SimpleNamespace(dtype="string")
    north, south = read(data, {"size": 8, "domain": "site"})
    assert (north.name, south.name) == ("north", "south")
    assert (len(north.y_train) + len(north.y_test), len(south.y_train) + len(south.y_test)) == (16, 14)


def test_a_row_that_cannot_be_decoded_is_named():
    (domain,) = read(HuggingFace(broken=3), {"size": 8})
    with pytest.raises(UserError, match=r"row 3 of the data set cannot be had \(truncated\)"):
        [part.take(np.arange(len(part))) for part in (domain.x_train, domain.x_test)]


def test_a_row_without_a_label_is_named():
    data = HuggingFace()
    data.labels[5] = -1
    with pytest.raises(UserError, match="row 5 has no label"):
        read(data)
