"""Downloading, from a small server on this machine: checked, resumed, refused."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from splitmix.core.errors import UserError
from splitmix.data.prepare.store import fetch

BODY = bytes(range(256)) * 4000


class Server(ThreadingHTTPServer):
    """Serves BODY; breaks off after `cut` bytes of an answer, and notes what was asked for."""

    daemon_threads = True
    version, cut, ranges = '"one"', len(BODY), True
    body = BODY

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if "missing" in self.path:
            return self.send_error(404)
        going_on = asked and server.ranges and self.headers.get("If-Range") == server.version
        start = int(asked.removeprefix("bytes=").rstrip("-")) if going_on else 0
        self.send_response(206 if going_on else 200)
        self.send_header("ETag", server.version)
        self.send_header("Content-Length", str(len(server.body) - start))
        self.end_headers()
        self.wfile.write(server.body[start : start + server.cut])
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


MD5 = hashlib.md5(BODY).hexdigest()


def test_a_file_is_fetched_once_with_its_progress(server, tmp_path):
    target, seen = tmp_path / "new" / "file.bin", []
    fetch(server.url, target, md5=MD5, watch=lambda *now: seen.append(now))
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == BODY
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))
    assert server.asked == [None]
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    target = tmp_path / "file.bin"
    server.cut = 300_000
    for _ in range(3):
        with pytest.raises(UserError, match=r"the connection broke at .* of 1,024,000 bytes.*repeat the command"):
            fetch(server.url, target, md5=MD5)
    assert not target.exists()
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == BODY
    assert server.asked == [None, "bytes=299999-", "bytes=599998-", "bytes=899997-"]


@pytest.mark.parametrize("change", ["version", "ranges"])
def test_a_part_of_another_version_is_thrown_away(server, tmp_path, change):
    server.cut, server.body = 300_000, BODY[::-1]
    with pytest.raises(UserError):
        fetch(server.url, tmp_path / "file.bin")
    server.cut, server.body = len(BODY), BODY
    setattr(server, change, {"version": '"two"', "ranges": False}[change])
    fetch(server.url, tmp_path / "file.bin", md5=MD5)
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_part_that_was_whole_already_is_taken(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY)
    (tmp_path / "file.bin.part.version").write_text('"\\"one\\""')
    fetch(server.url, tmp_path / "file.bin", md5=MD5)
    assert server.asked == [f"bytes={len(BODY) - 1}-"]


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server, tmp_path):
    with pytest.raises(UserError, match=r"has not the published checksum.*put it at .*file\.bin"):
        fetch(server.url, tmp_path / "file.bin", md5="0" * 32)
    assert not (tmp_path / "file.bin").exists()
    assert not (tmp_path / "file.bin.part").exists()


def test_no_answer_and_no_server_are_one_sentence_each(server, tmp_path):
    with pytest.raises(UserError, match="answers 404 Not Found; fetch it by other means"):
        fetch(server.url + "missing", tmp_path / "file.bin")
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"cannot be reached .*; fetch it by other means and put it at"):
        fetch(server.url, tmp_path / "file.bin")


def test_a_place_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        fetch(server.url, tmp_path / "file" / "file.bin")
