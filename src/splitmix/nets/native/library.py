"""The compiled kernels: made once for a compiler, a processor and a source, kept in the user's cache, and loaded."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NoReturn

import torch
from torch import Tensor

from splitmix.core.errors import UserError
from splitmix.core.files import cache_folder

HERE = Path(__file__).parent
SOURCES = ("conv.c", "linear.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-O3", "-march=native", "-shared", "-fPIC"),
    # nothing here looks at error numbers, traps or the sign of zero; and rows are too short for a call of memcpy
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fno-tree-loop-distribute-patterns"),
)
OPERANDS = {  # how many tensors a kernel takes before epsilon, and after it
    "conv_forward": (5, 6),
    "conv_backward": (4, 11),
    "linear_forward": (5, 4),
    "linear_backward": (4, 9),
}
OTHERWISE = "or train with kernels = 'torch'"
SHAPE = ("batch", "bases", "inputs", "outputs")
SWITCHES = ("shared", "pool", "normed")


class ConvSizes(ctypes.Structure):
    """Of a convolution, as the C structure has them."""

    _fields_ = tuple((name, ctypes.c_long) for name in (*SHAPE, "height", "width", "kernel", "pad", *SWITCHES))


class LinearSizes(ctypes.Structure):
    """Of a linear map, as the C structure has them."""

    _fields_ = tuple((name, ctypes.c_long) for name in SHAPE)


Sizes = ConvSizes | LinearSizes


def call(name: str, sizes: Sizes, *operands: Tensor | float | None) -> None:
    """Call a kernel: tensors are given by their place in memory, so they must be contiguous."""
    given = [value.data_ptr() if isinstance(value, Tensor) else value for value in operands]
    if getattr(library(), name)(ctypes.byref(sizes), *given):
        raise MemoryError("there is not enough memory for a layer")


def numbers(name: str, sizes: Sizes) -> int:
    """How many numbers a kernel keeps of a channel or an output."""
    return int(getattr(library(), name)(ctypes.byref(sizes)))


@cache
def library() -> ctypes.CDLL:
    """The kernels, loaded; compiled before if this machine has not done so yet."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise UserError(
            f"native kernels need a C compiler, and there is no 'cc' here; install gcc or clang, {OTHERWISE}"
        )
    path = cache_folder("kernels") / f"{digest(compiler)}.so"
    if not path.exists():
        compile_to(path, compiler)
    loaded = ctypes.CDLL(str(path))
    for name, (before, after) in OPERANDS.items():
        kinds = [ctypes.c_void_p] * (1 + before), ctypes.c_float, [ctypes.c_void_p] * after
        getattr(loaded, name).argtypes = [*kinds[0], kinds[1], *kinds[2]]
    for name in ("plane_for", "span_for"):
        getattr(loaded, name).restype = ctypes.c_long
    return loaded


def digest(compiler: str) -> str:
    """Of the sources, the flags, and what the compiler says of itself and of this processor."""
    told = run([compiler, "-march=native", "-dM", "-E", "-x", "c", os.devnull])
    sources = [file.read_bytes() for file in sorted(HERE.glob("*.[ch]"))]
    return hashlib.sha256(b"\0".join([compiler.encode(), " ".join(FLAGS).encode(), told, *sources])).hexdigest()[:16]


def compile_to(path: Path, compiler: str) -> None:
    """Under another name first: several processes may do this at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".so", delete=False) as file:
            made = Path(file.name)
    except OSError as error:
        refuse(error)
    try:
        run([compiler, *FLAGS, *(str(HERE / name) for name in SOURCES), "-o", str(made), "-lm"])
        made.replace(path)
    except OSError as error:
        refuse(error)
    finally:
        made.unlink(missing_ok=True)


def run(command: list[str]) -> bytes:
    """What a compiler prints."""
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except subprocess.CalledProcessError as error:
        refuse((error.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[0])
    except OSError as error:
        refuse(error)


def refuse(reason: object) -> NoReturn:
    raise UserError(f"native kernels cannot be compiled here ({reason}); try another C compiler, {OTHERWISE}")


def fits(*tensors: Tensor | None) -> bool:
    """Whether the kernels can work on these: plain single precision, in this machine's memory."""
    plain = all(t is None or (t.dtype == torch.float32 and t.device.type == "cpu") for t in tensors)
    return plain and not torch.is_autocast_enabled("cpu")
