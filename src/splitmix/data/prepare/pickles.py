"""Pickled number arrays, read as data: nothing that a file names is ever imported or called.

CIFAR-10's python batches and FedBN's digits are pickles, and to unpickle is to run what a file asks for. Here the
opcodes are only looked at (`pickletools.genops`). Plain values, lists, tuples and dicts are kept; of all the names a
pickle may hold, four are known, those by which numpy writes an array, and each stands for a few lines of this file.
Whatever else occurs, the file is refused. So that no file takes long, however it is twisted, a list, dict or tuple is
part of one other alone (the value is a tree), keys are plain, and steps and depth are bounded.
"""

import io
import math
import pickletools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, printable, shown
from splitmix.core.files import fits_memory, layers

MOST_BYTES = 1 << 30  # of a file; the largest of those known has 200 MB
MOST_STEPS = 100_000  # opcodes; a batch of CIFAR-10 takes 40,000
DEEPEST = 8  # lists in lists
PLAIN = (str, bytes, int, float, type(None))
KEPT = (*PLAIN, bytearray, np.ndarray, list, tuple, dict)
KINDS = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8")


def read_pickled_arrays(file: str | Path, stream: BinaryIO) -> Any:
    """The value in a pickle of plain values and number arrays; `file` names it in errors."""
    try:
        return _plain_value(stream.read(MOST_BYTES + 1))
    except Exception as error:  # a damaged file can raise nearly anything
        why = printable(str(error)[:200]) or type(error).__name__
        raise UserError(f"cannot read {file} as a pickle of plain arrays ({why}); fetch the file anew") from None


def _plain_value(data: bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    machine = _Machine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in a broken string
        for steps, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if steps > MOST_STEPS:
                raise ValueError(f"it takes more than {MOST_STEPS:,} steps")
            machine.step(opcode.name, argument)
    (value,) = machine.stack
    for depth, layer in enumerate(layers(value)):
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        if not all(isinstance(item, KEPT) for item in layer):
            raise ValueError("it is not all plain values")
    return value


class _Mark:
    """Where a run of items begins on the stack."""


class _Name:
    """A name in the pickle: only a word here."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("numpy._core.", "numpy.core.")  # the same function in newer versions
        if self.text not in ("numpy ndarray", *KNOWN_CALLS):
            raise ValueError(f"it asks for {shown(text)}")


class _Kind:
    """A type of numbers; their byte order comes later."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code not in KINDS:
            raise ValueError("it holds other things than plain numbers")
        self.dtype = np.dtype(code)

    def build(self, state: Any) -> "_Kind":
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])
        return self


class _Draft:
    """An array without its numbers, which come later."""

    def __init__(self, *_: Any) -> None:
        self.places: list[int] = []  # of memory that it is remembered in

    def build(self, state: Any) -> NDArray[Any]:
        _, shape, kind, columns_first, raw = state
        return _array(raw, kind, shape, "F" if columns_first else "C")


def _array(raw: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    data = raw.encode("latin-1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as text
    if not isinstance(kind, _Kind) or not isinstance(shape, tuple) or not fits_memory(shape):
        raise ValueError("an array has no proper shape and type")
    if not isinstance(data, bytes | bytearray) or len(data) != math.prod(shape) * kind.dtype.itemsize:
        raise ValueError(f"an array of shape {shape} has not the numbers to fill it")
    return np.frombuffer(data, kind.dtype).reshape(shape, order="F" if order == "F" else "C")


KNOWN_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _Draft,
    "numpy.core.numeric _frombuffer": _array,
    "numpy dtype": _Kind,
}

VALUES = {  # opcodes that carry a value
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
}


class _Machine:
    """The stack and the memory that opcodes work on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in VALUES:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in EMPTY:
            self.stack.append(EMPTY[name]())
        elif name in OPCODES:
            OPCODES[name](self, argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it asks for {name}")

    def run(self) -> list[Any]:
        """Take the items since the last mark, and the mark."""
        items: list[Any] = []
        while not isinstance(item := self.stack.pop(), _Mark):
            items.append(item)
        return items[::-1]

    def top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"there is no {kind.__name__} to fill")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        items = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(items[::-1]))

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def update(self, items: list[Any]) -> None:
        if not all(isinstance(key, PLAIN) for key in items[::2]):
            raise ValueError("a dict has keys that are no plain values")
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("it asks for a name that is no text")
        self.stack.append(_Name(f"{module} {name}"))

    def store(self, place: int) -> None:
        self.memory[place] = self.stack[-1]
        if isinstance(self.stack[-1], _Draft):
            self.stack[-1].places.append(place)

    def recall(self, place: int) -> None:
        if isinstance(self.memory[place], list | dict | tuple):
            raise ValueError("it uses a list, dict or tuple twice")
        self.stack.append(self.memory[place])

    def reduce(self) -> None:
        given, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, _Name) or not isinstance(given, tuple):
            raise ValueError("it asks for a call")
        self.stack.append(KNOWN_CALLS[name.text](*given))

    def build(self) -> None:
        state, draft = self.stack.pop(), self.stack.pop()
        if not isinstance(draft, _Kind | _Draft) or not isinstance(state, tuple):
            raise ValueError("it asks for an object")
        built = draft.build(state)
        self.stack.append(built)
        if isinstance(draft, _Draft):
            self.memory |= dict.fromkeys(draft.places, built)
            draft.places.clear()


OPCODES: dict[str, Callable[[_Machine, Any], Any]] = {
    "TUPLE": lambda m, _: m.stack.append(tuple(m.run())),
    "LIST": lambda m, _: m.stack.append(m.run()),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "APPENDS": lambda m, _: m.extend(m.run()),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "SETITEMS": lambda m, _: m.update(m.run()),
    "SETITEM": lambda m, _: m.update([m.stack.pop(-2), m.stack.pop()]),
    "PUT": lambda m, place: m.store(int(place)),
    "BINPUT": lambda m, place: m.store(place),
    "LONG_BINPUT": lambda m, place: m.store(place),
    "MEMOIZE": lambda m, _: m.store(len(m.memory)),
    "GET": lambda m, place: m.recall(int(place)),
    "BINGET": lambda m, place: m.recall(place),
    "LONG_BINGET": lambda m, place: m.recall(place),
    "GLOBAL": lambda m, text: m.name(*text.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(m.stack.pop(-2), m.stack.pop()),
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
}
