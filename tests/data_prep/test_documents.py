"""Text from manual pages, XML, HTML and catalogues, and errors for damaged ones."""

import contextlib
from collections.abc import Callable
from typing import Any

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
PAGE_BLOCKS = [
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
DOCBOOK = """<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//OASIS//DTD DocBook XML V4.5//EN" "nowhere.dtd" [<!ENTITY app "Editor">]>
<article><title>The &app;</title><para>Press <keycombo> <keycap>Alt</keycap> <keycap>F4</keycap> </keycombo> in
&kde;: <guimenu>File</guimenu>.<screen>a <screen>b</screen> rm -r</screen></para>
<itemizedlist><listitem><para>Ä &amp; <emphasis>B</emphasis></para></listitem></itemizedlist></article>"""
BLOCKS = [("title", "The Editor"), ("para", "Press Alt+F4 in kde: File."), ("para", "Ä & B")]
OPEN = "<html><title>A</title><body><ul><li>one<li>two <b>bold</b><br>three</ul><pre>x</pre><p>B &auml;</body>"
NAMED = '<meta http-equiv="Content-Type" content="text/html; charset={}"><p>Größe'


@pytest.mark.parametrize(
    ("read", "data", "blocks"),
    [
        (man, PAGE.encode(), PAGE_BLOCKS),
        (man, b".TP\n.SH\nNEXT\nTITLE\n", [("SH", "NEXT TITLE")]),  # an item without a label ends with the section
        (man, ".SH Ä\n".encode("latin-1"), [("SH", "Ä")]),
        (xml, DOCBOOK.encode(), BLOCKS),
        (xml, DOCBOOK.encode("utf-16"), BLOCKS),
        (html, OPEN.encode(), [("title", "A"), ("li", "one"), ("li", "two bold three"), ("p", "B ä")]),
        (html, NAMED.format("iso-8859-1").encode("latin-1"), [("p", "Größe")]),
    ],
)
def test_blocks(read: Callable[[bytes], list[Block]], data: bytes, blocks: list[Block]):
    assert read(data) == blocks


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (man, b".Dd May 1, 2020\n.Sh NAME\n", "mdoc"),
        (xml, DOCBOOK[:-1].encode(), "unclosed"),
        (xml, b"", "no element"),
        *[
            (xml, f'<?xml version="1.0" encoding="{name}"?><para>text</para>'.encode(), "encoding|codec")
            for name in ("klingon", "utf-7", "hex", "idna")
        ],
        (html, NAMED.format("utf-8").encode("latin-1"), "codec"),
        (html, NAMED.format("klingon").encode(), "klingon"),
    ],
)
def test_documents_that_cannot_be_read(read: Callable[[bytes], list[Block]], data: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        read(data)


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


def messages_of(data: bytes) -> Any:
    return list(read_catalogue(data))


@given(st.binary(max_size=80) | st.text(alphabet=".SHTPIB\\f[]('\"\n <>/&;pab", max_size=80).map(str.encode))
def test_random_documents_raise_only_value_errors(data: bytes):
    for read in (man, xml, html, messages_of):
        blocks: list[Block] = []
        with contextlib.suppress(ValueError):
            blocks = read(data)
        assert all(text.strip() for _, text in blocks)


MESSAGES = {
    "Open a file": "Eine Datei öffnen",
    "menu\x04_Save as": "_Speichern unter",
    "%d file\0%d files": "%d Datei\0%d Dateien",
    "_: a context\nNew window": "Neues Fenster",
    "button|Sort by name": "Nach Namen sortieren",
    "copy|move": "kopieren|verschieben",
    "translator-credits": "Erika Mustermann",
    "one form\0of two": "eine Form",
}
READ = {
    ("%d file", "%d Datei"),
    ("%d files", "%d Dateien"),
    ("New window", "Neues Fenster"),
    ("Sort by name", "Nach Namen sortieren"),
    ("copy|move", "kopieren|verschieben"),
    ("Open a file", "Eine Datei öffnen"),
    ("_Save as", "_Speichern unter"),
    ("one form", "eine Form"),
    ("of two", "eine Form"),
}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1"])
def test_a_catalogue_in_either_byte_order(order: str, charset: str):
    complete = catalogue(MESSAGES, order=order, charset=charset)
    assert set(messages_of(complete)) == READ
    for size in range(len(complete) - 1):  # the last byte only ends the last string
        with pytest.raises(ValueError, match=r"not a catalogue|unpack_from"):
            messages_of(complete[:size])
    if charset != "UTF-8":
        for name in (b"UTF-8     ", b"KLINGON-88"):
            with pytest.raises(ValueError, match=r"codec|encoding"):
                messages_of(complete.replace(b"ISO-8859-1", name))


@pytest.mark.parametrize(
    ("message", "translation", "cleaned"),
    [
        ("_Open file", "_Datei öffnen", [("Open file", "Datei öffnen")]),
        ("Save &as", "Speichern &unter", [("Save as", "Speichern unter")]),
        ("_File", "文件(_F)", [("File", "文件")]),
        ("File", "文件(_F)", [("File", "文件")]),
        ("_File", "文件（F）...", [("File", "文件...")]),
        ("_File", "文件(X)", [("File", "文件(X)")]),
        ("Sa_ve", "保存 (_S)", [("Save", "保存")]),  # the key is another letter
        ("&Y-axis && grid", "Y 轴和网格(&Y)", [("Y-axis & grid", "Y 轴和网格")]),
        ("_Shift (S)", "Shift(S)", [("Shift (S)", "Shift(S)")]),
        ("/_View/So_rt/_Up", "/查看(_V)/排序(_R)/升(_U)", [("/View/Sort/Up", "/查看/排序/升")]),
        ("/_File/_New folder", "/_Datei/_Neuer Ordner", [("/File/New folder", "/Datei/Neuer Ordner")]),
        ("_Mark it, Focuse&d", "Markieren, im Fokus", [("Mark it, Focused", "Markieren, im Fokus")]),
        ("New message", "Ne&ue Nachricht", [("New message", "Neue Nachricht")]),
        ("A file_name of AT&T", "file_name von AT&T", [("A file_name of AT&T", "file_name von AT&T")]),
        ("no 'file_name'", "»file_name« fehlt", [("no 'file_name'", "»file_name« fehlt")]),
        ("a file_name, R&D", "Dateiname", [("a file_name, R&D", "Dateiname")]),
        ("see ?a=1&b=2", "siehe dort", [("see ?a=1&b=2", "siehe dort")]),
        ("&copy &amp; move", "eins &mdash; zwei", [("&copy & move", "eins — zwei")]),
        ("%s of %1 at <b>%d</b>", "%s von %1 bei <b>%d</b>", [("%s of %1 at  %d ", "%s von %1 bei  %d ")]),
        ("<file> &lt;here&gt;<br/>now", "<file> hier &amp; jetzt", [("<file> <here> now", "<file> hier & jetzt")]),
        ("a ~tilde", "ohne", [("a ~tilde", "ohne")]),
        ("one\n\ntwo", "eins\n \nzwei", [("one", "eins"), ("two", "zwei")]),  # as many paragraphs on both sides
        ("one\n\ntwo", "eins", [("one\n\ntwo", "eins")]),
    ],
)
def test_messages_lose_keys_and_markup_and_keep_placeholders(message: str, translation: str, cleaned: list):
    assert list(clean_message(message, translation)) == cleaned
