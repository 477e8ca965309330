"""What reading must never do: import what a stranger names, start a program, load a library, open a line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMED = {"this", "antigravity"}  # modules that mutants name, and nobody else imports
FORBIDDEN = {
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.spawn", "os.posix_spawn", "subprocess.Popen", "pty.spawn"),
    *("pickle.find_class", "ctypes.dlopen", "socket.connect", "socket.bind", "shutil.rmtree"),
}
_watching: list[list[str]] = []


def _hear(event: str, details: tuple[Any, ...]) -> None:
    if _watching and (event in FORBIDDEN or (event == "import" and details[0].split(".")[0] in NAMED)):
        _watching[-1].append(f"{event} {str(details)[:80]}")


sys.addaudithook(_hear)


@contextmanager
def guarded() -> Iterator[list[str]]:
    """What was done meanwhile that must not be."""
    for name in NAMED:
        sys.modules.pop(name, None)
    done: list[str] = []
    _watching.append(done)
    try:
        yield done
    finally:
        _watching.pop()
