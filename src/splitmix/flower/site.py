"""A federation on one machine: a SuperLink and SuperNodes as processes of their own, started, looked at and stopped."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from time import monotonic, sleep

from pydantic import TypeAdapter

from splitmix.core.errors import UserError
from splitmix.core.files import write_atomically

SERVER = "server"
MARK = "SPLITMIX_FLOWER"  # a variable that all our processes have, wherever Flower started them
START = 300.0  # seconds until a SuperLink must answer
STOP = 15.0  # seconds until a process is killed


@dataclass(frozen=True)
class NodeProcess:
    """A SuperNode: the client that it is, and its process."""

    client: int
    config: Mapping[str, str]  # budget, and where its images come from
    pid: int = 0


@dataclass(frozen=True)
class Site:
    """A folder that knows a federation: its processes, logs, certificates, and Flower's own files."""

    path: Path
    address: str
    tls: bool
    link: int = 0  # process of the SuperLink
    server: int = 0  # process that starts servers for it
    nodes: tuple[NodeProcess, ...] = ()

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def authority(self) -> Path:
        return self.path / "tls" / "ca.crt"

    @property
    def clients(self) -> int:
        return len(self.nodes)

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def key(self, client: int) -> Path:
        return self.path / "tls" / f"node-{client}"

    def save(self) -> None:
        write_atomically(self.path / "site.json", TypeAdapter(Site).dump_json(self, indent=1))


def read_site(path: Path) -> Site:
    """The federation that a folder knows."""
    try:
        return replace(TypeAdapter(Site).validate_json((path / "site.json").read_bytes()), path=path.resolve())
    except FileNotFoundError:
        raise UserError(f"there is no federation in '{path}'; start one with: splitmix flower up --nodes 4") from None
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"'{path}' cannot be read ({why}); stop it by hand and remove the folder") from None


def start_link(path: Path, *, tls: bool) -> Site:
    """A SuperLink on a free port of this machine, which answers before this returns."""
    if sys.platform != "linux":
        raise UserError("a federation is started like this on Linux only; elsewhere start Flower's own programs")
    path = path.resolve()
    refuse_running(path)
    if tls:
        from splitmix.flower.tls import make_certificates

        make_certificates(path / "tls")
    for old in path.glob("link.db*"):
        old.unlink()
    site = Site(path, f"127.0.0.1:{free_port()}", tls)
    write_connection(site)
    return launch_link(site)


def launch_link(site: Site) -> Site:
    """Start the SuperLink, or start it again: it finds its nodes in its database."""
    host, _, port = site.address.rpartition(":")
    words = ["--host", host, "--port", port, "--database", str(site.path / "link.db")]
    words += ["--isolation", "process", "--disable-runtime-dependency-installation"]
    if site.tls:
        files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        words += [word for name, file in files.items() for word in (f"--ssl-{name}", str(site.path / "tls" / file))]
        words += ["--enable-supernode-auth"]
    else:
        words += ["--insecure"]
    site = replace(site, link=launch(site, "superlink", [program("flower-superlink"), *words]))
    site.save()
    wait_for(site)
    return site


def revive(site: Site) -> Site:
    """Start whatever has died."""
    running = marked(site.path)
    names = [] if {site.link, site.server} <= running else [SERVER]  # it serves one SuperLink, and ends with it
    if site.link not in running:
        site = launch_link(site)
    return launch_forked(site, [*names, *(str(node.client) for node in site.nodes if node.pid not in running)])


def refuse_running(path: Path) -> None:
    """A folder knows one federation at a time."""
    if marked(path):
        raise UserError(f"a federation is running in '{path}'; stop it first with: splitmix flower down --state {path}")


def start_nodes(site: Site, configs: Sequence[Mapping[str, str]]) -> Site:
    """A SuperNode for each of these configurations, numbered in their order."""
    if site.tls:
        from splitmix.flower.tls import make_node_key

        for client in range(len(configs)):
            flwr(site, "supernode", "register", str(make_node_key(site.key(client))), "local")
    site = replace(site, nodes=tuple(NodeProcess(client, config) for client, config in enumerate(configs)))
    return launch_forked(site, [SERVER, *map(str, range(len(configs)))])


def launch_forked(site: Site, names: Sequence[str]) -> Site:
    """Start these, or start them again: the SuperNodes of clients by their numbers, and what starts servers."""
    site.save()
    command = [sys.executable, "-m", "splitmix.flower.forking", str(site.path), *names]
    done = subprocess.run(command, env=environment(site), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the nodes did not start: {' '.join(done.stderr.split())[-300:]}")
    pids = {name: int(pid) for name, pid in map(str.split, done.stdout.splitlines())}
    nodes = tuple(replace(node, pid=pids.get(str(node.client), node.pid)) for node in site.nodes)
    site = replace(site, nodes=nodes, server=pids.get(SERVER, site.server))
    site.save()
    return site


def stop(path: Path) -> int:
    """End all processes of a federation; returns how many there were."""
    read_site(path)
    found = marked(path)
    signal_all(found, signal.SIGTERM)
    end = monotonic() + STOP
    while marked(path) and monotonic() < end:
        sleep(0.1)
        reap(found)
    signal_all(marked(path), signal.SIGKILL)
    while marked(path):
        sleep(0.05)
        reap(found)
    (path / "site.json").unlink(missing_ok=True)
    return len(found)


def signal_all(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def marked(path: Path, variable: str = MARK) -> set[int]:
    """The processes that belong to a federation, whoever started them; none that has ended."""
    wanted = f"{variable}={path.resolve()}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0") and is_running(int(process.name)):
                found.add(int(process.name))
    return found - {os.getpid()}


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reap(pids: set[int]) -> None:
    """Let go of those that were children of this process."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def launch(site: Site, name: str, command: Sequence[str]) -> int:
    """Start a process that outlives us, in a group of its own, with a log."""
    site.log(name).parent.mkdir(parents=True, exist_ok=True)
    with site.log(name).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(site),
            start_new_session=True,
        )
    process.returncode = 0  # it is not ours to wait for
    return process.pid


def environment(site: Site) -> dict[str, str]:
    """Variables that keep Flower to itself: no telemetry, no downloads, its files in the site's folder."""
    binaries = str(Path(sys.executable).parent)
    modules = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]  # a user's own nets and loaders
    return {
        **os.environ,
        "PATH": os.pathsep.join([binaries, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(modules),
        "FLWR_HOME": str(site.home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        MARK: str(site.path),
    }


def write_connection(site: Site) -> None:
    """Flower's own configuration: where its commands find the SuperLink."""
    how = f'root-certificates = "{site.authority}"' if site.tls else "insecure = true"
    text = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{site.address}"\n{how}\n'
    write_atomically(site.home / "config.toml", text.encode())


def flwr(site: Site, *words: str) -> str:
    """Run a command of Flower's, and return what it says."""
    done = subprocess.run(
        [program("flwr"), *words], env=environment(site), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = " ".join((done.stderr + done.stdout).split())
        raise UserError(f"'flwr {words[0]} {words[1]}' failed: {said[-300:]}")
    return done.stdout


def wait_for(site: Site) -> None:
    """Until the SuperLink answers."""
    secure = ssl.create_default_context(cafile=str(site.authority)) if site.tls else None
    url, end = f"{'https' if site.tls else 'http'}://{site.address}/health", monotonic() + START
    while monotonic() < end:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=5, context=secure).close()
            return
        if site.link not in marked(site.path):
            break
        sleep(0.2)
    log = site.log("superlink")
    lines = log.read_text(errors="replace").splitlines()[-3:]
    raise UserError(f"the SuperLink did not start: {' '.join(lines)[-300:]} (see {log})")


def program(name: str) -> str:
    """One of Flower's programs, beside the Python that runs this."""
    return str(Path(sys.executable).parent / name)


def free_port() -> int:
    """A port that nobody uses; below those that the system gives to outgoing connections, so that none takes it."""
    for port in SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UserError("no port is free on this machine; stop what else serves on it")


@dataclass(frozen=True)
class ProcessStatus:
    """A process that should be there, and whether it is."""

    what: str
    client: int | str  # its number, for a node
    holds: str
    pid: int
    running: str  # yes or no


def describe(site: Site) -> list[ProcessStatus]:
    """All processes that should be there."""
    running = marked(site.path)

    def row(what: str, client: int | str, holds: str, pid: int) -> ProcessStatus:
        return ProcessStatus(what, client, holds, pid, "yes" if pid in running else "no")

    nodes = [row("SuperNode", n.client, " ".join(f"{k}={v}" for k, v in n.config.items()), n.pid) for n in site.nodes]
    return [*([row("SuperLink", "", site.address, site.link)] if site.link else []), *nodes]
