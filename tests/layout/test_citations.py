"""Citations of the paper: each section, equation, table, figure and footnote that a file names is one that it has."""

import re
from pathlib import Path

import pytest

from tests.layout.test_layout import ROOT, TRACKED

# of the paper (Wu et al., ICLR 2019). Its equations have no numbers: they are cited by their section.
PARTS = {
    "section": {*"1234567", "5.1", "5.2", "5.3", "6.1", "6.2", "6.3", "6.4"},
    "equation": set(),
    "table": set("1234567"),
    "figure": {"1", "1(a)", "1(b)", "2", "2(a)", "2(b)", "2(c)"},
    "footnote": set("12345678"),
    "appendix": {"A", "B"},
}
NUMBER = r"(?>\d+(?:\.\d+)*(?:\([a-z]\))?|[A-Z]\b)"
# "no Table 8" is a message about a table that is not there
CITATION = re.compile(
    r"(?<!no )\b(?P<part>[Ss]ection|[Ee]quation|[Ee]q\.|Table|[Ff]igure|[Ff]ootnote|[Aa]ppendix)(?P<several>s)?[ ~]"
    rf"(?P<numbers>{NUMBER}(?(several)(?:(?:, | and | or | to |-){NUMBER})*+))(?! of [A-Z]\w+ et al\.)(?!\w)"
)


def citations(text):
    """The parts of the paper that a text names, each with its number; those of other papers are left out."""
    flowing = re.sub(r"\s*\n\s*(?:#|//|\*|>)?\s*", " ", text)  # a citation may be broken by the end of a line
    for match in CITATION.finditer(flowing):
        part = {"eq.": "equation"}.get(match["part"].lower(), match["part"].lower())
        for number in re.findall(NUMBER, match["numbers"]):
            yield part, number


def cited():
    """Every file's citations, the file's path first."""
    for path in TRACKED:
        if path != Path(__file__):
            for part, number in citations(path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), part, number


def test_every_part_of_the_paper_that_is_cited_exists():
    assert [found for found in cited() if found[2] not in PARTS[found[1]]] == []


def test_the_citations_are_found():
    """The sections that hold the operators, the architecture and the training are all cited somewhere."""
    found = {(part, number) for _, part, number in cited()}
    assert {number for part, number in found if part == "table"} == PARTS["table"]
    assert {("section", number) for number in ("3", "4", "5.1", "5.2", "5.3", "6.2", "6.3", "6.4")} <= found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see section 3.1", [("section", "3.1")]),
        ("of sections 5.2 and\n# 5.3", [("section", "5.2"), ("section", "5.3")]),
        ("of section\n    3", [("section", "3")]),
        ("(section 3, equations 3 and 4)", [("section", "3"), ("equation", "3"), ("equation", "4")]),
        ("Tables 1 to 3, eq. 4; Eq. 5", [("table", "1"), ("table", "3"), ("equation", "4"), ("equation", "5")]),
        ("Figure 2(b), Table 3's", [("figure", "2(b)"), ("table", "3")]),
        ("as in Table 4, 60 updates", [("table", "4")]),
        ("equations 2 to 4 of Zhang et al. (2018)", []),
    ],
)
def test_citations_are_read(text, expected):
    assert list(citations(text)) == expected
