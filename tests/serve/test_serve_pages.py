"""What else a server shows: its pages, which need nothing from elsewhere, its description and its metrics."""

import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from helpers.serving import PIXELS, post

pytestmark = pytest.mark.slow  # a real server on a real socket


def test_every_answer_keeps_the_browser_to_ourselves(server):
    for path in ("/", "/docs", "/static/app.js", "/health", "/nothing"):
        headers = httpx.get(f"{server}{path}").headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_the_pages_need_nothing_from_elsewhere(server):
    for path in ("/", "/docs", "/static/app.js", "/static/views.js", "/static/pad.js", "/static/style.css"):
        text = httpx.get(f"{server}{path}").text.replace(server, "")
        assert "http://" not in text
        assert "https://" not in text


def test_the_description_names_every_path(server):
    page = httpx.get(f"{server}/docs").text
    paths = httpx.get(f"{server}/openapi.json").json()["paths"]
    assert {"/api/predict", "/api/plan", "/api/manifest", "/api/model", "/health", "/metrics"} == set(paths)
    assert all(path in page for path in paths)
    assert "deadline_ms" in page


def test_the_examples_are_the_first_test_pictures_of_each_domain(server, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from page_examples import sheet

    shown = np.asarray(Image.open(io.BytesIO(httpx.get(f"{server}/static/examples.png").content)))
    drawn, domains = sheet()
    about = httpx.get(f"{server}/static/examples.json").json()
    assert (about["domains"], about["labels"]) == (domains, list(range(10)))
    assert np.abs(shown.astype(int) - drawn).mean() < 3  # another Pillow draws edges a little differently


def test_prometheus_can_read_what_was_answered(server):
    from prometheus_client.parser import text_string_to_metric_families

    post(server, pixels=PIXELS, width="1/8")
    httpx.get(f"{server}/no/such/path")
    families = {family.name: family for family in text_string_to_metric_families(httpx.get(f"{server}/metrics").text)}
    counted = {(s.labels["path"], s.labels["status"]) for s in families["splitmix_requests"].samples if s.labels}
    assert {("/api/predict", "200"), ("other", "404")} <= counted
    assert any(s.labels.get("width") == "1/8" for s in families["splitmix_prediction_seconds"].samples)
