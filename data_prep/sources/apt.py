"""Run the machine's apt in a private folder: it reads the system's list of sources, and changes nothing there."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.archives import join_unpacked
from data_prep.common.errors import UserError
from data_prep.common.progress import Measurement, measured_progress

_WITHOUT_APT = "copy the files (Translation-*, or packages: *.deb) into a folder and give it with --raw DIR"

# apt reads it after the system's configuration. That may disable languages, use compressions that Python lacks, or, in
# container images, have hooks that delete files of the system.
_CONFIGURATION = """\
#clear Acquire::Languages;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Acquire::Languages {{ {languages} }};
Acquire::GzipIndexes "false";
Acquire::Retries "3";
Acquire::http::Timeout "60";
Acquire::https::Timeout "60";
Acquire::IndexTargets::deb::Translations::DefaultEnabled "true";
Acquire::IndexTargets::deb::Translations::KeepCompressed "false";
Dir::State "{folder}/state";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
"""


# the archives to use, by their Release files; Ubuntu has most of Debian's main in universe
_ORIGINS, _COMPONENTS = ("Debian", "Ubuntu"), ("main", "universe")


def fetch_translations(languages: Sequence[str], *, out: Path) -> dict[str, Any]:
    """Write ``Translation-<language>`` of all matching archives to ``out``, with an empty line between archives.

    Returns:
        entries for the manifest.
    """
    with _updated(languages) as (configuration, log):
        fields = ("LANGUAGE", "ORIGIN", "CODENAME", "COMPONENT", "FILENAME")
        line_format = "\t".join(f"$({field})" for field in fields)
        listing, _ = _run(
            ["apt-get", "-c", configuration, "indextargets", "--format", line_format, "Created-By: Translations"]
        )
        targets = [line.split("\t") for line in sorted(listing.splitlines()) if line.count("\t") == len(fields) - 1]
        notes: dict[str, Any] = {}
        for language in languages:
            # a file may be missing: apt's update succeeds without translations
            existing = [target for target in targets if target[0] == language and Path(target[4]).exists()]
            chosen = [target for target in existing if target[1] in _ORIGINS and target[3] in _COMPONENTS]
            if not chosen:
                raise UserError(
                    f"apt has no Translation-{language} from {' or '.join(_ORIGINS)} ({', '.join(_COMPONENTS)}); check "
                    f"its sources and the network, or {_WITHOUT_APT}. apt-get update ended with:\n{_tail(log)}"
                )
            join_unpacked([Path(target[4]) for target in chosen], out / f"Translation-{language}")
            notes[language] = [" ".join(target[1:4]) for target in chosen]
    return {"archives": notes}


def fetch_packages(packages: Sequence[str], *, out: Path) -> dict[str, Any]:
    """Download those of the packages that the machine's release has to ``out``; nothing is installed.

    Returns:
        entries for the manifest.
    """
    with _updated(()) as (configuration, log):
        names, _ = _run(["apt-cache", "-c", configuration, "pkgnames"])
        available = sorted(set(packages) & set(names.split()))
        if not available:
            raise UserError(f"apt has none of {len(packages)} packages. apt-get update ended with:\n{_tail(log)}")
        with measured_progress("apt-get download", lambda: (len([*out.iterdir()]), len(available)), "packages"):
            _run(["apt-get", "-c", configuration, "download", *available], cwd=out)
    return {"packages this release does not have": sorted(set(packages) - set(available))}


@contextmanager
def _updated(languages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Update apt's lists in a private folder; yields apt's configuration file and the output of the update."""
    if shutil.which("apt-get") is None:
        raise UserError(f"this machine has no apt-get, which fetches this text on Debian and Ubuntu; {_WITHOUT_APT}")
    with tempfile.TemporaryDirectory(prefix="apt-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt, run by root, downloads as an unprivileged user
        for part in ("state", "lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        (folder / "status").touch()
        configuration = folder / "apt.conf"
        quoted = " ".join(f'"{language}";' for language in languages or ("none",))
        configuration.write_text(_CONFIGURATION.format(folder=folder, languages=quoted), encoding="utf-8")
        print("apt-get update in a private folder (some 20 MB) ...", flush=True)
        with open(folder / "progress", "wb") as status:
            command = ["apt-get", "-c", str(configuration), "-o", f"APT::Status-Fd={status.fileno()}", "update"]
            with measured_progress("apt-get update", lambda: _retrieved(folder / "progress"), "files"):
                output = _run(command, pass_fds=(status.fileno(),))
        yield str(configuration), "".join(output)


def _retrieved(status: Path) -> Measurement:
    """Return the progress in apt's status lines, such as ``dlstatus:3:20.5:Retrieving file 3 of 9``."""
    files = re.findall(r"Retrieving file (\d+) of (\d+)$", status.read_text(encoding="utf-8"), re.MULTILINE)
    return (int(files[-1][0]) - 1, int(files[-1][1])) if files else (0, None)


def _run(command: list[str], **options: Any) -> tuple[str, str]:
    """Run a command; returns its standard output and its standard error, where apt prints warnings.

    Raises:
        UserError: it failed; the message has its last lines.
    """
    env = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(command, capture_output=True, env=env, encoding="utf-8", errors="replace", **options)
    if result.returncode != 0:
        lines = _tail(result.stdout + result.stderr)
        raise UserError(f"{command[0]} failed with status {result.returncode}; {_WITHOUT_APT}. Its output:\n{lines}")
    return result.stdout, result.stderr


def _tail(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-8:]) or "  (nothing)"
