"""Manual pages, XML, HTML and catalogues: what text is found in them, and what wrong ones do."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.documents import Block, html, xml
from data_prep.text.man import man, troff
from data_prep.text.messages import clean_message, read_catalogue
from tests.data_prep.package_samples import catalogue

PAGE = r"""'\" t
.\" a comment
.TH LS 1 2022 GNU
.SH "SEE ALSO"
.PP
Lists \fBfiles\fR, as
.BR ls (1)
does\&.
.\" another
.SS Options
.TP
\fB\-a\fR, \fB\-\-all\fR
do not ignore
.I "entries \(dqso\(dq"
.IP \(bu 2
ein H\[u00E4]uschen, \[:o]de, na\*:ive
.nf
not $(this)
.B nor
that
.fi
a line \
joined

the end
.SH ÜBERSETZUNG
Die deutsche Übersetzung wurde von niemandem erstellt.
"""


def test_a_manual_page():
    assert man(PAGE.encode()) == [
        ("SH", "SEE ALSO"),
        ("P", "Lists files, as ls(1) does."),
        ("SS", "Options"),
        ("TP", "-a, --all"),
        ("TPD", 'do not ignore entries "so"'),
        ("IPT", "•"),
        ("IP", "ein Häuschen, öde, naive"),
        ("P", "a line joined"),
        ("P", "the end"),
    ]


def test_an_item_without_a_label_ends_with_the_section():
    assert man(b".TP\n.SH\nNEXT\nTITLE\n") == [("SH", "NEXT TITLE")]


def test_a_manual_page_in_latin_1_and_one_in_other_macros():
    assert man(".SH Ä\n".encode("latin-1")) == [("SH", "Ä")]
    with pytest.raises(ValueError, match="mdoc"):
        man(b".Dd May 1, 2020\n.Sh NAME\n")


@pytest.mark.parametrize(
    ("notation", "text"),
    [
        (r"a\-b\ c\~d\0e", "a-b c d e"),
        (r"\f[B]x\fP\s-1y\s0\v'1m'z", "xyz"),
        (r"caf\['e] \(Fox\(Fc \*(Aqq\*(Aq \(em", "café «x» 'q' —"),
        (r"C\e\\ \" comment", r"C\\ "),
        ("\\", ""),
    ],
)
def test_troff(notation: str, text: str):
    assert troff(notation) == text


DOCBOOK = """<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//OASIS//DTD DocBook XML V4.5//EN" "nowhere.dtd" [<!ENTITY app "Editor">]>
<article><title>The &app;</title><para>Press <keycombo> <keycap>Alt</keycap> <keycap>F4</keycap> </keycombo> in
&kde;: <guimenu>File</guimenu>.<screen>a <screen>b</screen> rm -r</screen></para>
<itemizedlist><listitem><para>Ä &amp; <emphasis>B</emphasis></para></listitem></itemizedlist></article>"""
BLOCKS = [("title", "The Editor"), ("para", "Press Alt+F4 in kde: File."), ("para", "Ä & B")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_docbook(encoding: str):
    assert xml(DOCBOOK.encode(encoding)) == BLOCKS


@pytest.mark.parametrize("data", [DOCBOOK[:-1], DOCBOOK.replace("</para>", ""), "", "text"])
def test_xml_that_is_cut_or_not_well_formed(data: str):
    with pytest.raises(ValueError, match=r"no element|mismatched|not well-formed|unclosed|syntax error"):
        xml(data.encode())


def test_html_that_leaves_elements_open():
    page = "<html><title>A</title><body><ul><li>one<li>two <b>bold</b><br>three</ul><pre>x</pre><p>B &auml;</body>"
    assert html(page.encode()) == [("title", "A"), ("li", "one"), ("li", "two bold three"), ("p", "B ä")]


def test_html_is_read_in_the_encoding_that_it_names():
    page = '<meta http-equiv="Content-Type" content="text/html; charset={}"><p>Größe'
    assert html(page.format("iso-8859-1").encode("latin-1")) == [("p", "Größe")]
    for wrong in (page.format("utf-8").encode("latin-1"), page.format("klingon").encode()):
        with pytest.raises(ValueError, match=r"codec|klingon"):
            html(wrong)


@given(st.binary(max_size=80) | st.text(alphabet=".SHTPIB\\f[]('\"\n <>/&;pab", max_size=80).map(str.encode))
def test_nothing_makes_them_fail_otherwise(data: bytes):
    for read in (man, xml, html, lambda data: list(read_catalogue(data))):
        blocks: list[Block] = []
        with contextlib.suppress(ValueError):
            blocks = read(data)
        assert all(text.strip() for _, text in blocks)


@pytest.mark.parametrize("encoding", ["klingon", "utf-7", "hex", "idna"])
def test_xml_in_an_unheard_of_encoding(encoding: str):
    with pytest.raises(ValueError, match=r"encoding|codec"):
        xml(f'<?xml version="1.0" encoding="{encoding}"?><para>text</para>'.encode())


MESSAGES = {
    "Open a file": "Eine Datei öffnen",
    "menu\x04_Save as": "_Speichern unter",
    "%d file\0%d files": "%d Datei\0%d Dateien",
    "_: a context\nNew window": "Neues Fenster",
    "translator-credits": "Erika Mustermann",
}
READ = {
    ("%d file", "%d Datei"),
    ("%d files", "%d Dateien"),
    ("New window", "Neues Fenster"),
    ("Open a file", "Eine Datei öffnen"),
    ("_Save as", "_Speichern unter"),
}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1"])
def test_a_catalogue_in_either_byte_order(order: str, charset: str):
    assert set(read_catalogue(catalogue(MESSAGES, order=order, charset=charset))) == READ


def test_a_catalogue_that_is_cut_is_refused_wherever_that_is():
    whole = catalogue(MESSAGES)
    for size in range(len(whole) - 1):  # the last byte only ends the last string
        with pytest.raises(ValueError, match=r"not a catalogue|cut short|unpack_from"):
            list(read_catalogue(whole[:size]))


def test_a_catalogue_in_a_false_encoding():
    data = catalogue(MESSAGES, charset="ISO-8859-1")
    for name in (b"UTF-8     ", b"KLINGON-88"):
        with pytest.raises(ValueError, match=r"codec|encoding"):
            list(read_catalogue(data.replace(b"ISO-8859-1", name)))


def test_one_form_where_the_message_has_two():
    assert list(read_catalogue(catalogue({"%d file\0%d files": "%d 个文件"}))) == [
        ("%d file", "%d 个文件"),
        ("%d files", "%d 个文件"),
    ]


@pytest.mark.parametrize(
    ("message", "translation", "cleaned"),
    [
        ("_Open file", "_Datei öffnen", ("Open file", "Datei öffnen")),
        ("Save &as", "Speichern &unter", ("Save as", "Speichern unter")),
        ("_File", "文件(_F)", ("File", "文件")),
        ("Read file_name of AT&T", "file_name von AT&T lesen", ("Read file_name of AT&T", "file_name von AT&T lesen")),
        ("Save && quit", "Sichern && beenden", ("Save & quit", "Sichern & beenden")),
        ("%s of %1 at <b>%d</b>", "%s von %1 bei <b>%d</b>", ("%s of %1 at  %d ", "%s von %1 bei  %d ")),
        (
            "give <file> &lt;here&gt;<br/>now",
            "<file> hier &amp; jetzt",
            ("give <file> <here> now", "<file> hier & jetzt"),
        ),
        ("a ~tilde", "ohne", ("a ~tilde", "ohne")),
    ],
)
def test_messages_lose_keys_and_markup_and_keep_placeholders(message: str, translation: str, cleaned: tuple[str, str]):
    assert list(clean_message(message, translation)) == [cleaned]


def test_paragraphs_of_messages_are_parted_where_there_are_as_many():
    assert list(clean_message("one\n\ntwo", "eins\n \nzwei")) == [("one", "eins"), ("two", "zwei")]
    assert list(clean_message("one\n\ntwo", "eins")) == [("one\n\ntwo", "eins")]
