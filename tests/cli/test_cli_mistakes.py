"""Mistakes on the command line: one sentence for each, and nothing is written."""

import pytest
import torch

from helpers.commands import OPTIONS, TRAIN
from splitmix.cli import main

pytestmark = pytest.mark.slow  # whole runs and commands

MISTAKES = [
    # names
    (("train", "digts"), "did you mean 'digits'?"),
    (("train", "no/such/folder"), "there is no file or folder 'no/such/folder'"),
    ((*TRAIN, "-o", "method=splitmx"), "did you mean 'splitmix'?"),
    ((*TRAIN, "-o", "method={name='splitmix', colour=3}"), "unknown setting of method splitmix 'colour'"),
    ((*TRAIN, "-o", "net=digt"), "did you mean 'digit'?"),
    ((*TRAIN, "-o", "net=nowhere:build"), "cannot import net 'nowhere:build'"),
    ((*TRAIN, "-o", "net=lame:built"), "module 'lame' has no function 'built'"),
    ((*TRAIN, "-o", "net=lame:build"), "no net today"),
    ((*TRAIN, "-o", "rond=3"), "unknown key 'rond'; did you mean 'rounds'?"),
    ((*TRAIN, "-o", "objective=plian"), "did you mean 'plain'?"),
    ((*TRAIN, "-o", "norm=bacth"), "did you mean 'batch'?"),
    ((*TRAIN, "-o", "budgets=exponentail"), "did you mean 'exponential'?"),
    ((*TRAIN, "-o", "partition=iidd"), "did you mean 'iid'?"),
    (("train", "two.toml"), "unknown key 'rond'"),
    (("train", "two.toml"), "lr: input should be greater than 0"),
    (("cost", "digti"), "did you mean 'digit'?"),
    (("budgets", "lognorml"), "did you mean 'lognormal'?"),
    (("data", "prepare", "digist"), "did you mean 'digits'?"),
    (("data", "show", "minni"), "did you mean 'mini'?"),
    (("eval", "run", "--split", "tset"), "did you mean 'test'?"),
    (("eval", "run", "--norm", "tracked"), "choose client, global, batch"),
    (("eval", "run", "--attack", "pdg20"), "did you mean 'pgd20'?"),
    (
        ("eval", "run", "--attack", "{name='pgd20', ep=0.1}"),
        "unknown setting of attack pgd20 'ep'; did you mean 'eps'?",
    ),
    (("eval", "run", "--attack", "pgd20", "--norm", "batch"), "choose --norm client or global"),
    (("eval", "run", "--robust", "0", "0.5"), "the run in 'run' has no robustness dial"),
    (("eval", "run", "--robust", "1.5"), "robustness dial 1.5 is outside [0, 1]"),
    (("eval", "run", "--robust", "-0.5"), "robustness dial -0.5 is outside [0, 1]"),
    (("eval", "run", "--robust", "nan"), "'nan' is not a robustness dial"),
    (("eval", "run", "--images", "3"), "belong to a grid"),
    (("eval", "run", "--attack", "pgd7", "--images", "0"), "--images 0 leaves nothing to score"),
    (("eval", "run", "--masking", "--attack", "autoattack"), "steps are counted of PGD"),
    (("eval", "run", "--masking", "--out", "m.json"), "leave out --out"),
    ((*TRAIN, "-o", "objective={name='adversarial', weigth=1}"), "did you mean 'weight'?"),
    ((*TRAIN, "-o", "objective={name=adversarial}"), "is not TOML; write text in quotes and 0.5 with its zero"),
    ((*TRAIN, "-o", "data={label=kind}"), "in a shell single quotes around all of it"),
    (
        (*TRAIN, "-o", "data=size=20", "data=label=kind"),
        "'data=label=kind' is more than this command takes; write each",
    ),
    (
        (*TRAIN, "-o", "objective=adversarial", "-o", "norm=batch"),
        "norm 'batch' keeps no statistics of attacked images",
    ),
    ((*TRAIN, "-o", "norm=tracked", "-o", "statistics=chosen"), "choose norm 'post', or leave statistics out"),
    # words
    (("trian",), 'Did you mean "train"?'),
    (("data", "shwo", "mini"), 'Did you mean "show"?'),
    (("train", "--wrokers", "2"), "Did you mean --workers?"),
    (("train", "--rounds", "2"), "--rounds is not an option but a setting of the run; give -o rounds=VALUE"),
    (("compare", "--eval-every=2"), "give -o eval_every=2"),
    (("train", "mini", "more"), "more"),
    (("eval",), "requires an argument"),
    (("train", "-o"), "requires an argument"),
    (("train", "-o", "rounds"), "write key=value"),
    ((*TRAIN, "--workers", "some"), "--workers"),
    # numbers
    (("cost", "digit", "--width", "3/16"), "not a multiple of the atom 1/8"),
    (("cost", "digit", "--width", "1/2", "--atom", "1/3"), "not a multiple of the atom 1/3"),
    (("cost", "digit", "--width", "2"), "outside (0, 1]"),
    (("cost", "digit", "--atom", "thin"), "'thin' is not a width"),
    (("cost", "digit", "--image", "0x0x3"), "'0x0x3' is not the size of an image"),
    (("cost", "digit", "--image", "33x33x3"), "cannot be run on images of 33x33x3"),
    (("cost", "lame:build"), "the net 'lame:build' cannot be run: no net today"),
    (("cost", "helpers.toys:plain_build"), "give --image"),
    (("eval", "run", "--width", "1", "3/8"), "not a multiple of the atom 1/4"),
    (("eval", "run", "--workers", "0"), "--workers 0 is too few"),
    ((*TRAIN, "-o", "budgets=1/8 1"), "client 0 has a budget of 1/8, below the atom 1/4"),
    ((*TRAIN, "-o", "atom=3/8"), "one over a whole number"),
    ((*TRAIN, "-o", "rounds=-1"), "rounds: "),
    ((*TRAIN, "-o", "lr=nan"), "lr: "),
    ((*TRAIN, "-o", "seed=-1"), "seed: "),
    ((*TRAIN, "--workers", "-1"), "--workers -1 is too few"),
    (("budgets", "exponential", "--clients", "0"), "0 clients is too few"),
    (("budgets", "--out", "b.png"), "name the budgets to draw"),
    # data
    ((*TRAIN, "-o", "clients=61"), "as some would have no data; ask for fewer clients"),
    ((*TRAIN, "-o", "clients=24"), "no client of the task 'own' has 2 validation images"),
    ((*TRAIN, "-o", "clients=1"), "1 clients cannot cover 2 domains"),
    (("train", "nan", *OPTIONS), "south.npz: training data of domain 'south': there are NaN or infinite pixels"),
    (("train", "negative", *OPTIONS), "run from -1 to 1, out of range"),
    (("train", "far", *OPTIONS), "labels in 'far' run up to 1000000000, out of range"),
    (
        ("train", "own", *OPTIONS, "-o", "net=digit"),
        "the net takes images of shape (28, 28, 3), but the task 'own' has",
    ),
    (("train", "mixed", *OPTIONS), "have shape (7, 6, 1), those of 'north' (6, 6, 1)"),
    (("train", "objects", *OPTIONS), "an array of objects or records, not of plain numbers"),
    (("train", "half", *OPTIONS), "cannot read half/south.npz"),
    (("train", "empty", *OPTIONS), "'empty' is an empty folder"),
    (("train", "digits"), "no data root is set; name one by --data-root or the environment variable SPLITMIX_DATA"),
    (("train", "digits", "--data-root", "empty"), "digits/mnist.npz, digits/svhn.npz, digits/usps.npz"),
    (("train", "digits", "--data-root", "empty"), "each file is an .npz with x_train, y_train, x_test, y_test"),
    (("train", "cifar10", "--data-root", "empty"), "data is missing under empty"),
    (("data", "prepare", "digits", "--data-root", "nowhere"), "data is missing under nowhere"),
    (("train", "digits", "-o", "clients=7"), "give a multiple of 5"),
    # files
    (("train", "nowhere.toml"), "there is no config file 'nowhere.toml'"),
    (("train", "broken.toml"), "the config file 'broken.toml' cannot be read"),
    ((*TRAIN, "--out", "file"), "cannot write to the output folder 'file'"),
    ((*TRAIN, "--out", "file/run"), "cannot write to the output folder 'file/run'"),
    ((*TRAIN, "--out", "run"), "'run' already holds a run; go on with --resume or choose another --out"),
    ((*TRAIN, "--out", "run", "--resume", "-o", "lr=0.3"), "lr = 0.1 (now 0.3)"),
    ((*TRAIN, "--out", "corrupt", "--resume"), "no checkpoint in 'corrupt/checkpoints' can be used"),
    (("eval", "own"), "'own' is not a run's folder"),
    (("eval", "unfinished"), "the run in 'unfinished' is not finished"),
    (("report", "own"), "'own' is not a run's folder"),
    (("report", "unfinished"), "is not finished"),
    (("data", "show", "own", "--out", "file/own.png"), "cannot be written"),
    (("budgets", "full", "--out", "file/b.png"), "file"),
    (("budgets", "full", "--out", "b.jpeg"), "choose a name that ends in .png, .svg or .pdf"),
    # bundles
    (("plan", "nowhere"), "there is no bundle 'nowhere'"),
    (("probe", "."), "is no bundle"),
    (("calibrate", "nowhere", "."), "there is no bundle 'nowhere'"),
    (("bundle", "nowhere"), "there is no folder 'nowhere'"),
    (("bundle", "nowhere", "--image", "3x3"), "'3x3' is not the size of an image"),
    (("plan", "digit", "--train"), "--train needs the memory of the client"),
    (("plan", "digt", "--train", "--max-mb", "4"), "did you mean 'digit'"),
    # machines
    ((*TRAIN, "--device", "gpu"), "unknown device 'gpu'"),
]


def files(folder):
    """Everything in a folder but Python's own bytecode, and when it was last written."""
    kept = [file for file in folder.rglob("*") if file.is_file() and file.parent.name != "__pycache__"]
    return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in kept}


def refused(capsys, *arguments):
    """The one line on standard error that a command answers with."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    assert left.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("splitmix: ")
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=map(str, range(len(MISTAKES))))
def test_a_mistake_is_one_sentence_and_nothing_is_written(here, capsys, arguments, words):
    before = files(here)
    assert words in refused(capsys, *arguments)
    assert files(here) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(here, capsys):
    assert "sees no GPU here; use --device cpu" in refused(capsys, *TRAIN, "--device", "cuda")


@pytest.mark.parametrize("folder", [("report",), ("eval",), ("train", "mini", "--out")])
def test_names_that_could_steer_a_terminal_are_printed_harmless(capsys, tmp_path, folder):
    (tmp_path / "red\x1b[31m").write_text("a file")
    said = refused(capsys, *folder, str(tmp_path / "red\x1b[31m"))
    assert said.rstrip("\n").isprintable()
    assert "red\ufffd[31m" in said
