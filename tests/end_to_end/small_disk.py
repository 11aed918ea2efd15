"""A disk that is as small as a test wants it."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """The folder ``path`` on a disk of its own, or, where none may be mounted, on one that takes only small files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.mounted = self._mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path))

    def _mount(self, *arguments: str) -> bool:
        try:
            return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False

    def leave(self, room: int) -> None:
        """Have ``room`` bytes left on the disk."""
        if self.mounted:
            found = os.statvfs(self.path)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            assert self._mount("-o", f"remount,size={used + room}", str(self.path))

    def run(self, command: Sequence[str], room: int, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command with ``room`` bytes left on the disk, or with files of at most so many."""

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

        self.leave(room)
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=os.environ | environment,
            cwd="/",
            timeout=300,
            preexec_fn=None if self.mounted else limit,
        )


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """A small disk at ``path``, gone after the block."""
    disk = SmallDisk(path)
    try:
        yield disk
    finally:
        if disk.mounted:
            subprocess.run(["umount", str(path)], check=True)
