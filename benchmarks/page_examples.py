"""Draw the examples that the page offers: of every domain of `mini`, the first test image of each digit.

python benchmarks/page_examples.py    writes examples.png and examples.json beside the page
"""

import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import splitmix.serve
from splitmix.core.files import write_atomically
from splitmix.data.mini import mini_domains

FOLDER = Path(splitmix.serve.__file__).parent / "static"


def sheet() -> tuple[NDArray[np.uint8], list[str]]:
    """One picture with a row of ten digits for each domain, and the names of the domains."""
    domains = mini_domains()
    rows = [[domain.x_test[domain.y_test == digit][0] for digit in range(10)] for domain in domains]
    return np.vstack([np.hstack(row) for row in rows]), [domain.name for domain in domains]


def main() -> None:
    """Write the picture, and a note that says what is where."""
    from PIL import Image

    pixels, names = sheet()
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, format="PNG", optimize=True)
    note = {"side": 28, "domains": names, "labels": list(range(10)), "source": "mini, first test image of each digit"}
    write_atomically(FOLDER / "examples.png", png.getvalue())
    write_atomically(FOLDER / "examples.json", json.dumps(note).encode())


if __name__ == "__main__":
    main()
