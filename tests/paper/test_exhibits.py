"""The paper's evidence: every table and figure is there, runs are shared and never repeated."""

import json
import re
import shutil
from pathlib import Path

import pytest

from splitmix.cli import main
from splitmix.compare.suite import Workshop
from splitmix.core.errors import UserError
from splitmix.runs.progress import Watcher
from splitmix.runs.records import read_metrics
from splitmix_paper import runs
from splitmix_paper.claims import UNKNOWN
from splitmix_paper.exhibit import Change, Evidence
from splitmix_paper.exhibits import EXHIBITS, find_exhibits, in_order_of_the_paper
from splitmix_paper.exhibits.widths import IMAGES, MACS, PARAMETERS
from splitmix_paper.report import REPORT, write_report
from splitmix_paper.rows import Rows
from splitmix_paper.runs import Store, jobs_of, work
from splitmix_paper.shown import Shown
from splitmix_paper.studies import SCALES, WIDTHS, method_words

LABELS = {  # every table and figure of the paper that shows a result or data, and how many exhibits it takes
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
WEIGHTING = EXHIBITS["weighting-digits"]


def test_every_table_and_figure_has_its_exhibits():
    labels = [label for exhibit in EXHIBITS.values() for label in exhibit.labels]
    assert {label: labels.count(label) for label in labels} == LABELS
    assert {exhibit.place for exhibit in EXHIBITS.values() if not exhibit.labels} == {"Beyond the paper"}
    places = [exhibit.place for exhibit in in_order_of_the_paper()]
    assert places[:4] == ["Table 1, CIFAR10", "Table 1, Digits", "Table 1, DomainNet", "Table 2"]
    assert places.index("Figure 2") < places.index("Figure 4") < places.index("Figure 10")
    assert all(list(map(len, costs[net])) == [4, 4] for costs in (MACS, PARAMETERS) for net in IMAGES)
    names = [exhibit.name for exhibit in find_exhibits(["table1-digits", "figure10-samples"])]
    assert names == ["figure10-samples", "table1-digits"]


def test_an_exhibit_says_what_it_expects_and_what_is_reduced():
    for exhibit in EXHIBITS.values():
        needs = exhibit.needs("cpu")
        assert len({need.label for need in needs}) == len(needs)
        assert exhibit.claims() or not exhibit.shareable
        assert not needs or exhibit.reduced("cpu")
        assert not exhibit.reduced("paper")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """All runs of each scale."""
    return {scale: jobs_of(EXHIBITS.values(), scale, Store(tmp_path_factory.mktemp(scale))) for scale in SCALES}


def test_every_run_has_a_config_and_is_known_by_it(planned):
    for jobs in planned.values():
        assert len({job.digest for job in jobs}) == len({job.folder for job in jobs}) == len(jobs)
        assert any(len(job.exhibits) > 1 for job in jobs)  # exhibits share runs


def test_no_run_takes_more_than_an_hour_on_two_cores_and_no_exhibit_but_one(planned):
    spent: dict[str, float] = {}
    for job in planned["cpu"]:
        assert job.whole is not None
        assert job.whole <= HOUR
        spent[job.exhibits[0]] = spent.get(job.exhibits[0], 0) + job.whole
    assert {name for name, seconds in spent.items() if seconds > HOUR} == {"table1-digits"}


def test_short_trainings_use_the_rates_that_were_best_on_validation_images(planned):
    best: dict[tuple[object, ...], tuple[float, float]] = {}
    trials = map(json.loads, (RESULTS / "rows" / "rates.jsonl").read_text().splitlines())
    for trial in (trial for trial in trials if trial["settings"]["recipe"] == "paper"):
        key = (trial["task"], trial["settings"].get("partition"), trial["method"])
        best[key] = max(best.get(key, (0.0, 0.0)), (trial["value"], trial["lr"]))
    configs = [job.config for job in planned["cpu"]]
    used = {((c.task, c.partition, " ".join(method_words(c.method))), c.lr) for c in configs}
    assert {(key, rate) for key, rate in used if key in best} == {(key, rate) for key, (_, rate) in best.items()}


def test_runs_of_other_seeds_or_in_mixed_precision_are_other_runs(tmp_path):
    changes = (Change(), Change(mixed=True), Change((4, 5)))
    usual, mixed, more = (jobs_of([WEIGHTING], "paper", Store(tmp_path), change) for change in changes)
    assert {job.config.precision for job in mixed} == {"mixed"}
    assert [job.config.seed for job in more] == [4, 4, 4, 5, 5, 5]
    assert not {job.folder for job in usual} & {job.folder for job in (*mixed, *more)}


@pytest.fixture(scope="module")
def made(once) -> Path:
    """All exhibits, run at the smallest scale, and their report."""
    return once("paper", make_exhibits)


def make_exhibits(out):
    work(jobs_of(EXHIBITS.values(), "smoke", Store(out)), Workshop())
    rows = Rows(out)  # all is kept before there is a report
    assert all(Evidence(exhibit, "smoke", rows).complete for exhibit in EXHIBITS.values())
    write_report("smoke", out)


@pytest.mark.slow
def test_all_exhibits_pass_at_the_smallest_scale_and_nothing_is_run_twice(made, monkeypatch):
    rows = Rows(made)
    for exhibit in EXHIBITS.values():
        shown = Shown(Evidence(exhibit, "smoke", rows))
        assert shown.evidence.complete, exhibit.name
        assert shown.cells or not exhibit.shareable
        unknown = [claim.text for claim, mine, _ in shown.verdicts if mine.word == UNKNOWN]
        assert [text for text in unknown if "authors' code" not in text] == [], exhibit.name
    monkeypatch.setattr(runs, "run_once", lambda *_: pytest.fail("a finished run was run again"))
    monkeypatch.setattr(runs, "measure", lambda *_: pytest.fail("a measured run was measured again"))
    work(jobs_of(EXHIBITS.values(), "smoke", Store(made)), Workshop())


@pytest.mark.slow
def test_numbers_of_the_report_are_those_of_the_runs(made):
    entries = {entry["name"]: entry for entry in json.loads((made / REPORT).read_text())["entries"]}
    text, checked = (made / "report.md").read_text(), 0
    folders = {job.digest: job.folder for job in jobs_of(EXHIBITS.values(), "smoke", Store(made))}
    for name in ("table1-digits", "table1-cifar10", "table5-iid", "figure12-contact"):
        runs = {(run["label"], str(run["seed"])): folders[run["config"]] for run in entries[name]["runs"]}
        for row in entries[name]["rows"]:
            for seed, value in row["seeds"].items():
                if (folder := runs.get((row["series"], seed))) is not None:
                    scores = json.loads((folder / "result.json").read_text())["scores"]
                    (score,) = [s for s in scores if (s["width"], s["norm"]) == (row["key"], "batch")]
                    assert value == pytest.approx(100 * score["accuracy"], abs=1e-3)
                    checked += 1
    assert checked > 40
    rows = {(row["series"], row["key"]): row for row in entries["table1-cifar10"]["rows"]}
    part = text.partition("## Table 1, CIFAR10")[2].partition("\n## ")[0]
    line = next(line for line in part.splitlines() if line.startswith("| Split-Mix |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    for place, width in enumerate(WIDTHS):
        row = rows["Split-Mix", width]
        assert cells[3 * place : 3 * place + 2] == [f"{row['mean']:.1f}", f"{row['paper']:.1f}"]
        assert float(cells[3 * place + 2]) == pytest.approx(row["mean"] - row["paper"], abs=0.051)


@pytest.mark.slow
def test_every_exhibit_is_in_the_page_which_needs_nothing_else(made):
    page = (made / "report.html").read_text()
    for name in EXHIBITS:
        assert f'id="{name}"' in page
        assert f"splitmix paper run {name} --scale smoke" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert page.count("<svg") >= 20
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_a_finished_run_is_found_under_any_name(made, tmp_path):
    shutil.copytree(made / "stand-in", tmp_path / "stand-in")
    job = jobs_of([EXHIBITS["table1-cifar10"]], "smoke", Store(made))[0]
    copy = shutil.copytree(job.folder, tmp_path / "runs" / "from elsewhere" / "one")
    file = copy / "config.toml"
    file.write_text(file.read_text().replace(str(made.resolve()), str(tmp_path.resolve())))
    again = jobs_of([EXHIBITS["table1-cifar10"]], "smoke", Store(tmp_path))[0]
    assert again.done
    assert again.folder == copy


class Impatient(Watcher):
    """Stops a run after its first round."""

    def round(self, row):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_queue_goes_on_where_it_stopped_and_outlives_a_run_that_breaks(tmp_path, monkeypatch):
    jobs, board = jobs_of([WEIGHTING], "smoke", Store(tmp_path)), []
    with pytest.raises(KeyboardInterrupt):
        work(jobs, Workshop(watch=lambda: [Impatient()]))
    assert not any(job.done for job in jobs)
    real = runs.run_once
    broken = jobs[1].folder
    monkeypatch.setattr(runs, "run_once", lambda *args: 1 / 0 if args[1] == broken else real(*args))
    with pytest.raises(UserError, match=r"SHeteroFL, seed 1 could not be done: ZeroDivisionError, see .*failure\.txt"):
        work(jobs, Workshop())
    assert [job.done for job in jobs] == [True, False, True]
    monkeypatch.undo()
    work(jobs, Workshop(say=board.append))
    assert board[0] == "[#############.......] 2 of 3 runs, 0 of 1 entries"
    assert board[-2:] == ["weighting-digits done", "[####################] 3 of 3 runs, 1 of 1 entries"]
    rounds = [row["round"] for row in read_metrics(jobs[0].folder) if row["kind"] == "round"]
    assert rounds == [0, 1]


@pytest.mark.slow
def test_the_exhibit_in_the_docs_runs_and_is_judged(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (RESULTS.parent / "docs" / "paper.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    store = Store(tmp_path)
    work(jobs_of([names["ROLLING"]], "smoke", store), Workshop())
    shown = Shown(Evidence(names["ROLLING"], "smoke", store.rows))
    assert {cell.place.series for cell in shown.cells} == {"fedrolex", "heterofl"}
    assert shown.summary != "not yet judged"
    assert shown.pictures


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "table1-digit"], "table1-digits"),
        (["run"], "no entry is named"),
        (["run", "all", "--scale", "gpu"], "unknown scale 'gpu'"),
        (["list", "--scale", "smok"], "smoke"),
        (["report", "--scale", "big"], "unknown scale 'big'"),
        (["run", "table2-digit-net", "--seeds", "-1"], "below 0"),
        (["run", "table2-digit-net", "--device", "tpu"], "unknown device"),
        (["keep", "there", "--scale", "smoke"], "mean nothing"),
        (["keep", "there", "--scale", "gpu"], "unknown scale 'gpu'"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["paper", *words, "--out", str(tmp_path)])
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert sentence in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.slow
def test_the_list_names_every_exhibit(capsys, tmp_path):
    main(["paper", "list", "--scale", "cpu", "--out", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(EXHIBITS)
    assert all(row["seconds"] is not None for row in rows)
