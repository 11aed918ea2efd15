"""Rows of run records, and the paper's tables with our values."""

import csv
import os
import subprocess

import pytest

from data_prep.common.errors import UserError
from data_prep.common.process import python_module
from scripts.config import load_config
from scripts.table import main
from scripts.tables.cells import Absent, Cell, Column, Number, write_latex
from scripts.tables.measured import Measured
from scripts.tables.published import CONFIGS, read_tables
from scripts.tables.records import as_text
from tests.scripts.run_records import record, speed, write

TABLES = read_tables()
BLEU = {"bleu": [15.0, 15.5, 16.0], "sacrebleu": [14.0, 14.25, 14.5]}


ONE = {key: figures[:1] for key, figures in BLEU.items()}
ROUGE, WORDS = {"rouge1": [40.123], "rouge2": [17.0], "rougeL": [37.0]}, {"perplexity": [30.5]}
FAST = speed(50.0, 1.25)
BY_SACREBLEU = record("m", metric="sacrebleu", valid=BLEU, test=BLEU, best=2)
SUMMARIES = record("s", metric="rouge", valid=ROUGE, test=ROUGE)
LANGUAGE_MODEL = record("l", metric="perplexity", valid=WORDS, test=WORDS)
HEAD, OF_BLEU = "model data parameters seeds valid", "BLEU (tokenised) sacreBLEU sentences/s"
ROWS = [
    (
        [record("dynamicconv", valid=ONE, test=ONE)],
        f"""{HEAD} BLEU (tokenised) {OF_BLEU}
        dynamicconv toy 1,234,567 1 15.00 15.00 14.00 12.3
        dynamicconv: beam:5|seed:1|backend:dynamic_conv=native
        BLEU (tokenised) how:bleu
        sacreBLEU how:sacrebleu""",
    ),
    (
        [BY_SACREBLEU],  # several seeds: the scores of the best one; the validation score is the one that chooses it
        f"""{HEAD} sacreBLEU {OF_BLEU}
        m toy 1,234,567 3 14.25 ± 0.25 16.00 (15.50 ± 0.50) 14.50 (14.25 ± 0.25) 12.3
        m: beam:5|seed:3|backend:dynamic_conv=native""",
    ),
    (
        [record("m", valid=ONE, test=ONE, speed=FAST), record("u", speed=FAST | {"trained": False}), record("x")],
        f"""{HEAD} BLEU (tokenised) {OF_BLEU} speed, sentences/s x baseline
        m toy 1,234,567 1 15.00 15.00 14.00 12.3 50.0 ± 0.4 1.25
        x toy 1,234,567 0 - - - - - -
        speed beam:4|batch-size:256|baseline:transformer
        speed beam:4|batch-size:256|random weights|baseline:transformer
        x: not scored yet""",
    ),
    (
        [SUMMARIES, LANGUAGE_MODEL, record("t", valid=ONE, test=ONE)],
        f"""{HEAD} BLEU (tokenised) {OF_BLEU}
        {HEAD} ROUGE-1 ROUGE-1 ROUGE-2 ROUGE-L sentences/s
        s toy 1,234,567 1 40.12 40.12 17.00 37.00 12.3
        {HEAD} perplexity perplexity
        l toy 1,234,567 1 30.50 30.50""",
    ),
]


@pytest.mark.parametrize(("records", "expected"), ROWS)
def test_a_row_for_each_record_and_its_signatures(records, expected):
    lines = [" ".join(line.split()) for line in as_text(records).splitlines()]
    expected_lines = [line.strip() for line in expected.splitlines()]
    assert [line for line in lines if line in expected_lines] == expected_lines


def test_a_file_that_is_not_a_record_is_refused(tmp_path):
    path = tmp_path / "record.json"
    with pytest.raises(UserError, match="run the stage"):
        main([str(path)])
    path.write_text("{}")
    with pytest.raises(UserError, match="not a run record"):
        main([str(path)])
    with pytest.raises(UserError, match="no Table 8"):
        main(["7", "8"])


def test_the_table_is_printed_with_an_ascii_locale(tmp_path):
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*python_module("scripts.table"), "3", "--work", tmp_path]
    out = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert b"26.9 \\xb1 0.1" in out


@pytest.mark.parametrize("number", TABLES)
def test_a_table_without_runs_has_the_command_of_every_run(number, tmp_path):
    table = TABLES[number]
    text = paper_table(table, tmp_path)
    trained = [(row, column) for row in table.rows for column in table.columns if table.config(row, column)]
    assert f"0 of the {len(trained)} values that are trained here have been measured" in text
    assert text.count("not run") == len(trained) > 0
    assert all(row.name in text for row in table.rows)
    assert ("on an NVIDIA P100" in text) == (number in (3, 7))  # the tables with speeds
    for row, column in trained:
        path = f"configs/{column.dataset}/{row.config}.yaml"
        assert f"python -m scripts.reproduce {path} --work {tmp_path}\n" in text + "\n"


def paper_table(table, work) -> str:
    return Measured(table, work).as_text(f" --work {work}")


def ablation(work):
    """Write records for Table 3: the baseline, DynamicConv, LightConv without a speed, and a model that diverged."""
    settings = {"seeds": [1, 2, 3]}
    dataset = "wmt16_en_de_google"
    scores = {"bleu_compounds": [26.0, 26.5, 27.0]}
    write(work, record("transformer", dataset, valid=scores, parameters=209_912_832, speed=speed(100.0)))
    write(work, record("dynamicconv_noglu", dataset, valid=scores, speed=speed(123.0, 1.23), config=settings))
    write(work, record("lightconv_noglu", dataset, valid={"bleu_compounds": [26.25]}, config=settings))
    diverged = record("dynamicconv_nosoftmax", dataset, config=settings, parameters=None)
    write(work, diverged | {"seeds": {"1": {"training": {"diverged": 120}}}})


def test_a_table_is_written_to_files(tmp_path):
    """CSV has a column for each part of a number; LaTeX has the printed cells, and the signatures as comments."""
    runs = [record("m_1", valid=BLEU, test=BLEU, best=2, speed=FAST), record("x"), LANGUAGE_MODEL]
    table, page = tmp_path / "t.csv", tmp_path / "t.tex"
    main([*(str(write(tmp_path, run)) for run in runs), "--csv", str(table), "--latex", str(page)])
    first, second, third = csv.DictReader(table.open())
    assert {key: first[key] for key in ("model", "bleu", "bleu_mean", "bleu_std", "sentences_per_second_std")} == {
        **{"model": "m_1", "bleu": "16", "bleu_mean": "15.5", "bleu_std": "0.5", "sentences_per_second_std": "0.4"},
    }
    assert float(first["training_minutes"]) == pytest.approx(1 / 6)
    assert (second["bleu"], second["parameters"]) == ("", "1234567")
    assert (third["perplexity"], third["bleu"]) == ("30.5", "")
    text = page.read_text()
    assert r"m\_1 & toy & $1{,}234{,}567$ & $3$ & $15.50 \pm 0.50$ & $16.00$ ($15.50 \pm 0.50$) &" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 2
    assert "% m_1: beam:5|seed:3|backend:dynamic_conv=native" in text


def test_a_table_of_the_paper_is_written_to_files(tmp_path):
    """A word in place of a number is in a separate column of the CSV."""
    ablation(tmp_path)
    table, page = tmp_path / "t.csv", tmp_path / "t.tex"
    main(["3", "--work", str(tmp_path), "--csv", str(table), "--latex", str(page)])
    rows = {row["model"]: row for row in csv.DictReader(table.open())}
    row = rows["+ Dynamic weights [DynamicConv] (H=16)"]
    assert (row["valid_bleu_paper"], row["valid_bleu_paper_std"], row["valid_bleu_ours"]) == ("26.9", "0.2", "26.5")
    assert (row["speed_ratio_ours"], row["params_millions_paper"]) == ("1.23", "200")
    row = rows["DynamicConv (H=16) w/o softmax-normalization"]
    assert (row["valid_bleu_paper"], row["valid_bleu_paper_note"]) == ("", "diverges")
    assert (row["valid_bleu_ours"], row["valid_bleu_ours_note"]) == ("", "diverges (1 of 3 seeds)")
    lines = page.read_text().splitlines()
    assert lines[4].startswith(r" & \multicolumn{2}{c}{Param} & \multicolumn{2}{c}{BLEU} &")
    assert lines[5].startswith(r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}")
    assert any(r"& $209.9$M & $26.9 \pm 0.1$ & $26.50 \pm 0.50$ &" in line for line in lines)


def test_special_characters_of_latex_are_escaped(tmp_path):
    cells: list[Cell] = [
        r"50% & #1_{\a}~^$",
        Number(-1.5, "+.1f", low=-2.0, high=-1.0, note="3_4"),
        None,
        Absent("a<b"),
    ]
    write_latex(tmp_path / "t.tex", [[Column(str(n), str(n), [cell]) for n, cell in enumerate(cells)]], [], "me")
    row = (tmp_path / "t.tex").read_text().splitlines()[6]
    assert row == (
        r"50\% \& \#1\_\{\textbackslash{}a\}\textasciitilde{}\textasciicircum{}\$"
        r" & $-1.5$ [$-2.0$, $-1.0$] (3\_4) & -- & a$<$b \\"
    )


def row_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_our_scores_are_printed_with_the_papers(tmp_path):
    ablation(tmp_path)
    text = paper_table(TABLES[3], tmp_path)
    baseline = " ".join(row_of(text, "Self-attention baseline (k=inf").split())
    assert baseline.endswith("210M 209.9M 26.9 ± 0.1 26.50 ± 0.50 52.1 ± 0.1 100.00 ± 0.40 1.00 1.00")
    assert row_of(text, "+ Dynamic weights").endswith("123.00 ± 0.40          1.20  1.23")
    shared = row_of(text, "+ Softmax-normalized")
    assert "26.25 (1 of 3 seeds)" in shared
    assert "not yet" in shared
    nosoftmax = " ".join(row_of(text, "DynamicConv (H=16) w/o softmax").split())
    assert nosoftmax.endswith("200M diverges diverges diverges (1 of 3 seeds) - - - -")
    assert "Ratios are to the speed of transformer" in text
    commands = [line for line in text.splitlines() if line.startswith("python -m scripts.reproduce")]
    assert f"python -m scripts.reproduce configs/wmt16_en_de/lightconv_noglu.yaml --work {tmp_path}" in commands
    assert not any("/transformer.yaml" in line or "/dynamicconv_nosoftmax.yaml" in line for line in commands)
    assert "dynamicconv_nosoftmax: diverged after 120 updates" in text


def test_a_record_with_other_settings_is_reported(tmp_path):
    name, dataset = "lightconv_noglu", "wmt16_en_de_google"
    scores = {"bleu_compounds": [26.0, 26.5, 27.0]}
    now = load_config(CONFIGS / "wmt16_en_de" / f"{name}.yaml").merged()
    for settings, outdated in ((now, False), (now | {"precision": "bf16"}, False), (now | {"tune": {}}, True)):
        write(tmp_path, record(name, dataset, valid=scores, config=settings))
        text = paper_table(TABLES[3], tmp_path)
        assert (f"wmt16_en_de/{name} was run with other settings than configs/" in text) == outdated


def test_a_language_models_parameters_are_in_millions_and_perplexity_has_two_digits(tmp_path):
    scores = {"perplexity": [26.6049, 27.0]}
    write(
        tmp_path, record("dynamicconv", "gbw", metric="perplexity", valid=scores, test=scores, parameters=339_100_000)
    )
    line = row_of(paper_table(TABLES[4], tmp_path), "DynamicConv")
    assert line.split() == ["DynamicConv", "339M", "339.1M", "26.60", "26.60", "26.67", "26.60"]
