"""Downloading: what was fetched before is not fetched again, a broken download goes on where it stopped."""

import json
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from ssl import SSLError
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically
from splitmix.data.prepare.store import digest_of

Watch = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if the server tells
CHUNK = 1 << 18


def fetch(url: str, target: Path, *, md5: str = "", watch: Watch | None = None) -> None:
    """Bring a file here, unless it is here; with a checksum it is checked before it takes its name."""
    if target.exists():
        return
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, watch or (lambda *_: None))
    except HTTPError as error:
        raise UserError(f"{url} answers {error.code} {error.reason}; {_by_hand(target)}") from None
    except (URLError, HTTPException, TimeoutError, ConnectionError, SSLError) as error:
        reason = getattr(error, "reason", None) or error
        again = "repeat the command to go on, or " if part.exists() else ""
        raise UserError(f"{url} cannot be reached ({reason}); {again}{_by_hand(target)}") from None
    except OSError as error:
        raise UserError(f"'{part}' cannot be written ({error.strerror or error}); free some space") from None
    if md5 and digest_of(part, "md5") != md5:
        part.unlink()
        raise UserError(f"{url} has not the published checksum (md5 {md5}); {_by_hand(target)}")
    part.replace(target)
    _mark(part).unlink(missing_ok=True)


def _download(url: str, part: Path, watch: Watch) -> None:
    done = max(0, part.stat().st_size - 1) if part.exists() else 0  # one byte less: a range must not be empty
    headers = {"User-Agent": "splitmix", "Accept-Encoding": "identity"}
    if done and (version := _version(part)):
        headers |= {"Range": f"bytes={done}-", "If-Range": version}  # go on only if it is still the same file
    with urlopen(Request(url, headers=headers), timeout=60) as answer, part.open("ab") as file:
        if answer.status != 206:
            done = 0
        file.truncate(done)
        _remember(part, answer)
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            watch(part.name.removesuffix(".part"), done, total)
    if total is not None and done < total:
        raise URLError(f"the connection broke at {done:,} of {total:,} bytes")


def _version(part: Path) -> str:
    """What the server called the version of which a part is here."""
    with suppress(OSError, ValueError):
        return str(json.loads(_mark(part).read_text(encoding="utf-8")))
    return ""


def _remember(part: Path, answer: HTTPResponse) -> None:
    tag = answer.headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")
    write_atomically(_mark(part), json.dumps(version).encode())


def _mark(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _by_hand(target: Path) -> str:
    return f"fetch it by other means and put it at {target}"
