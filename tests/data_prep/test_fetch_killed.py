"""A download that is killed, or runs out of disk, and the same command again."""

import hashlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

from data_prep.fetch import RemoteFile, fetch
from tests.data_prep.fetching import notes, part
from tests.data_prep.samples import ROOT
from tests.data_prep.web import Site, wait_until

CONTENT = bytes(n * n % 251 for n in range(300_000))

COMMAND = """
import sys
from pathlib import Path
from data_prep.fetch import RemoteFile, fetch
from scripts.common.command import run_command
folder = Path(sys.argv[2])
file = RemoteFile("a.txt", (sys.argv[1],))
run_command(lambda: print(fetch(file, folder, raw=None, ledger=folder / "ledger.json")))
"""


def command(url: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", COMMAND, url, str(folder)]


def test_killed_and_gone_on_with_for_the_missing_bytes_alone(tmp_path, site: Site):
    url = site.add("/a", CONTENT, stall=[700, 80_000, None])
    for size in (700, 80_700):
        child = subprocess.Popen(command(url, tmp_path), cwd=ROOT, stdout=subprocess.PIPE)
        try:
            there = wait_until(lambda size=size: part(tmp_path).exists() and part(tmp_path).stat().st_size == size)
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        assert there
        assert list(tmp_path.glob("[!.]*")) == []
    done = subprocess.run(command(url, tmp_path), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.txt").read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=700-", "bytes=80700-"]
    assert hashlib.sha256(CONTENT).hexdigest() in (tmp_path / "ledger.json").read_text()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a.txt", "ledger.json"]


def test_a_disk_that_is_full_half_way(tmp_path, site: Site):
    url = site.add("/a", CONTENT)

    def small_disk() -> None:  # the nearest thing to it that needs no rights
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(command(url, tmp_path), cwd=ROOT, capture_output=True, text=True, preexec_fn=small_disk)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: File too large: cannot write {part(tmp_path)}; nothing was written under")
    assert part(tmp_path).stat().st_size == 100_000
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("[!.]*")) == []
    assert notes(tmp_path).exists()
    file = RemoteFile("a.txt", (url,))
    assert fetch(file, tmp_path, raw=None, ledger=tmp_path / "ledger.json").read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=100000-"]


def test_ctrl_c_keeps_what_is_there(tmp_path, site: Site):
    url = site.add("/a", CONTENT, stall=[70_000])
    child = subprocess.Popen(
        command(url, tmp_path), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: part(tmp_path).exists() and part(tmp_path).stat().st_size == 70_000)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=20)
    assert child.returncode == 130  # as shells have it for Ctrl-C
    assert told == "interrupted; run the same command again to go on\n"
    assert part(tmp_path).stat().st_size == 70_000
