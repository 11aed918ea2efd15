"""scripts/first_gpu.sh: its rehearsal from end to end, and a run whose sections fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.common.errors import UserError
from scripts.first_gpu import __main__ as first_gpu
from scripts.first_gpu import page
from scripts.first_gpu.sections import Section, sections

ROOT = Path(__file__).resolve().parents[2]


def section(name, code, **options):
    return Section(name, f"the {name}", 1, (sys.executable, "-c", code), **options)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run stand-in sections; returns the page."""
    monkeypatch.setattr(first_gpu, "facts", lambda device: ("a card, torch 9", [f"on {device}"]))
    monkeypatch.chdir(tmp_path)  # which the command leaves

    def go(*chosen, again=False, only=None):
        arguments = ["first_gpu", str(tmp_path / "out"), "--device", "cpu", *(["--rerun"] if again else [])]
        arguments += ["--only", only] if only else []
        monkeypatch.setattr(sys, "argv", arguments)
        monkeypatch.setattr(first_gpu, "sections", lambda device: list(chosen))
        try:
            first_gpu.main()
        finally:
            written = (tmp_path / "out" / "first_gpu.md").read_text()
        return written

    return go


def test_a_page_has_the_card_and_each_section(run, capsys):
    good = section("good", "print('noise'); print('ops on it'); print('measured x'); print('1 | 2')", begins="ops on")
    missing = Section("tool", "the tool", 1, absent="there is no tool")
    written = run(good, missing)
    assert written.startswith("# First run on a card\n")
    assert "| [the good](#the-good) | passed |" in written
    assert "```text\nops on it\n1 | 2\n```" in written
    assert "**not run**: there is no tool" in written
    assert "[2/2] the tool" in capsys.readouterr().out


def test_a_section_that_fails_leaves_the_others_and_is_said(run, tmp_path):
    bad = section("bad", "print('ops on it'); raise SystemExit('out of memory')", begins="ops on")
    good = section("good", "print('fine')", begins="fine")
    with pytest.raises(UserError, match=r"1 of 2 sections failed: the bad\. See .*first_gpu\.md"):
        run(bad, good)
    written = (tmp_path / "out" / "first_gpu.md").read_text()
    assert "| [the bad](#the-bad) | failed |" in written
    assert "out of memory" in written
    assert "```text\nfine\n```" in written


def test_what_is_done_is_not_run_again_unless_asked_or_changed(run, tmp_path):
    count = tmp_path / "count"
    code = f"open({str(count)!r}, 'a').write('x')"
    for chosen, again, runs in (
        (section("one", code), False, 1),
        (section("one", code), False, 1),
        (section("one", code), True, 2),
        (section("one", code + "; 1"), False, 3),
    ):
        run(chosen, again=again)
        assert len(count.read_text()) == runs


def test_some_sections_alone_beside_what_is_done(run):
    one, two, three = (section(name, f"print('{name} is fine')", begins=name) for name in ("one", "two", "three"))
    run(one, two, three, only="one")
    written = run(one, two, three, only="two")
    assert "one is fine" in written
    assert "two is fine" in written
    assert "**not run**: left out by --only" in written
    with pytest.raises(UserError, match="--only four: there is no four; expected some of one,two,three"):
        run(one, two, three, only="four")


def test_a_failed_section_is_run_again(run, tmp_path):
    flag = tmp_path / "flag"
    code = f"import os; ok = os.path.exists({str(flag)!r}); open({str(flag)!r}, 'w'); raise SystemExit(not ok)"
    with pytest.raises(UserError, match="1 of 1 sections failed"):
        run(section("one", code))
    assert "| [the one](#the-one) | passed |" in run(section("one", code))


def test_results_of_pytest(tmp_path):
    tests = tmp_path / "test_sample.py"
    tests.write_text(
        "import json, pytest\n"
        "def test_good(record_property): record_property('beams', json.dumps(['an arch', '4', '4']))\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='no device')\n"
        "def test_not(): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    found = page.read_junit(report)
    assert found["counts"] == {"test_sample": {"passed": 1, "failed": 1, "skipped": 1}}
    written = "\n".join(page.tests(found))
    assert "| test_sample | 1 | 1 | 1 |" in written
    assert "- `test_sample::test_bad: assert 1 == 2`" in written
    assert "- test_not: no device" in written
    assert "| an arch | 4 | 4 |" in written


def test_a_run_takes_half_an_hour_at_most():
    for device in ("cuda", "cuda:1"):
        chosen = sections(device)
        assert sum(each.minutes for each in chosen) <= 30
        assert all(f"--device={device}" in each.command for each in chosen if each.command and each.name != "info")


def test_no_gpu_is_said_at_once(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "scripts.first_gpu", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "sees 0 CUDA devices" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_rehearsal(tmp_path, forking_python):
    """Every line of a run on a GPU, on the CPU; a stand-in for compute-sanitizer runs what it is given."""
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    sanitizer.chmod(0o755)
    path = f"{sanitizer.parent}:{os.environ['PATH']}"
    venv = tmp_path / "venv"  # this one, whose Python is forked
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(forking_python)
    (venv / ".lightconv-setup").symlink_to(Path(sys.prefix) / ".lightconv-setup")
    out = tmp_path / "out"
    command = [str(ROOT / "scripts" / "first_gpu.sh"), str(out), "--device", "cpu"]
    done = subprocess.run(command, env={**os.environ, "VENV": str(venv), "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = (out / "first_gpu.md").read_text()
    for each in sections("cpu"):
        assert json.loads((out / "records" / f"{each.name}.json").read_text())["result"] == "passed"
        assert f"\n## {each.title}\n" in written
    assert "| pla_dynamicconv_iwslt_de_en, BeamSearchGenerator | 24 | 24 |" in written
    assert "| pla_lightconv_iwslt_de_en, float32 |" in written
    assert "time / a copy's" in written
