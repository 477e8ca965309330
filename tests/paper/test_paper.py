"""The paper's evidence: the catalogue is whole, runs are shared and never repeated, the report says what rows say."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitmix.cli import main
from splitmix.compare.suite import Workshop
from splitmix.compare.tuning import read_tuning
from splitmix.core.batches import flip_and_turn
from splitmix.core.errors import UserError
from splitmix.core.reproducible import torch_rng_for
from splitmix.runs.config import make_config
from splitmix.runs.records import read_metrics
from splitmix_paper import queue
from splitmix_paper.catalogue import ENTRIES, find_entries, in_order_of_the_paper
from splitmix_paper.claims import FAILS, HOLDS, OPEN, UNKNOWN, grows, higher, near, times
from splitmix_paper.found import Found
from splitmix_paper.needs import Change, Store
from splitmix_paper.printed import MACS, NORMS, PARAMETERS, SCALINGS, TABLE4, WIDTHS
from splitmix_paper.queue import jobs_of, work
from splitmix_paper.report import write_report
from splitmix_paper.studies import SCALES, method_words
from splitmix_paper.views import View, entry_table

PLACES = {  # every table and figure of the paper that shows a result or data, and how many entries it takes
    "fig:domainnet_split_val_acc_converg": 1,
    "fig:slimmable_converg_curves": 1,
    "tbl:per_size": 3,
    "fig:train_efficiency": 1,
    "fig:DomainNet_domain_width_mat": 1,
    "fig:oat": 4,
    "fig:slimmable_converg_curves_time": 1,
    "fig:image_samples": 1,
    "tbl:digits": 1,
    "tbl:AlexNet": 1,
    "tab:ablation_scale": 1,
    "tbl:per_size_cls_niid": 2,
    "fig:vary_budget_dist_skew": 1,
    "fig:vary_budget_dist_step": 1,
    "fig:ln_budget_dist": 1,
    "fig:Digits_pr_nuser": 1,
    "fig:ex_split_val_acc_converg": 1,
}
HOUR = 3600.0
RESULTS = Path(__file__).parents[2] / "results"


def test_every_table_and_figure_has_its_entries():
    labels = [label for entry in ENTRIES.values() for label in entry.labels]
    assert {label: labels.count(label) for label in labels} == PLACES
    assert {entry.place for entry in ENTRIES.values() if not entry.labels} == {"Beyond the paper"}


def test_the_ablation_has_its_sixteen_rows_and_the_nets_their_costs():
    assert list(TABLE4) == [f"{norm}, {scaling}" for norm in NORMS for scaling in SCALINGS]
    for costs in (MACS, PARAMETERS):
        assert all(list(row) == list(WIDTHS) for net in costs.values() for row in net.values())


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_expects_and_what_is_reduced(name):
    entry = ENTRIES[name]
    needs = entry.needs("cpu")
    assert len({need.label for need in needs}) == len(needs)
    assert entry.claims or entry.shown == "samples"
    assert not needs or entry.reduced("cpu")
    assert not entry.reduced("paper")


@pytest.mark.parametrize("scale", SCALES)
def test_every_run_has_a_config_and_is_known_by_it(scale, tmp_path):
    jobs = jobs_of(ENTRIES.values(), scale, Store(tmp_path))
    assert len({job.config.digest() for job in jobs}) == len({job.folder for job in jobs}) == len(jobs)
    assert any(job.also for job in jobs)  # entries share runs


def test_runs_of_other_seeds_or_in_mixed_precision_are_other_runs(tmp_path):
    entries, store = [ENTRIES["weighting-digits"]], Store(tmp_path)
    usual, mixed, more = (jobs_of(entries, "paper", store, c) for c in (Change(), Change(mixed=True), Change((4, 5))))
    assert {job.config.precision for job in mixed} == {"mixed"}
    assert [job.config.seed for job in more] == [4, 4, 4, 5, 5, 5]
    assert not {job.folder for job in usual} & {job.folder for job in (*mixed, *more)}


@pytest.mark.parametrize("file", sorted((RESULTS / "rates").glob("*/tuning.json")), ids=lambda file: file.parent.name)
def test_short_trainings_use_the_rates_that_were_best_on_validation_images(file, tmp_path):
    tuning = read_tuning(file)
    tuned, chosen = make_config(tuning["settings"]), tuning["chosen"]
    jobs = jobs_of(ENTRIES.values(), "cpu", Store(tmp_path))
    same = [job for job in jobs if (job.config.task, job.config.partition) == (tuned.task, tuned.partition)]
    used = {(" ".join(method_words(job.config.method)), job.config.lr) for job in same}
    assert {(method, rate) for method, rate in used if method in chosen} == {(m, c["lr"]) for m, c in chosen.items()}


@pytest.mark.slow
def test_no_run_takes_more_than_an_hour_on_two_cores_and_no_entry_but_one(tmp_path):
    store, seen = Store(tmp_path), set()
    for entry in ENTRIES.values():
        jobs = [job for job in jobs_of([entry], "cpu", store) if job.config.digest() not in seen]
        seen |= {job.config.digest() for job in jobs}
        assert all(job.seconds is not None and job.seconds <= HOUR for job in jobs)
        assert entry.name == "table1-digits" or sum(job.seconds for job in jobs) <= HOUR


def test_claims_are_judged_by_their_numbers():
    values = {"a": {"1/8": [80.0, 82.0], "1": [85.0]}, "b": {"1/8": [81.2], "1": [70.0]}}
    above = higher("a above b at 1", (("a", "1"), ("b", "1")))
    assert above.judge(values).word == HOLDS
    assert above.judge(values).evidence == "a 1 against b 1: +15.0"
    assert higher("a above b at 1/8", (("a", "1/8"), ("b", "1/8"))).judge(values).word == OPEN
    assert higher("b above a", (("b", "1"), ("a", "1"))).judge(values).word == FAILS
    assert higher("by 20", (("a", "1"), ("b", "1")), by=20).judge(values).word == FAILS
    assert higher("not there", (("c", "1"), ("a", "1"))).judge(values).word == UNKNOWN
    assert grows("a grows", "a", ("1/8", "1")).judge(values).word == HOLDS
    assert grows("b grows", "b", ("1/8", "1")).judge(values).word == FAILS
    assert near("alike", (("a", "1/8"), ("b", "1/8")), within=0.5).judge(values).word == HOLDS
    assert times("half", ("b", "1"), ("a", "1"), most=0.5).judge(values).word == FAILS


def test_a_turned_picture_without_an_angle_is_the_picture_or_its_mirror_image():
    x = torch.rand(20, 3, 6, 8)
    turned = flip_and_turn(x, torch_rng_for(0), degrees=0)
    mirrored = [torch.equal(after, before.flip(-1)) for after, before in zip(turned, x, strict=True)]
    assert 0 < sum(mirrored) < 20
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, turned, x, strict=True))


def test_turned_pictures_keep_their_middle_and_lose_their_corners():
    x = torch.ones(50, 1, 33, 33)
    turned = flip_and_turn(x, torch_rng_for(0))
    assert (turned[:, :, 12:21, 12:21] == 1).all()
    assert (turned[:, 0, 0, 0] == 0).float().mean() > 0.5


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """All entries, run at the smallest scale."""
    out = tmp_path_factory.mktemp("paper")
    work(jobs_of(ENTRIES.values(), "smoke", Store(out)), Workshop())
    return out


@pytest.fixture(scope="module")
def report(made):
    return write_report("smoke", made)


@pytest.mark.slow
def test_all_entries_pass_at_the_smallest_scale(made):
    found = [Found(entry, "smoke", Store(made)) for entry in ENTRIES.values()]
    assert [one.entry.name for one in found if not one.complete] == []
    for one in found:
        assert View(one).rows or one.entry.shown == "samples"
        unknown = [claim.text for claim, mine, _ in View(one).verdicts if mine.word == UNKNOWN]
        assert [text for text in unknown if "authors' code" not in text] == [], one.entry.name


@pytest.mark.slow
def test_nothing_is_run_twice(made, monkeypatch):
    monkeypatch.setattr(queue, "run_once", lambda *_: pytest.fail("a finished run was run again"))
    monkeypatch.setattr(queue, "measure", lambda *_: pytest.fail("a measured run was measured again"))
    work(jobs_of(ENTRIES.values(), "smoke", Store(made)), Workshop())


@pytest.mark.slow
def test_a_finished_run_is_found_under_any_name(made, tmp_path):
    shutil.copytree(made / "tiny", tmp_path / "tiny")
    job = jobs_of([ENTRIES["table1-cifar10"]], "smoke", Store(made))[0]
    shutil.copytree(job.folder, tmp_path / "runs" / "from elsewhere" / "one")
    mine = tmp_path / "runs" / "from elsewhere" / "one" / "config.toml"
    mine.write_text(mine.read_text().replace(str(made.resolve()), str(tmp_path.resolve())))
    again = jobs_of([ENTRIES["table1-cifar10"]], "smoke", Store(tmp_path))[0]
    assert again.done
    assert again.folder == mine.parent


@pytest.mark.slow
def test_an_interrupted_queue_goes_on_where_it_stopped(tmp_path):
    jobs = jobs_of([ENTRIES["weighting-digits"]], "smoke", Store(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        work(jobs, Workshop(watch=lambda: [Impatient()]))
    assert not any(job.done for job in jobs)
    board = []
    work(jobs, Workshop(say=board.append))
    assert all(job.done for job in jobs)
    assert board[0] == "[....................] 0 of 3 runs, 0 of 1 entries"
    assert board[-1] == "weighting-digits done\n[####################] 3 of 3 runs, 1 of 1 entries"
    rounds = [row["round"] for row in read_metrics(jobs[0].folder) if row["kind"] == "round"]
    assert rounds == [0, 1]


class Impatient:
    """Stops a run after its first round."""

    def begin(self, setup, start):
        pass

    def round(self, row):
        raise KeyboardInterrupt

    def scores(self, rows):
        pass

    def note(self, text):
        pass

    def end(self):
        pass


@pytest.mark.slow
def test_what_cannot_be_run_is_said_and_the_rest_goes_on(tmp_path):
    said = []
    good = jobs_of([ENTRIES["weighting-digits"]], "smoke", Store(tmp_path))[0]
    bad = replace(good, label="broken", config=good.config.model_copy(update={"net": "digit"}), folder=tmp_path / "x")
    with pytest.raises(UserError, match="broken, seed 1 could not be done"):
        work([bad, good], Workshop(say=said.append))
    assert good.done
    assert any(line.startswith("  not done: ") for line in said)


@pytest.mark.slow
def test_a_run_that_breaks_leaves_its_reason_and_the_queue_goes_on(tmp_path, monkeypatch):
    first, second = jobs_of([ENTRIES["weighting-digits"]], "smoke", Store(tmp_path))[:2]
    real = queue.run_once
    monkeypatch.setattr(queue, "run_once", lambda *args: 1 / 0 if args[1] == first.folder else real(*args))
    with pytest.raises(UserError, match=r"ZeroDivisionError, see .*failure\.txt"):
        work([first, second], Workshop())
    assert second.done
    assert "ZeroDivisionError" in (first.folder / "failure.txt").read_text()


@pytest.mark.slow
def test_numbers_of_the_report_are_those_of_the_runs(made, report):
    entries = {entry["name"]: entry for entry in json.loads(report.rows.read_text())["entries"]}
    checked = 0
    for name in ("table1-digits", "table1-cifar10", "table5-iid", "figure12-contact"):
        folders = {(run["label"], run["seed"]): run["folder"] for run in entries[name]["runs"]}
        found = Found(ENTRIES[name], "smoke", Store(made))
        for row in entries[name]["rows"]:
            if row["series"] not in found.runs:
                continue  # scored in another way
            for seed, value in row["seeds"].items():
                folder = {run.seed: run.folder for run in found.runs[row["series"]].runs}[int(seed)]
                scores = json.loads((folder / "result.json").read_text())["scores"]
                (score,) = [s for s in scores if (s["width"], s["norm"]) == (row["key"], "batch")]
                assert value == 100 * score["accuracy"]
                checked += 1
            if row["paper"] is not None:
                assert row["difference"] == pytest.approx(row["mean"] - row["paper"])
        assert folders
    assert checked > 40


@pytest.mark.slow
def test_the_tables_show_the_rows(made, report):
    text, page = report.markdown.read_text(), report.page.read_text()
    rows = {(row["series"], row["key"]): row for row in _rows(report, "table1-cifar10")}
    line = next(line for line in _part(text, "Table 1, CIFAR10").splitlines() if line.startswith("| Split-Mix |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    for place, width in enumerate(WIDTHS):
        row = rows["Split-Mix", width]
        assert cells[3 * place] == f"{row['mean']:.1f}"
        assert cells[3 * place + 1] == f"{row['paper']:.1f}"
        assert float(cells[3 * place + 2]) == pytest.approx(row["difference"], abs=0.051)
        assert f">{row['mean']:.1f}<" in page


def _rows(report, name):
    return next(entry for entry in json.loads(report.rows.read_text())["entries"] if entry["name"] == name)["rows"]


def _part(text, heading):
    return text.partition(f"## {heading}")[2].partition("\n## ")[0]


@pytest.mark.slow
def test_every_entry_is_in_the_page_which_needs_nothing_else(report):
    page = report.page.read_text()
    for name in ENTRIES:
        assert f'id="{name}"' in page
        assert f"splitmix paper run {name} --scale smoke" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert page.count("<svg") >= 20
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_what_was_not_run_is_listed_as_such(tmp_path, monkeypatch):
    monkeypatch.delenv("SPLITMIX_DATA", raising=False)
    files = write_report("cpu", tmp_path)
    assert "The data is not at hand" in files.page.read_text()
    text = files.markdown.read_text()
    assert text.count("Not run yet. Run it with: `splitmix paper run ") >= len(ENTRIES) - 3
    assert "splitmix paper run table1-digits --scale cpu" in text


@pytest.mark.slow
def test_a_table_has_the_paper_beside_ours(made):
    table = entry_table(View(Found(ENTRIES["table4-ablation"], "smoke", Store(made))))
    assert len(table.rows) == 16
    assert [column.heading for column in table.columns][1:4] == ["width 1/8", "paper", "diff."]


def test_the_report_follows_the_paper():
    places = [entry.place for entry in in_order_of_the_paper()]
    assert places[:4] == ["Table 1, CIFAR10", "Table 1, Digits", "Table 1, DomainNet", "Table 2"]
    assert places.index("Figure 2") < places.index("Figure 4") < places.index("Figure 10")
    assert places[-3:] == ["Beyond the paper"] * 3


def test_entries_are_found_by_name_in_the_order_of_the_catalogue():
    assert [entry.name for entry in find_entries(["table1-digits", "figure10-samples"])] == [
        "figure10-samples",
        "table1-digits",
    ]
    assert len(find_entries(["all"])) == len(ENTRIES)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["paper", "run", "table1-digit"], "table1-digits"),
        (["paper", "run"], "no entry is named"),
        (["paper", "run", "all", "--scale", "gpu"], "unknown scale 'gpu'"),
        (["paper", "list", "--scale", "smok"], "smoke"),
        (["paper", "report", "--scale", "big"], "unknown scale 'big'"),
        (["paper", "run", "table2-digit-net", "--seeds", "-1"], "below 0"),
        (["paper", "run", "table2-digit-net", "--device", "tpu"], "unknown device"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main([*words, "--out", str(tmp_path)])
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert sentence in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.slow
def test_the_list_names_every_entry(capsys, tmp_path):
    main(["paper", "list", "--scale", "cpu", "--out", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(ENTRIES)
    assert all(row["seconds"] is not None for row in rows)
