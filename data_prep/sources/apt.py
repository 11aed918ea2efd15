"""Run the machine's own apt in a private folder: it reads the system's list of sources, and changes nothing there."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.archives import join_unpacked
from data_prep.common.errors import UserError
from data_prep.common.terminal import shown

_WITHOUT = "copy the files (Translation-*, or packages: *.deb) into a folder and give it with --raw DIR"

# Read after the system's own configuration, hence the clearing: languages may be switched off there, lists be kept in
# compressions that Python lacks, and the hooks of container images delete files of the system.
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


# which archives count, by what their Release files say; universe: where Ubuntu keeps most of Debian's main
_ORIGINS, _COMPONENTS = ("Debian", "Ubuntu"), ("main", "universe")


def fetch_translations(languages: Sequence[str], *, out: Path) -> dict[str, Any]:
    """Write ``Translation-<language>`` to ``out``: those of all matching archives, parted by an empty line."""
    with _updated(languages) as (configuration, log):
        fields = ("LANGUAGE", "ORIGIN", "CODENAME", "COMPONENT", "FILENAME")
        line_format = "\t".join(f"$({field})" for field in fields)
        listing, _ = _run(
            ["apt-get", "-c", configuration, "indextargets", "--format", line_format, "Created-By: Translations"]
        )
        targets = [line.split("\t") for line in sorted(listing.splitlines()) if line.count("\t") == len(fields) - 1]
        notes: dict[str, Any] = {}
        for language in languages:
            known = [target for target in targets if target[0] == language and Path(target[4]).exists()]
            # translations are optional to apt: its update succeeds without
            chosen = [target for target in known if target[1] in _ORIGINS and target[3] in _COMPONENTS]
            if not chosen:
                raise UserError(
                    f"apt brought no Translation-{language} from {' or '.join(_ORIGINS)} ({', '.join(_COMPONENTS)}); "
                    f"mend its sources or the network, or {_WITHOUT}. apt-get update ended with:\n{_tail(log)}"
                )
            join_unpacked([Path(target[4]) for target in chosen], out / f"Translation-{language}")
            notes[language] = [" ".join(target[1:4]) for target in chosen]
    return {"archives": notes}


def fetch_packages(packages: Sequence[str], *, out: Path) -> dict[str, Any]:
    """Download packages to ``out``, those of the list that the machine's release has; nothing is installed."""
    with _updated(()) as (configuration, log):
        known, _ = _run(["apt-cache", "-c", configuration, "pkgnames"])
        there = sorted(set(packages) & set(known.split()))
        if not there:
            raise UserError(f"apt knows none of {len(packages)} packages. apt-get update ended with:\n{_tail(log)}")
        with shown(lambda: f"apt-get download: {len([*out.iterdir()])} of {len(there)} packages"):
            _run(["apt-get", "-c", configuration, "download", *there], cwd=out)
    return {"packages this release does not have": sorted(set(packages) - set(there))}


@contextmanager
def _updated(languages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield apt's configuration in a private folder, its lists up to date, and what the update said."""
    if shutil.which("apt-get") is None:
        raise UserError(f"this machine has no apt-get, which fetches this text on Debian and Ubuntu; {_WITHOUT}")
    with tempfile.TemporaryDirectory(prefix="apt-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as an unprivileged user of its own when root runs it
        for part in ("state", "lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        (folder / "status").touch()
        configuration = folder / "apt.conf"
        quoted = " ".join(f'"{language}";' for language in languages or ("none",))
        configuration.write_text(_CONFIGURATION.format(folder=folder, languages=quoted), encoding="utf-8")
        print("apt-get update in a private folder (some 20 MB) ...", flush=True)
        yield str(configuration), "".join(_run(["apt-get", "-c", str(configuration), "update"]))


def _run(command: list[str], cwd: Path | None = None) -> tuple[str, str]:
    """Return what a command wrote to its standard output and to its standard error, where apt puts warnings."""
    env = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, cwd=cwd, env=env, encoding="utf-8", errors="replace")
    if done.returncode != 0:
        said = _tail(done.stdout + done.stderr)
        raise UserError(f"{command[0]} failed with status {done.returncode}; {_WITHOUT}. It said:\n{said}")
    return done.stdout, done.stderr


def _tail(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-8:]) or "  (nothing)"
