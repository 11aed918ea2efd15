"""Run every check that needs a GPU, in at most 30 minutes, and write OUT/first_gpu.md.

A finished section is run again only if its command or the machine has changed, or with --rerun. A section that fails
leaves the others as they are; the page says so, and so does the exit status, 1.
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.common import CHECKOUT
from scripts.common.command import run_command
from scripts.common.errors import UserError
from scripts.common.files import atomic_file, read_json, write_json
from scripts.common.lock import folder_lock
from scripts.common.process import run_logged
from scripts.common.provenance import FAIRSEQ, commit, package_versions
from scripts.common.terminal import StatusLine, clock
from scripts.first_gpu import page
from scripts.first_gpu.sections import Section, sections

PAGE = "first_gpu.md"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/first_gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the page, records and logs")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for a rehearsal (default: cuda)")
    parser.add_argument("--rerun", action="store_true", help="run the sections that are done, too")
    parser.add_argument("--only", metavar="NAMES", help="run these sections alone: info,tests (a wrong name lists all)")
    return parser.parse_args()


def facts(device: str) -> tuple[str, list[str]]:
    """Return the machine in a line, and the lines at the head of the page."""
    import torch

    from scripts.benchmarks.timing import machine

    chosen = torch.device(device)
    if chosen.type == "cpu":
        name, about = machine(chosen), ["A rehearsal on a CPU at small sizes: its figures mean nothing."]
    else:
        if not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"--device {device}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices; a CUDA "
                "build of torch and a GPU are needed. --device cpu rehearses on a CPU"
            )
        card = torch.cuda.get_device_properties(chosen)
        name = machine(chosen)
        about = [
            f"{card.name}: sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB, "
            f"{card.multi_processor_count} multiprocessors, {card.L2_cache_size / 2**20:.0f} MiB of cache; "
            f"CUDA {torch.version.cuda}."
        ]
    peers = package_versions([FAIRSEQ, "ctranslate2", "causal-conv1d", "triton"])
    installed = ", ".join(f"{package} {version or 'not installed'}" for package, version in peers.items())
    return name, [f"`scripts/first_gpu.sh --device {device}` on {name}; {installed}.", *about]


def run(section: Section, log: Path, said: StatusLine) -> dict[str, Any]:
    """Run a section and return its record."""
    start = time.monotonic()
    if section.absent is not None:
        return _absent(section.absent)
    record: dict[str, Any] = {"result": page.PASSED, "reason": "", "lines": [], "tests": {}}
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        said.update(f"  {line[:100]}")

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["timeout", "--kill-after=10", f"{section.minutes}m", *section.command]
        command += [f"--junitxml={report}"] if section.tests else []
        try:
            run_logged(command, log, keep, what=section.title)
        except UserError as error:
            late = time.monotonic() - start > section.minutes * 60
            reason = f"it took more than {section.minutes:g} minutes\n{error}" if late else str(error)
            record |= {"result": page.FAILED, "reason": reason}
        if section.tests and report.exists():
            record["tests"] = page.read_junit(report)
        elif not section.tests:
            record["lines"] = results(lines, section.begins)
    return record | {"time": clock(time.monotonic() - start)}


def _absent(reason: str) -> dict[str, Any]:
    return {"result": page.ABSENT, "reason": reason, "lines": [], "tests": {}, "time": clock(0)}


def results(lines: list[str], begins: str) -> list[str]:
    """Return what was printed from the first line that begins so; without lines of progress."""
    first = next((number for number, line in enumerate(lines) if line.startswith(begins)), len(lines))
    return [line for line in lines[first:] if not line.startswith("measured ")]


def main() -> None:
    args = parse()
    out = args.out.absolute()
    name, about = facts(args.device)
    os.chdir(CHECKOUT)
    records: list[page.Record] = []
    todo = sections(args.device)
    names = [section.name for section in todo]
    only = args.only.split(",") if args.only else names
    if unknown := set(only) - set(names):
        raise UserError(
            f"--only {args.only}: there is no {', '.join(sorted(unknown))}; expected some of {','.join(names)}"
        )
    with folder_lock(out):
        for number, section in enumerate(todo, 1):
            said, head = StatusLine(), f"[{number}/{len(todo)}] {section.title}"
            path = out / "records" / f"{section.name}.json"
            made_from = {**asdict(section), "command": list(section.command), "machine": name}
            done = read_json(path) if path.exists() else None
            if section.name not in only:
                left = {"title": section.title, "command": "", "commit": "", **_absent("left out by --only")}
                done = done if done and done["made_from"] == made_from else left
            elif not args.rerun and done and done["made_from"] == made_from and done["result"] == page.PASSED:
                said.line(f"{head}: done before")
            else:
                said.line(f"{head} (at most {section.minutes:g} minutes)")
                done = {"title": section.title, **run(section, out / "logs" / f"{section.name}.log", said)}
                shown = shlex.join(section.command).replace(sys.executable, "python").replace(f"{CHECKOUT}/", "")
                done |= {"command": shown, "commit": commit(), "made_from": made_from}
                write_json(path, done)
                said.line(f"  {done['result']} in {done['time']}. {page.first_line(done['reason'])}".rstrip(". "))
            records.append(done)
            when = f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
            with atomic_file(out / PAGE) as file:  # after each section, so that a kill loses one
                file.write(page.markdown(f"First run on {name.split(', ')[0]}", [*about, when], records))
    print(f"the page: {out / PAGE}")
    failed = [record["title"] for record in records if record["result"] == page.FAILED]
    if failed:
        raise UserError(f"{len(failed)} of {len(records)} sections failed: {'; '.join(failed)}. See {out / PAGE}")


if __name__ == "__main__":
    run_command(main)
