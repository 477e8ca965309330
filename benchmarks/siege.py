"""Everything at once that a server must stand, from one address; run by benchmarks/serve.py until it is ended.

python benchmarks/siege.py 127.0.0.1 8000
"""

import asyncio
import io
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from PIL import Image

ENEMY = "127.0.0.2"  # another address of this machine
LINES = 600  # that are opened and left half-sent
PERSISTENT = 4  # connections that repeat each of the other attacks


def request(path: str, body: bytes = b"", kind: str = "application/json", host: str = "localhost") -> bytes:
    """A request that closes its line."""
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: {kind}"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def exchange(place: tuple[str, int], asked: bytes) -> bytes:
    """Ask on a line of its own, and wait for the whole answer."""
    with socket.create_connection(place, timeout=60) as line:
        line.sendall(asked)
        answer = b""
        while piece := line.recv(1 << 16):
            answer += piece
    return answer


def attacks() -> Iterator[bytes]:
    """One request of each kind."""
    pixels = np.zeros((28, 28, 3), int).tolist()
    ask = "/api/predict"
    yield request(ask, json.dumps({"pixels": pixels, "attack": True}).encode())
    yield request(ask, json.dumps({"pixels": pixels, "width": "1e20000000"}).encode())
    yield request(ask, json.dumps({"pixels": pixels, "width": "9" * 900_000}).encode())
    yield request(ask, json.dumps({"pixels": pixels, **{f"key {i}": i for i in range(40_000)}}).encode())
    yield request(ask, b'{"pixels": ' + b"[" * 400_000)
    yield request(ask, b"--x\r\nno colon\r\n\r\n", "multipart/form-data; boundary=x")
    yield request("/api/manifest", host="evil.example")
    yield request("/api/plan?max_ms=1")
    for picture in pictures():
        form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + picture + b"\r\n--x--\r\n"
        yield request(ask, form, "multipart/form-data; boundary=x")


def pictures() -> Iterator[bytes]:
    """A JPEG of 3,000 scans, one of countless pieces, and the largest that is taken."""
    blank = Image.new("L", (2000, 2000))
    whole = saved(blank, "JPEG", progressive=True)
    yield whole[:-2] + whole[whole.rfind(b"\xff\xda") : -2] * 3000 + whole[-2:]
    yield whole[:2] + b"\xff\xfe\x00\x02" * 200_000 + whole[2:]
    yield saved(blank.convert("RGBA"), "PNG")


def saved(picture: Image.Image, kind: str, **options: bool) -> bytes:
    file = io.BytesIO()
    picture.save(file, format=kind, **options)
    return file.getvalue()


async def sent_again(place: tuple[str, int], sent: bytes, pause: float) -> None:
    """A line on which something is sent, perhaps half of a request, and which is opened anew when it is closed."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*place, local_addr=(ENEMY, 0))
            writer.write(sent)
            await reader.read()
            writer.close()
        await asyncio.sleep(pause)


async def main(place: tuple[str, int]) -> None:
    head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\n"
    halves = [head, head + b"Content-Length: 900\r\n\r\n{", b""]
    lines = [sent_again(place, halves[i % len(halves)], pause=1) for i in range(LINES)]  # half-sent
    whole = [sent_again(place, sent, pause=0.01) for sent in attacks() for _ in range(PERSISTENT)]
    await asyncio.gather(*lines, *whole)


if __name__ == "__main__":
    asyncio.run(main((sys.argv[1], int(sys.argv[2]))))
