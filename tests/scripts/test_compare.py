"""Runs side by side: figures, the settings in which they differ, and loss curves."""

from pathlib import Path

import pytest

from scripts.common.errors import UserError
from scripts.compare import as_text, differences, figures, main, read_runs
from tests.scripts.run_records import record, speed, write
from tests.scripts.test_trainlog import inner, valid

BLEU = {"bleu": [15.0, 16.0]}


@pytest.fixture
def work(tmp_path) -> Path:
    """Two translation runs, and a language model of another dataset with the name of one of them."""
    dynamic = record("dynamicconv", valid=BLEU, test=BLEU, best=1, speed=speed(50.0, 1.25))
    light = record("lightconv", valid={"bleu": [14.0]}, parameters=999)
    light["config"]["train"]["encoder-kernel-size-list"] = [3, 7]
    words = {"perplexity": [40.5]}
    language = record("dynamicconv", "words", metric="perplexity", valid=words, test=words)
    for content in (dynamic, light, language):
        write(tmp_path, content)
    return tmp_path


def cells(work: Path, *runs: str) -> dict[str, list[str]]:
    return {line[0]: line[1:] for line in figures(read_runs([work / run for run in runs]))}


def test_scores_speed_and_parameters_in_columns(work):
    shown = cells(work, "toy/dynamicconv", "toy/lightconv/record.json")
    assert shown[""] == ["dynamicconv", "lightconv"]
    assert shown["parameters"] == ["1,234,567", "999"]
    assert shown["valid BLEU (tokenised)"] == ["15.50 ± 0.71", "14.00"]
    assert shown["test BLEU (tokenised)"] == ["16.00 (15.50 ± 0.71)", "-"]
    assert shown["speed, sentences/s"] == ["50.0 ± 0.4", "-"]
    assert shown["speed, x baseline"] == ["1.25", "-"]
    assert shown["training, time"] == ["0:10", "0:10"]
    assert not any("perplexity" in title for title in shown)


def test_runs_of_several_tasks_have_their_datasets_in_their_names(work):
    shown = cells(work, "toy/dynamicconv", "words/dynamicconv")
    assert shown[""] == ["toy/dynamicconv", "words/dynamicconv"]
    assert shown["test perplexity, lower is better"] == ["-", "40.50"]


def test_only_what_differs_is_listed(work):
    runs = read_runs([work / "toy/dynamicconv", work / "toy/lightconv"])
    assert differences(runs) == [
        ["seeds", "1,2", "1"],
        ["train.arch", "pla_dynamicconv", "pla_lightconv"],
        ["train.encoder-kernel-size-list", "-", "3,7"],
    ]
    assert "do not differ" in as_text(runs[:1])


def test_what_a_run_ran_on_is_compared_too(work):
    write(work, record("other", valid=BLEU, test=BLEU, machine={"cpu": "A", "cores": 2}, config={"seeds": [1, 2]}))
    write(work, record("more", valid=BLEU, test=BLEU, machine={"cpu": "A", "cores": 4}, config={"seeds": [1, 2]}))
    assert differences(read_runs([work / "toy/other", work / "toy/more"])) == [["machine.cores", "2", "4"]]


def test_the_loss_curves_of_every_seed_are_drawn(work, monkeypatch, capsys):
    out = work / "curves.png"
    monkeypatch.setattr(
        "sys.argv", ["compare.py", *map(str, (work / "toy/dynamicconv", work / "toy/lightconv", "--out", out))]
    )
    with pytest.raises(UserError, match="nothing to draw"):
        main()
    for run, seed, lines in (
        ("dynamicconv", 1, [inner(20, 9.0), inner(40, 8.0), valid(40, 8.5)]),
        ("dynamicconv", 2, [inner(20, 9.1)]),
        ("lightconv", 1, []),  # just begun
    ):
        log = work / "toy" / run / f"seed{seed}" / "checkpoints" / "train.log"
        log.parent.mkdir(parents=True)
        log.write_text("\n".join(lines))
    assert [list(run.logs()) for run in read_runs([work / "toy/dynamicconv", work / "toy/lightconv"])] == [[1, 2], []]
    main()
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "train.arch" in capsys.readouterr().out


def test_what_is_no_run_is_refused(work):
    with pytest.raises(UserError, match="cannot read"):
        read_runs([work / "toy"])
    with pytest.raises(UserError, match="given twice"):
        read_runs([work / "toy/lightconv", work / "toy/../toy/lightconv"])
