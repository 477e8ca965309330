"""How a mutant is made of bytes that a reader takes: blind damage, hostile words, or forgery that keeps the form."""

import io
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutate = Callable[[bytes, Random], bytes]

VALUES = [  # in the place of anything in JSON
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.5, 1e308, "", "0", "1/8", "1/0", "-1/8", "NaN"),
    *("../../../../etc/passwd", "/etc/passwd", "os:system", "this:x", "builtins:print", "__import__('os')"),
    *("\x00", "\x1b[2J", "\ud800", "x" * 5000, "1e20000000", "1e-300000", "9" * 5000, "1/" + "9" * 5000),
    *([], {}, [[]], [1, 2], [0, 2**62, 2**62], [99999, 99999, 3], {"__class__": "os"}, {"name": "os:system"}),
    *(["../x"], [0] * 2000),
]
WORDS = [  # in the midst of anything
    *(b"[" * 3000, b"{" * 3000, b"(" * 3000, b'{"a":' * 3000, b"9" * 5000, b"1e20000000", b"1e999", b"-", b"NaN"),
    *(b"null", b"\x00", b"\xff\xfe", b"\x1b[31m", b"\r\n", b"\n", b"a." * 200, b"this:x", b"os\nsystem\n", b"Infinity"),
    *(b"'", b'"', b"\\", b"=", b"--", b";", b"%s%n", "\ud800".encode("utf-8", "surrogatepass"), "\u0661/8".encode()),
]
NUMBERS = [
    struct.pack(form, value)
    for form, value in zip("BBHHIIIQQQ", (0, 255, 0, 65535, 0, 2**31, 2**32 - 1, 0, 2**62, 2**64 - 1), strict=True)
]
STEPS = [  # opcodes of pickles
    *(
        b"(",
        b")",
        b"]",
        b"}",
        b"t",
        b"l",
        b"d",
        b"a",
        b"e",
        b"s",
        b"u",
        b"0",
        b"2",
        b"R",
        b"b",
        b"i",
        b"o",
        b"\x81",
        b"\x85",
    ),
    *(
        b"\x86",
        b"\x87",
        b"\x93",
        b"\x94",
        b"N",
        b"\x88",
        b"K\x01",
        b"M\xff\xff",
        b"J\xff\xff\xff\xff",
        b"q\x00",
        b"h\x00",
    ),
    *(b"cos\nsystem\n", b"cthis\nx\n", b"cnumpy\ndtype\n", b"\x8c\x04this", b"\x8a\x09" + b"\x00" * 8 + b"@", b"."),
]


def flip(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 4, 40))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def splice(data: bytes, rng: Random) -> bytes:
    """Some bytes come twice, go, move or become others."""
    at, size, to = rng.randrange(len(data) + 1), rng.randrange(1, 64), rng.randrange(len(data) + 1)
    piece = rng.choice((b"", data[at : at + size], rng.randbytes(size), data[to : to + size] * rng.choice((1, 2, 300))))
    return data[:at] + piece + data[at + rng.choice((0, size)) :]


def say(data: bytes, rng: Random) -> bytes:
    """A hostile word somewhere."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(WORDS) + data[at + rng.choice((0, 0, 1, 5)) :]


def count(data: bytes, rng: Random) -> bytes:
    """A number that lies."""
    number = rng.choice(NUMBERS)
    at = rng.randrange(len(data) + 1)
    return data[:at] + number + data[at + len(number) :]


BLIND: tuple[Mutate, ...] = (flip, cut, splice, say, count)


def blind(data: bytes, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(BLIND)(data, rng)
    return data


def replace_one(said: Any, rng: Random, values: Sequence[Any] = VALUES) -> None:
    """Replace, remove, rename or add one thing somewhere in a tree of lists and dicts."""
    while True:
        key = rng.choice(list(said) if isinstance(said, dict) else range(len(said)))
        if not isinstance(said[key], dict | list) or not said[key] or rng.random() < 0.2:
            break
        said = said[key]
    what = rng.randrange(6)
    if what == 0:
        del said[key]
    elif what == 1 and isinstance(said, dict):
        said[rng.choice(("name", "path", "../x", "\x00", "__metadata__", "is"))] = rng.choice(values)
    elif what == 2 and isinstance(said, list):
        said.append(said[key])
    elif what == 3:
        for _ in range(rng.choice((1, 2, 400))):
            said[key] = [said[key]]
    else:
        said[key] = rng.choice(values)


def forge_json(data: bytes, rng: Random) -> bytes:
    """Something else in a tree of JSON, written well."""
    said = [json.loads(data)]
    for _ in range(rng.choice((1, 1, 2))):
        if said:
            replace_one(said, rng)
    return json.dumps(said[0] if said else None).encode()


def forge_zip(data: bytes, rng: Random) -> bytes:
    """A member that is damaged, with a checksum that fits, packed in some way."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    head = 8 + rng.randrange(140)  # where the header of an array lies
    members[name] = blind(members[name][:head], rng) + members[name][head:]
    packed = io.BytesIO()
    way = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with zipfile.ZipFile(packed, "w", way) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return packed.getvalue()


def forge_array(data: bytes, rng: Random) -> bytes:
    """An array whose header says what a stranger likes, sometimes a bomb of zeros."""
    shape = rng.choice(
        ("(2, 2)", "(0, 4611686018427387904)", "(99999999999,)", f"({'1, ' * 40})", "(9" + "9" * 4500 + ",)", "(-1,)")
    )
    kind = rng.choice(
        ("'<f8'", "'|O'", "'|S0'", "'<U999999'", "[('a', '<f8')]", "'<M8[ns]'", "'>u1'", "__import__('this')")
    )
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "y"):
            content = b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(rng.choice((0, 8, 32, 10**6)))
            archive.writestr(f"{name}.npy", content)
    return packed.getvalue()


def forge_pickle(data: bytes, rng: Random) -> bytes:
    """Steps more or less, sometimes many."""
    steps = b"".join(rng.choice(STEPS) for _ in range(rng.randrange(1, 9))) * rng.choice((1, 1, 1, 50, 5000))
    at = rng.choice((2, rng.randrange(min(200, len(data))), len(data) - 1))
    return data[:at] + steps + data[at:]


OPERATORS = [  # in the place of an operator: some that a graph may take, and some that none may
    *("Relu", "Conv", "Gemm", "MatMul", "Add", "Reshape", "Transpose", "Slice", "Split", "Concat", "Gather", "Expand"),
    *("Pad", "MaxPool", "AveragePool", "Norm", "InstanceNormalization", "LayerNormalization", "ReduceMean", "Softmax"),
    *("ConvTranspose", "Spread", "Where", "Equal", "Greater", "Shape", "Cast", "If", "Loop", "Scan", "Constant"),
    *("ConstantOfShape", "Resize", "Tile", "Range", "NonZero", "LSTM", "os.system"),
]
SIDES = [-(2**63), -2, -1, 0, 1, 2, 3, 7, 8, 64, 1000, 4096, 2**20, 2**31, 2**31 - 1, 2**62, 2**63]


def forge_graph(graph: dict[str, Any], rng: Random) -> None:
    """Lie about a graph's operators, settings, shapes, names, constants or order; sometimes several times."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        steps = graph["steps"]
        step = rng.choice(steps) if steps else {}
        lie = rng.randrange(10)
        if lie == 0:
            step["op"] = rng.choice(OPERATORS)
        elif lie <= 2 and step.get("settings"):
            key = rng.choice(list(step["settings"]))
            value = step["settings"][key]
            if isinstance(value, list) and value and rng.random() < 0.8:
                value[rng.randrange(len(value))] = rng.choice(SIDES)
            else:
                step["settings"][key] = rng.choice([*SIDES, 0.5, -1e30, [], [-1] * 4, [1] * 9, [2**31] * 4])
        elif lie == 3:
            shape = rng.choice([graph["sample"], *graph["entries"].values()])
            shape[rng.randrange(len(shape))] = rng.choice(SIDES)
        elif lie == 4 and step:
            names = [name for other in steps for name in (*other["takes"], *other["gives"])]
            step[rng.choice(("takes", "gives"))] = rng.choices(names, k=rng.choice((1, 1, 2, 3)))
        elif lie == 5 and step:
            steps.remove(step)
        elif lie == 6 and step:
            steps.insert(rng.randrange(len(steps)), json.loads(json.dumps(step)))
        elif lie == 7:
            size = rng.choice((1, 2, 100, 70_000))
            graph["constants"][f"%{rng.randrange(10**6)}"] = {
                "shape": [rng.choice((size, 2**31))],
                "numbers": [0.5] * size,
            }
        elif lie == 8:
            place = {
                "op": "Expand",
                "takes": ["%0"],
                "gives": [f"%{rng.randrange(10**6)}"],
                "settings": {"shape": [rng.choice(SIDES)] * 4},
            }
            steps.append(place)
            graph["answer"] = rng.choice((*place["gives"], "%0", "../x"))
        elif lie == 9:
            replace_one(graph, rng)
            return  # nothing is where it was
