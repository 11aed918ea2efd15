import copy

import pytest

from scripts.common.errors import UserError
from scripts.table import main, table

RECORD = {
    "model": "dynamicconv",
    "config": {"dataset": "toy", "paper": {"bleu": 29.7}},
    "parameters": 1234567,
    "backend": {"dynamic_conv": "reference"},
    "generation": {"sentences_per_second": 12.345},
    "scores": {
        "signature": "beam:5|seed:1",
        "bleu": 15.678,
        "sacrebleu": 14.321,
        "details": {"bleu": {"signature": "tok:none"}, "sacrebleu": {"signature": "tok:13a"}},
    },
}


def test_a_row_has_the_figures_and_its_signature_below():
    lines = table([RECORD]).splitlines()
    assert lines[2].split() == ["dynamicconv", "toy", "1,234,567", "29.7", "15.68", "14.32", "12.3"]
    assert lines[4:] == [
        "dynamicconv: beam:5|seed:1|backend:dynamic_conv=reference",
        "  BLEU (tokenised) tok:none",
        "  sacreBLEU tok:13a",
    ]


def test_columns_stand_under_one_another_and_what_is_missing_is_a_dash():
    other = copy.deepcopy(RECORD) | {"model": "x", "scores": None, "generation": None, "parameters": None}
    other["config"] = {"dataset": "a_longer_name", "paper": {}}
    lines = table([RECORD, other]).splitlines()
    assert lines[3].split() == ["x", "a_longer_name", "-", "-", "-", "-", "-"]
    ends = [line.index(cell) + len(cell) for line, cell in ((lines[0], "parameters"), (lines[2], "1,234,567"))]
    assert ends[0] == ends[1]
    assert lines[-1] == "x: not scored yet"


def test_summaries_stand_in_a_table_of_their_own():
    other = copy.deepcopy(RECORD) | {"model": "x"}
    paper = {"rouge1": 39.84, "rouge2": 16.25, "rougeL": 36.73}
    other["config"] = {"dataset": "news", "paper": paper, "score": {"metric": "rouge"}}
    rouge = {"rouge1": 40.123, "rouge2": 17.0, "rougeL": 37.0}
    other["scores"] = rouge | {"signature": "beam:4", "details": {key: {"signature": "f1"} for key in rouge}}
    lines = table([other, RECORD]).splitlines()
    assert lines[0].split()[-3:] == ["(tokenised)", "sacreBLEU", "sentences/s"]
    assert lines[4].split() == ["model", "data", "parameters", "paper", "ROUGE-1", "ROUGE-2", "ROUGE-L", "sentences/s"]
    assert lines[6].split()[3:] == ["39.84", "/", "16.25", "/", "36.73", "40.12", "17.00", "37.00", "12.3"]
    assert lines[8:10] == ["x: beam:4|backend:dynamic_conv=reference", "  ROUGE-1 f1"]


def test_a_file_that_is_no_record_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    monkeypatch.setattr("sys.argv", ["table.py", str(path)])
    with pytest.raises(UserError, match="run the stage"):
        main()
    path.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        main()
    path.write_text("{}")
    with pytest.raises(UserError, match="not a run record"):
        main()
