"""Small data sets in the formats of the originals, as their authors' programs write them."""

import bz2
import gzip
import io
import pickle
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def digit_images(labels, *shape):
    """Noise, with the label in the middle pixel."""
    x = RNG.integers(0, 256, (len(labels), *shape), dtype=np.uint8)
    x[:, shape[0] // 2, shape[1] // 2] = np.reshape(labels, (-1, *(1,) * (len(shape) - 2)))
    return x


def labels(count):
    return np.arange(count) % 10


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def idx(array) -> bytes:
    head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def write_mnist(folder: Path, counts=(60, 40)) -> list[np.ndarray]:
    made = []
    for name, count in zip(("train", "t10k"), counts, strict=True):
        made.append(digit_images(labels(count), 28, 28))
        write(folder / f"mnist/{name}-images-idx3-ubyte.gz", idx(made[-1]))
        write(folder / f"mnist/{name}-labels-idx1-ubyte.gz", idx(labels(count)))
    return made


def write_usps(folder: Path, counts=(60, 40)) -> list[np.ndarray]:
    made = []
    for name, count in zip(("usps", "usps.t"), counts, strict=True):
        made.append(digit_images(labels(count), 16, 16))
        lines = [
            f"{y + 1} " + " ".join(f"{i + 1}:{(v + 0.5) / 127.5 - 1:.5f}" for i, v in enumerate(x.ravel()))
            for x, y in zip(made[-1], labels(count), strict=True)
        ]
        write(folder / f"usps/{name}.bz2", bz2.compress("\n".join(lines).encode() + b"\n"))
    return made


def write_matlab(folder: Path, names: tuple[str, str], counts=(60, 40), zero=10) -> list[np.ndarray]:
    from scipy.io import savemat

    made = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in zip(names, counts, strict=True):
        made.append(digit_images(labels(count), 32, 32, 3))
        y = np.where(labels(count) == 0, zero, labels(count)).astype(np.uint8)[:, None]
        savemat(folder / name, {"X": made[-1].transpose(1, 2, 3, 0), "y": y}, do_compression=True)
    return made


def write_mnist_m(folder: Path, counts=(60, 40)) -> list[np.ndarray]:
    made = []
    for part, count in zip(("train", "test"), counts, strict=True):
        made.append(digit_images(labels(count), 32, 32, 3))
        lines = []
        for i, (x, y) in enumerate(zip(made[-1], labels(count), strict=True)):
            write(folder / f"mnist_m/mnist_m_{part}/{i:08d}.png", encoded(x, "PNG"))
            lines.append(f"{i:08d}.png {y}\n")
        write(folder / f"mnist_m/mnist_m_{part}_labels.txt", "".join(lines).encode())
    return made


def write_fedbn(folder: Path, name: str, shape: tuple[int, ...], protocol=4) -> np.ndarray:
    """Ten parts of 10 images and a test part of 20; gives the images to train on."""
    x = digit_images(labels(100), *shape)
    for part in range(10):
        rows = slice(10 * part, 10 * part + 10)
        data = pickle.dumps((x[rows], labels(100)[rows]), protocol)
        write(folder / f"fedbn/{name}/partitions/train_part{part}.pkl", data)
    write(folder / f"fedbn/{name}/test.pkl", pickle.dumps((x[:20], labels(100)[:20]), protocol))
    return x


CIFAR_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def cifar_batches(count=20) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: (digit_images(labels(count), 32, 32, 3), labels(count)) for name in CIFAR_BATCHES}


def planes(x) -> np.ndarray:
    return x.transpose(0, 3, 1, 2).reshape(len(x), 3072)


def cifar_binary(x, y) -> bytes:
    return np.concatenate([y[:, None].astype(np.uint8), planes(x)], axis=1).tobytes()


def text(value: bytes) -> bytes:
    """A Python 2 string."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def cifar_python(x, y, name=b"training batch 1 of 5") -> bytes:
    """What Python 2's cPickle wrote at protocol 2: a dict of strings, a list of numbers and a numpy array."""
    kind = b"cnumpy\ndtype\nq\x05(" + text(b"u1") + b"K\x00K\x01tRq\x06(K\x03" + text(b"|")
    kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x03(cnumpy\nndarray\nq\x04(K\x00t" + text(b"b") + b"tRq\x07"
    array += b"(K\x01(M" + struct.pack("<H", len(x)) + b"M" + struct.pack("<H", 3072) + b"t" + kind + b"\x89"
    array += text(planes(x).tobytes()) + b"tb"
    numbers = b"]q\x02(" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    names = b"]q\x08(" + b"".join(text(b"thing_s_%06d.png" % i) for i in range(len(x))) + b"e"
    items = {b"batch_label": text(name), b"labels": numbers, b"data": array, b"filenames": names}
    return b"\x80\x02}q\x01(" + b"".join(text(key) + value for key, value in items.items()) + b"u."


def tar(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def write_cifar(folder: Path, version: str, *, count=20, unpacked=False) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    batches = cifar_batches(count)
    inside = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}[version]
    dump, end = {"binary": (cifar_binary, ".bin"), "python": (cifar_python, "")}[version]
    members = {f"{inside}/{name}{end}": dump(*batch) for name, batch in batches.items()}
    members[f"{inside}/readme.html"] = b"<html>"
    if unpacked:
        for name, data in members.items():
            write(folder / "cifar10" / name, data)
    else:
        write(folder / f"cifar10/cifar-10-{version}.tar.gz", tar(members))
    return batches


def encoded(x, format="JPEG") -> bytes:
    packed = io.BytesIO()
    Image.fromarray(x).save(packed, format)
    return packed.getvalue()


def write_pictures(folder: Path, domains, classes, count=5, size=20) -> None:
    """Class folders with pictures of one grey per class: 20 times its number."""
    for domain in domains:
        for number, name in enumerate(classes):
            for i in range(count):
                grey = np.full((size, size + i, 3), 20 * number, np.uint8)
                write(folder / domain / name / f"{domain}_{i:03d}.jpg", encoded(grey))


def write_domainnet(folder: Path, domains, classes, *, zipped, count=3) -> None:
    """DomainNet's .zip files or folders, and its lists: the last picture of each class is for testing."""
    base = folder / "domainnet"
    write_pictures(base, domains, [*classes, "zigzag"], count)
    for domain in domains:
        lists = {"train": "", "test": ""}
        for number, name in enumerate([*classes, "zigzag"]):
            for i in range(count):
                part = "test" if i == count - 1 else "train"
                lists[part] += f"{domain}/{name}/{domain}_{i:03d}.jpg {number + 17}\n"
        for part, lines in lists.items():
            write(base / f"{domain}_{part}.txt", lines.encode())
        if domain in zipped:
            shutil.make_archive(str(base / domain), "zip", base, domain)
            shutil.rmtree(base / domain)
