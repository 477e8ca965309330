"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from splitmix.core.errors import UserError, unknown

Json = Annotated[bool, Parameter(name="--json", negative="")]
Flag = Annotated[bool, Parameter(negative="")]
Option = Annotated[list[str] | None, Parameter(name=["-o", "--option"], negative="")]
Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")]
Rates = Annotated[list[float] | None, Parameter(consume_multiple=True, negative="")]


@Parameter(name="*")
@dataclass(frozen=True)
class Machine:
    """Where clients are simulated.

    Parameters
    ----------
    workers
        Client processes; default: one per core.
    device
        cpu or cuda.
    data_root
        Folder of data sets; default: the variable SPLITMIX_DATA.
    """

    workers: int | None = None
    device: str = "cpu"
    data_root: Path | None = None

    def processes(self) -> int:
        return checked_workers(self.workers)

    def checked_device(self) -> str:
        import torch

        if self.device not in ("cpu", "cuda"):
            raise unknown("device", self.device, ("cpu", "cuda"))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda was asked for, but PyTorch sees no GPU here; use --device cpu")
        return self.device


HERE = Machine()


def checked_workers(workers: int | None) -> int:
    from splitmix.engines.simulator import default_workers

    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers} is too few; give 1 or more")
    return workers or default_workers()
