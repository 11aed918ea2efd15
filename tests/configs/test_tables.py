"""configs/tables.yaml has the paper's values, and an unknown key in such a file is refused."""

import pytest
import yaml

from data_prep.common.errors import UserError
from scripts.tables.published import Figure, read_tables

TABLES = read_tables()


def figures(number, *keys):
    """Return the columns' values in the rows with a configuration, as plain data."""
    rows = [row for row in TABLES[number].rows if row.config]
    return [[row.figures[key].word or row.figures[key].value for key in keys if key in row.figures] for row in rows]


def test_every_table_has_all_its_rows():
    rows = {
        number: (len(table.rows), sum(row.config is not None for row in table.rows)) for number, table in TABLES.items()
    }
    # a row of Table 2 comes from a review
    assert rows == {1: (8, 4), 2: (6, 4), 3: (13, 12), 4: (5, 3), 5: (6, 3), 6: (10, 10), 7: (20, 3)}


def test_the_printed_scores():
    assert figures(1, "en_de", "en_fr") == [[25.2, 40.5], [29.3, 43.2], [28.9, 43.1], [29.7, 43.2]]
    assert figures(2, "iwslt", "zh_en") == [[34.4, 23.8], [34.8, 24.3], [35.2, 24.4], [35.44]]
    assert figures(4, "valid", "test") == [[31.9], [26.67, 26.73], [26.60, 26.67]]
    assert figures(5, "rouge1", "rouge2", "rougeL") == [
        [39.26, 15.98, 36.35],
        [39.52, 15.97, 36.51],
        [39.84, 16.25, 36.73],
    ]
    assert figures(7, "en_de", "speed", "tokens") == [[26.1, 15.2, 423.0], [27.7, 7.2, 202.3], [28.5, 3.9, 110.9]]
    failed = {row.name for table in TABLES.values() for row in table.rows if row.figures == {"valid_bleu": DIVERGES}}
    assert len(failed) == 5


DIVERGES = Figure(None, word="diverges")


def test_tables_3_and_6_agree_on_the_models_that_both_have():
    for config, expected in (("dynamicconv_noglu", Figure(26.9, 0.2)), ("dynamicconv_nosoftmax", DIVERGES)):
        rows = [row for number in (3, 6) for row in TABLES[number].rows if row.config == config]
        assert [row.figures["valid_bleu"] for row in rows] == [expected] * 2
        assert rows[0].figures.get("speed") == (Figure(62.6, 0.4) if expected.value else None)


def test_paths_into_the_record_exist():
    for table in TABLES.values():
        for column in table.columns:
            for path in filter(None, (column.value, column.std)):
                top, *rest = path.split(".")
                assert (top, len(rest)) in {("parameters", 0), ("summary", 3), ("speed", 2)}
                if top == "summary":
                    assert rest[0] in ("valid", "test")
                    assert rest[2] in ("best", "mean", "std")


COLUMN = {"heading": "A", "dataset": "d", "value": "parameters"}
GOOD = {
    "title": "t",
    "columns": {"a": COLUMN},
    "rows": [{"name": "n"}],
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"headline": "t"}, "table 9: unknown key `headline`"),
        ({"columns": {"a": {**COLUMN, "unit": "M"}}}, "column a: unknown key `unit`"),
        ({"rows": [{"name": "n", "b": 3}]}, "row n: unknown key `b`"),
    ],
)
def test_an_unknown_key_is_named_with_its_position(tmp_path, change, named):
    path = tmp_path / "tables.yaml"
    path.write_text(yaml.safe_dump({9: GOOD}), encoding="utf-8")
    assert read_tables(path)[9].rows[0].figures == {}
    path.write_text(yaml.safe_dump({9: {**GOOD, **change}}), encoding="utf-8")
    with pytest.raises(UserError) as refusal:
        read_tables(path)
    assert named in str(refusal.value)
