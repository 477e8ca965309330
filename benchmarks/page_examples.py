"""The examples of the bundle in the package: of every domain of `mini`, the first test image of each digit.

python benchmarks/page_examples.py    writes examples.json into the bundle

A bundle of one's own gets them by `splitmix bundle RUN --examples 1`; the run of this one is not kept.
"""

from splitmix.data.tasks import find_task
from splitmix.runs.bundling import choose_examples
from splitmix.runtime.about.examples import write_examples
from splitmix.runtime.bundle import Bundle, packaged


def main() -> None:
    bundle = Bundle.open(packaged())
    write_examples(bundle, choose_examples(find_task("mini"), bundle.manifest.classes, each=1))


if __name__ == "__main__":
    main()
