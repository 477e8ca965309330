"""The page in a real browser, at the size of a desk and of a phone: drawn on, turned, attacked, planned with.

Set SPLITMIX_SCREENSHOTS to a folder to look at what the browser saw.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers.bundles import own_bundle, random_bundle
from helpers.serving import serving, table_net
from splitmix.attacks.pgd import PGD
from splitmix.runs.bundling import Packing
from splitmix.runtime.about.examples import Examples, example_row, write_examples
from splitmix.runtime.bundle import packaged

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run", "--disable-extensions"),
    *("--no-zygote", "--in-process-gpu", "--disable-software-rasterizer"),  # fewer processes: a seventh less to do
)
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
DIGIT = [(0.3, 0.32), (0.58, 0.2), (0.55, 0.5), (0.5, 0.82)]  # a seven, nearly a one, in shares of the pad
SLOW = 600_000  # milliseconds: a busy machine is no failure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser test")
    if BROWSER is None:
        pytest.skip("there is no chromium on this machine: no browser test")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address():
    if not packaged().is_dir():
        pytest.skip("the package has no bundle to show")
    with serving(packaged(), attack=PGD(steps=10)) as found:
        yield found


@contextmanager
def opened(browser, address, size, **options):
    """The page, once it answers or asks for a picture; it must not complain, leave its server or be too wide."""
    phone = size == "phone"
    context = browser.new_context(
        viewport=SIZES[size], has_touch=phone, is_mobile=phone, device_scale_factor=2 if phone else 1, **options
    )
    context.set_default_timeout(SLOW)
    page = context.new_page()
    complaints, asked = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-answers]")
    yield page
    assert complaints == []
    assert [url for url in asked if not url.startswith(address)] == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    context.close()


@contextmanager
def answered(page):
    """Wait until what is done inside has been answered, and until nothing more is under way."""
    before = answers(page)
    yield
    done = "before => Number(document.body.dataset.answers) > before && document.body.dataset.busy === 'false'"
    page.wait_for_function(done, arg=before)


def answers(page) -> int:
    return int(page.evaluate("document.body.dataset.answers"))


def text(page, selector: str) -> str:
    return page.locator(selector).inner_text()


def shares(page) -> list[str]:
    """The lengths of the bars: finer than the rounded numbers beside them."""
    return page.locator("#bars .track i:first-child").evaluate_all("bars => bars.map((bar) => bar.style.width)")


def keep(page, name: str) -> None:
    if folder := os.environ.get("SPLITMIX_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def draw(page, points, *, finger: bool) -> None:
    """One stroke on the pad, by finger or by mouse."""
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    if not finger:
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=5)
        page.mouse.up()
        return
    screen = page.context.new_cdp_session(page)
    for kind, place in zip(["touchStart", *["touchMove"] * (len(places) - 1)], places, strict=True):
        screen.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": place[0], "y": place[1]}]})
    screen.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def press(page, selector: str, key: str, times: int) -> None:
    for _ in range(times):
        page.locator(selector).press(key)


@pytest.mark.parametrize("size", SIZES)
def test_a_visitor_draws_turns_attacks_and_plans(browser, address, size):
    with opened(browser, address, size) as page:
        assert page.locator(".row input").count() == 40
        keep(page, f"{size}-1-start")

        before = answers(page)
        page.locator("#clear").click()
        assert page.locator("#hint").is_visible()
        assert "Draw a digit" in text(page, "#says")  # it asks for one instead of answering
        assert not page.locator("#bars").is_visible()
        press(page, "#width", "ArrowLeft", 1)
        press(page, "#width", "ArrowRight", 1)
        assert answers(page) == before
        keep(page, f"{size}-0-empty")
        with answered(page):
            draw(page, DIGIT, finger=size == "phone")
        assert not page.locator("#hint").is_visible()
        assert text(page, "#says b") in "0123456789"
        assert page.locator(".row input:checked").count() == 0
        keep(page, f"{size}-2-drawn")

        wide = {name: text(page, f"#{name}") for name in ("parameters", "macs", "bytes", "latency")}, shares(page)
        with answered(page):
            press(page, "#width", "ArrowLeft", 6)
        assert text(page, "#width-value") == "1/4"
        assert page.locator("#votes .off").count() == 6
        narrow = {name: text(page, f"#{name}") for name in wide[0]}, shares(page)
        assert all(wide[0][name] != narrow[0][name] for name in wide[0])
        assert wide[1] != narrow[1]
        assert narrow[0]["latency"].endswith(" ms")

        with answered(page):
            press(page, "#robust", "ArrowRight", 6)
        assert text(page, "#robust-value") == "0.30"
        assert shares(page) != narrow[1]

        with answered(page):
            page.locator("#attack").press("Space")
        assert page.locator("#says-attacked").is_visible()
        assert "under attack" in text(page, "#says-attacked")
        assert colours(page, "#attacked") > 10
        assert colours(page, "#difference") > 2
        keep(page, f"{size}-3-attacked")

        page.locator("[name=max_macs]").fill("6")
        page.locator("[name=prefer]").select_option("robust")
        page.locator("#plan button").click()
        page.wait_for_selector("#found button")
        wanted = text(page, "#found .dial-found")
        with answered(page):
            page.locator("#found button").click()
        assert f"width {text(page, '#width-value')}," in wanted
        assert float(text(page, "#robust-value")) == pytest.approx(float(wanted.split()[-1]), abs=0.026)
        keep(page, f"{size}-4-planned")


def colours(page, canvas: str) -> int:
    """How many different pixels a canvas shows."""
    return page.evaluate(
        """name => {
            const canvas = document.querySelector(name);
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size;
        }""",
        canvas,
    )


def test_the_map_of_accuracies_marks_the_dial_and_sets_it_also_in_the_dark(browser, address):
    with opened(browser, address, "desktop", color_scheme="dark") as page:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        keep(page, "desktop-5-dark")
        assert page.locator("#maps table").count() == 2
        assert page.locator("#maps td.here").count() == 2
        row = page.locator("#maps table").first.locator("tbody tr").nth(4)
        with answered(page):
            row.locator("td").last.click()
        assert text(page, "#width-value") == row.locator("th").inner_text()
        assert text(page, "#robust-value") == "1.00"
        assert "here" in row.locator("td").last.get_attribute("class")


def test_everything_can_be_reached_by_keyboard(browser, address):
    with opened(browser, address, "desktop") as page:
        reached = []
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
        wanted = ["clear", "file", "example", "width", "robust", "attack", "max_ms", "min_robust", "prefer"]
        places = [reached.index(name) for name in wanted]
        assert places == sorted(places)
        before = text(page, "#says")
        page.locator(".row input:checked").focus()
        with answered(page):
            page.keyboard.press("ArrowRight")
        assert text(page, "#says") != before


def test_a_picture_file_can_be_opened(browser, address, tmp_path):
    from PIL import Image

    Image.new("RGB", (300, 200), "#336699").save(tmp_path / "blue.png")
    (tmp_path / "words.png").write_text("no picture")
    with opened(browser, address, "desktop") as page:
        with answered(page):
            page.locator("#file").set_input_files(tmp_path / "blue.png")
        assert colours(page, "#given") == 1
        page.locator("#file").set_input_files(tmp_path / "words.png")
        page.wait_for_selector("#trouble:not([hidden])")
        assert "cannot be read" in text(page, "#trouble")


def test_the_page_says_what_a_plain_model_cannot_do_and_when_its_server_has_gone(browser, tmp_path):
    random_bundle(tmp_path / "plain", dual=False, bases=3)
    context = browser.new_context()
    context.set_default_timeout(SLOW)
    page = context.new_page()
    with serving(tmp_path / "plain") as plain:
        page.goto(plain)
        page.wait_for_selector("body[data-answers]")
        assert not page.locator("#robust").is_visible()
        assert "not trained for robustness" in text(page, "#robust-help")
        assert text(page, "h1") == "One model, one dial: how wide"
        said = text(page, "main")
        assert "two dials" not in said
        assert "both dials" not in said
        with answered(page):
            draw(page, DIGIT, finger=False)
        with answered(page):
            press(page, "#width", "ArrowLeft", 1)
        assert text(page, "#width-value") == "1/4"
        keep(page, "desktop-6-one-dial")
    press(page, "#width", "ArrowLeft", 1)
    page.locator("#trouble", has_text="does not answer").wait_for()  # what was asked before may hear of the stop first
    context.close()


def test_the_page_speaks_of_a_models_own_classes(browser, tmp_path):
    names = tuple(f"kind of beetle {i}" for i in range(10))
    random_bundle(tmp_path / "own", dual=False, bases=2, packing=Packing(image=(28, 28, 3), classes=names))
    with serving(tmp_path / "own") as own, opened(browser, own, "desktop") as page:
        assert "Draw a picture, or open a file" in text(page, "#says")
        assert "digit" not in text(page, ".bench")
        assert page.locator(".row input").count() == 0
        with answered(page):
            draw(page, DIGIT, finger=False)
        assert text(page, "#says b") in names
        assert page.locator("#bars .name").all_inner_texts() == list(names)
        keep(page, "desktop-7-own-classes")


def test_the_page_offers_the_examples_of_its_bundle(browser, tmp_path):
    names = tuple(f"beetle {i}" for i in range(10))
    own = random_bundle(tmp_path / "own", dual=False, bases=2, packing=Packing(image=(28, 28, 3), classes=names))
    pictures = np.random.default_rng(0).random((10, 28, 28, 3))
    write_examples(
        own, Examples(rows=[example_row("garden", pictures, names), example_row("wood", pictures[:3], names[:3])])
    )
    with serving(own.path, attack=None) as address, opened(browser, address, "desktop") as page:
        assert not any(page.locator(where).is_visible() for where in ("#attack", "#attacked", "#difference"))
        assert page.locator(".row > span").all_inner_texts() == ["garden", "wood"]
        assert page.locator(".row input").count() == 13
        assert page.locator(".row input:checked").get_attribute("aria-label") == "wood beetle 0"
        with answered(page):
            page.get_by_label("garden beetle 4").check(force=True)
        assert text(page, "#says").endswith(("which is right", "but it is beetle 4"))
        keep(page, "desktop-8-own-examples")


@pytest.mark.parametrize("size", SIZES)
def test_a_model_of_features_takes_numbers_and_tables(browser, tmp_path, size):
    made = own_bundle(tmp_path / "table", table_net, (4,), kind="features")
    (tmp_path / "flowers.csv").write_text("a,b,c,d\n5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n")
    with serving(made.path) as address, opened(browser, address, size) as page:
        assert "Paste numbers" in text(page, "#says")
        assert not page.locator("#pad").is_visible()
        assert not page.locator("#attack").is_visible()
        assert "4 numbers a line" in text(page, "#numbers-help")
        with answered(page):
            page.locator("#numbers").fill("1, 2, 3, 4")
        assert text(page, "#says b") in made.manifest.classes
        before = shares(page)
        with answered(page):
            page.locator("#table").set_input_files(tmp_path / "flowers.csv")
        assert shares(page) != before
        with answered(page):
            page.locator("#row").select_option("1")
        keep(page, f"{size}-9-numbers")
        page.locator("#numbers").fill("1, 2, x, 4")
        assert text(page, "#trouble") == 'Line 1: "x" is no number.'
        page.locator("#numbers").fill("1, 2")
        assert "has 2 numbers; the model takes 4" in text(page, "#trouble")
        assert "Paste numbers" in text(page, "#says")


def test_the_description_of_the_interface_needs_no_script(browser, address):
    context = browser.new_context(java_script_enabled=False, viewport=SIZES["phone"])
    context.set_default_timeout(SLOW)
    page = context.new_page()
    page.goto(f"{address}/docs")
    assert page.get_by_role("heading", name="POST /api/predict").is_visible()
    keep(page, "docs")
    context.close()
