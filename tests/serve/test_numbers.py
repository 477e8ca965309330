"""Models of other samples than pictures: numbers in, the same answers as offline, and a sentence for all else."""

import numpy as np
import pytest

from helpers.bundles import own_bundle
from helpers.serving import get, png, post, send_file, serving, table_net
from splitmix.runtime.model import Model

ROW = [5.1, 3.5, 1.4, 0.2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return own_bundle(tmp_path_factory.mktemp("table") / "table.bundle", table_net, (4,), kind="features")


@pytest.fixture(scope="module")
def table(made):
    with serving(made.path) as address:
        yield address


def test_numbers_get_the_answer_of_the_model(table, made):
    model = Model.load(made.path)
    for width in map(str, model.widths):
        answer = post(table, numbers=ROW, width=width).json()
        found = model.predict(np.array([ROW]), width=width)
        np.testing.assert_allclose(answer["probabilities"], found.probabilities[0], atol=1e-6)
        assert answer["label"] == model.classes[found.classes[0]]


def test_what_it_takes_is_said(table):
    facts = get(table, "/api/model").json()
    assert (facts["sample"], facts["image"], facts["attack"]) == ("features", [4], None)
    described = get(table, "/openapi.json").json()["paths"]["/api/predict"]["post"]["requestBody"]["content"]
    assert list(described) == ["application/json"]
    assert "numbers" in described["application/json"]["schema"]["properties"]


BAD = {
    "too few": {"numbers": ROW[:3]},
    "a table": {"numbers": [ROW]},
    "words": {"numbers": ["a", "b", "c", "d"]},
    "truth": {"numbers": [True] * 4},
    "uneven": {"numbers": [[1], [2, 3], 4, 5]},
    "nothing": {"numbers": None},
    "too large": {"numbers": [1e300] * 4},
    "pixels": {"pixels": ROW},
    "an attack": {"numbers": ROW, "attack": True},
}


@pytest.mark.parametrize("question", BAD.values(), ids=BAD)
def test_what_it_cannot_take_is_a_sentence(table, question):
    refused = post(table, **question)
    assert refused.status_code == 422
    assert 10 < len(refused.json()["error"]) < 400


def test_a_picture_is_not_what_it_takes(table):
    refused = send_file(table, png(np.zeros((4, 4, 3), np.uint8)))
    assert (refused.status_code, "features" in refused.json()["error"]) == (415, True)
