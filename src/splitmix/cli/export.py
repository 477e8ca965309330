"""The command that writes a bundle for other runtimes."""

from pathlib import Path

from splitmix.cli.options import Flag, Json, Words
from splitmix.cli.output import say, show_json
from splitmix.core.width import parse_dial, parse_width
from splitmix.runtime.export import export_bases, export_mix
from splitmix.runtime.model import Model


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

    A file takes images x as (batch, height, width, channel), float32 from 0 to 1, and the dial robust as one number
    from 0 to 1, and gives logits.

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
        say(f"{file.path}: {file.bytes / 1e6:.2f} MB, differs from the model by at most {file.difference:.0e}")
