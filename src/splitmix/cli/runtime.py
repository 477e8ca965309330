"""Commands on bundles: make them, plan, probe and calibrate on a device, and export them for other runtimes."""

import sys
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.markdown import Markdown

from splitmix.cli.options import Flag, Json, Words, note, parse_image, say, show_json, show_rows
from splitmix.core.errors import UserError
from splitmix.core.width import parse_dial, parse_width
from splitmix.report.tables import Column, human
from splitmix.runs.records import main_scores, read_result
from splitmix.runtime.about.card import card as make_card
from splitmix.runtime.about.card import megabytes
from splitmix.runtime.about.examples import write_examples
from splitmix.runtime.bundle import Bundle, packaged
from splitmix.runtime.images import read_images
from splitmix.runtime.model import Model
from splitmix.runtime.plan import Limits, bases_that_fit
from splitmix.runtime.plan import plan as find_plan
from splitmix.runtime.probe import device
from splitmix.runtime.probe import probe as measure

RUNTIMES = {"onnx": "ONNX Runtime", "torch": "PyTorch"}
two_digits = "{:.2f}".format


def bundle(
    run: Path,
    /,
    *,
    out: Path | None = None,
    half: Flag = False,
    calibrate: Flag = False,
    classes: Words = None,
    image: str | None = None,
    examples: int = 0,
    data_root: Path | None = None,
    as_json: Json = False,
) -> None:
    """Pack a finished run for a device: a manifest and one file for each base, of which any first few will do.

    Examples:

      splitmix bundle runs/two

      splitmix bundle runs/two --out two.bundle --half

    Parameters
    ----------
    run
        Folder of a finished run of splitmix or fedensemble.
    out
        Folder of the bundle; default: that of the run with .bundle at its end.
    half
        Store weights as float16: half the bytes; they are served as float32.
    calibrate
        Bundle a run with norm=batch with fixed norm statistics, one set for all clients.
    classes
        Names of the classes; default: those of the task, or numbers.
    image
        Size of the images as HEIGHTxWIDTHxCHANNELS, where the run does not say.
    examples
        Test pictures of each class and domain for its page, up to 3; whoever has the bundle can see them.
    data_root
        Folder of data sets, where examples are taken from; default: the variable SPLITMIX_DATA.
    as_json
        Print the manifest as JSON.
    """
    from splitmix.data.task import Task  # what needs PyTorch is imported where it is used: a device has none
    from splitmix.runs.bundling import Packing, bundle_run, choose_examples
    from splitmix.runs.measure.evaluate import open_run

    size = parse_image(image, most=2048) if image else ()
    packing = Packing("float16" if half else "float32", calibrate, tuple(classes or ()), size)
    task = open_run(run, root=data_root).setup.task if examples else None
    made = bundle_run(run, out or run.with_name(f"{run.absolute().name}.bundle"), packing)
    if isinstance(task, Task):
        write_examples(made, choose_examples(task, made.manifest.classes, examples))
    if as_json:
        show_json(made.manifest.model_dump(mode="json", by_alias=True, exclude=made.manifest.unsaid))
        return
    costs = made.manifest.costs
    say(
        f"Bundle: {made.path}, {len(costs)} bases, {megabytes(costs[-1].bytes)} MB; "
        f"width {costs[0].width} works with the first {megabytes(costs[0].bytes)} MB"
    )
    normed = made.manifest.graph is None or made.manifest.graph.norms
    if normed and made.manifest.norm == "global" and main_scores(read_result(run))[0].get("norm") == "client":
        note("the run's main scores use each client's own norm statistics; the bundle has one set for all")


def card(bundle: Path | None = None, /, *, as_json: Json = False) -> None:
    """Print the model card of a bundle: its widths, what each costs and achieves, its data, norms, attack and limits.

    In a terminal it is laid out; elsewhere it is the Markdown that lies in the bundle as README.md.

    Example: splitmix card two.bundle

    Parameters
    ----------
    bundle
        Folder of a bundle; default: the one in the package.
    as_json
        Print the manifest, which it is made of, as JSON.
    """
    said = Bundle.open(bundle or packaged()).manifest
    if as_json:
        show_json(said.model_dump(mode="json", by_alias=True, exclude=said.unsaid))
        return
    console = Console()
    if console.is_terminal:
        console.print(Markdown(make_card(said), hyperlinks=False))
    else:
        print(make_card(said))


def calibrate(bundle: Path, folder: Path, /, *, most: int = 512, out: Path | None = None) -> None:
    """Adapt a bundle's norms to images of this device, without labels, and keep the result beside the bundle.

    Examples:

      splitmix calibrate two.bundle photos

      splitmix calibrate two.bundle photos --out here.safetensors

    Parameters
    ----------
    bundle
        Folder of a bundle.
    folder
        Folder of pictures, or of .npz files with images (or what else the model takes) as an array x.
    most
        Images to use, spread evenly over those there are.
    out
        File of the calibration; default: calibration.safetensors in the bundle.
    """
    if most < 1:
        raise UserError(f"--most {most} leaves no images; give 100 or more")
    model = Model.load(bundle)
    images = read_images(folder, model.image, most, model.bundle.manifest.sample)
    model.calibrate(images)
    file = model.save_calibration(out)
    given = "calibration=True" if out is None else f"calibration={str(file)!r}"
    command = f"splitmix serve {quote(str(bundle))} --calibration {quote(str(file))}"
    say(f"Calibrated on {len(images)} images: {file}; use it by Model.load({str(bundle)!r}, {given}), or {command}")


def probe(bundle: Path, /, *, fresh: Flag = False, as_json: Json = False) -> None:
    """Measure time and memory of every width of a bundle on this device; remembered, so that `plan` is quick.

    Example: splitmix probe two.bundle

    Parameters
    ----------
    bundle
        Folder of a bundle.
    fresh
        Measure again what was measured before.
    as_json
        Print JSON.
    """
    model = Model.load(bundle)
    found = measure(model, fresh=fresh)
    rows = [{**vars(row), "width": str(row.width), "macs": model.manifest.cost(row.width).macs} for row in found]
    columns = [
        *(Column("width", "width"), Column("ms", "ms", two_digits), Column("slow_ms", "slow ms", two_digits)),
        *(Column("mb", "MB", two_digits), Column("macs", "MACs", human)),
    ]
    threads = device(model.backend)["threads"]
    on = f"{threads} {'thread' if threads == 1 else 'threads'}"
    caption = (
        f"one image on {on}: what three runs in four exceed, and one in ten; "
        f"memory of weights and activations, without Python and {RUNTIMES[model.backend]}"
    )
    show_rows(f"{bundle} on this device", columns, rows, as_json, caption)


def plan(
    bundle: Path,
    /,
    *,
    max_ms: float | None = None,
    max_mb: float | None = None,
    max_macs: float | None = None,
    min_clean: float | None = None,
    min_robust: float | None = None,
    prefer: str = "clean",
    train: Flag = False,
    atom: str = "1/8",
    batch: int = 32,
    as_json: Json = False,
) -> None:
    """Find the best width and robustness within limits; exit code 1 if nothing keeps to them.

    Accuracies are the bundle's own, at the lower ends of their intervals; time and memory are measured on this device.

    Examples:

      splitmix plan two.bundle --max-ms 2 --min-clean 0.5

      splitmix plan two.bundle --max-mb 4 --min-robust 0.4 --prefer latency

      splitmix plan digit --train --max-mb 16

    Parameters
    ----------
    bundle
        Folder of a bundle; with --train the name of a net.
    max_ms
        Milliseconds for one image.
    max_mb
        Megabytes of memory, for weights and activations.
    max_macs
        Multiplications for one image.
    min_clean
        Accuracy on clean images, from 0 to 1.
    min_robust
        Accuracy under the attack that the bundle was measured with, from 0 to 1.
    prefer
        What to have most of within the limits: clean, robust or latency.
    train
        Say instead how many bases of a net a client can train in --max-mb of memory.
    atom
        Width of one base, for --train.
    batch
        Images in a training batch, for --train.
    as_json
        Print JSON.
    """
    if train:
        show_training(str(bundle), max_mb, atom, batch, as_json)
        return
    found = find_plan(Model.load(bundle), Limits(max_ms, max_mb, max_macs, min_clean, min_robust), prefer=prefer)
    if as_json:
        show_json(found.model_dump(mode="json"))
    else:
        say(f"{str(found)[0].upper()}{str(found)[1:]}")
    if not found.fits:
        sys.exit(1)


def show_training(net: str, max_mb: float | None, atom: str, batch: int, as_json: bool) -> None:
    """How many bases a client can train at once."""
    if max_mb is None or not 0 < max_mb < float("inf"):
        raise UserError("--train needs the memory of the client; give --max-mb, such as --max-mb 16")
    if batch < 2:
        raise UserError(f"--batch {batch} is too small; norms need 2 images or more")
    from splitmix.cli.lists import image_size
    from splitmix.nets import find_net

    base, build = parse_width(atom), find_net(net)
    size = image_size(net, build, None)
    bases = bases_that_fit(build, base, size, max_mb=max_mb, batch=batch)
    if as_json:
        show_json({"net": net, "atom": str(base), "batch": batch, "max_mb": max_mb, "bases": bases})
    elif bases:
        say(
            f"In {max_mb:g} MB a client can train {bases} of {int(1 / base)} bases of {net}: a budget of {base * bases}"
        )
    else:
        say(f"In {max_mb:g} MB a client cannot train even one base of {net}; choose a smaller --atom or --batch")
    if not bases:
        sys.exit(1)


def export(
    bundle: Path,
    /,
    *,
    format: str = "onnx",
    width: Words = None,
    robust: str | None = None,
    per_base: Flag = False,
    calibration: Path | None = None,
    out: Path | None = None,
    as_json: Json = False,
) -> None:
    """Write a bundle as ONNX or ExecuTorch files, each checked against the model before it is left on disk.

    A file takes images x (batch, height, width, channel), float32 from 0 to 1, or other samples as the model does.

    The dial robust is one number from 0 to 1, and logits come out. Nets of your own are written as ONNX only.

    Examples:

      splitmix export two.bundle --width 1/2

      splitmix export two.bundle --width 1/8 1 --robust 0.3 --out device

      splitmix export two.bundle --per-base

    Parameters
    ----------
    bundle
        Folder of a bundle (see `splitmix bundle`).
    format
        onnx, or pte for ExecuTorch on phones (one image at a time).
    width
        Widths to write, a file for each; default: the widest.
    robust
        Fix the robustness dial here: smaller and faster; default: it is an input of the file.
    per_base
        A file for each base of the widest width in place of one for the mix; the mean of their logits is the mix.
    calibration
        Take the norm statistics from this file of `splitmix calibrate`.
    out
        Folder of the files; default: that of the bundle with .export at its end.
    as_json
        Print the files as JSON.
    """
    from splitmix.runtime.export import export_bases, export_mix

    widths = [parse_width(text) for text in width or ()]
    fixed = None if robust is None else parse_dial(robust)
    folder = out or bundle.with_name(f"{bundle.absolute().name.removesuffix('.bundle')}.export")
    model = Model.load(bundle, calibration=calibration or False)
    if per_base:
        made = export_bases(model, folder, width=max(widths, default=None), robust=fixed, format=format)
    else:
        made = [
            export_mix(model, folder, width=one, robust=fixed, format=format)
            for one in dict.fromkeys(widths or model.widths[-1:])
        ]
    if as_json:
        show_json([{"path": str(m.path), "bytes": m.bytes, "difference": m.difference} for m in made])
        return
    for file in made:
        say(f"{file.path}: {megabytes(file.bytes)} MB, differs from the model by at most {file.difference:.0e}")
