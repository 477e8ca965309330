"""Commands for a trained model on a device: bundle it, adapt it, plan its dial."""

import json
from pathlib import Path

from splitmix.cli import Flag, Json, Widths, app, say
from splitmix.core.errors import UserError


@app.command
def bundle(
    run: Path,
    /,
    *,
    out: Path | None = None,
    half: Flag = False,
    calibrate: Flag = False,
    classes: Widths = None,
    image: str | None = None,
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
    as_json
        Print the manifest as JSON.
    """
    from splitmix.experiments.bundling import Wish, bundle_run

    size = parse_size(image) if image else ()
    wish = Wish("float16" if half else "float32", calibrate, tuple(classes or ()), size)
    made = bundle_run(run, out or run.with_name(f"{run.absolute().name}.bundle"), wish)
    if as_json:
        print(json.dumps(made.manifest.model_dump(mode="json", by_alias=True), indent=1))
        return
    costs = made.manifest.costs
    say(
        f"Bundle: {made.path}, {len(costs)} bases, {costs[-1].bytes / 1e6:.1f} MB; "
        f"width {costs[0].width} works with the first {costs[0].bytes / 1e6:.2f} MB"
    )


def parse_size(text: str) -> tuple[int, ...]:
    """HEIGHTxWIDTHxCHANNELS as numbers."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and 0 < int(part) <= 2048 for part in parts):
        raise UserError(f"'{text}' is not the size of an image; write HEIGHTxWIDTHxCHANNELS, such as 32x32x3")
    return tuple(map(int, parts))
