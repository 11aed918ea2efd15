"""Options of `python -m data_prep` about the user's own text, and what is refused before anything runs."""

import hashlib
import json
from pathlib import Path

import pytest

from scripts.common.errors import UserError
from scripts.pipeline.pipeline import sizes
from tests.data_prep.corpora import pack
from tests.data_prep.test_pipeline import run


@pytest.fixture
def sides(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "my.en", tmp_path / "my.de"]
    for path in paths:
        path.write_bytes(b"".join(b"%s\xff word %d\n" % (path.suffix.encode(), n) for n in range(9)))
    return paths


def test_one_side_alone_is_refused_where_there_are_two(tmp_path, sides, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"--tgt .*my.de without --src; give the other side"):
        run(monkeypatch, "own_text", "--tgt", sides[1], "--out", out)
    with pytest.raises(UserError, match="own_text is text in en and de; give --src FILE and --tgt FILE"):
        run(monkeypatch, "own_text", "--src", sides[0], "--out", out)
    alone = tmp_path / "alone.yaml"
    alone.write_text("{kind: text, source: en, steps: []}")
    with pytest.raises(UserError, match="alone is text in en; give --src alone"):
        run(monkeypatch, alone, "--src", sides[0], "--tgt", sides[1], "--out", out)
    assert not out.exists()


def test_own_text_counts_as_done_until_it_changes(tmp_path, sides, monkeypatch, capsys):
    given = ["own_text", "--src", sides[0], "--tgt", sides[1], "--out", tmp_path / "out", "--to", "download"]
    for said in ("not complete yet", "nothing has changed, skipped"):
        run(monkeypatch, *given, "--invalid", "replace")
        assert f"== download: {said}" in capsys.readouterr().out
    sides[0].write_bytes(sides[0].read_bytes().upper())
    run(monkeypatch, *given, "--invalid", "replace")
    assert "the files given with --raw have changed" in capsys.readouterr().out


def test_only_files_that_a_dataset_names_count(tmp_path, monkeypatch, capsys):
    raw, file = tmp_path / "raw", tmp_path / "mine.yaml"
    pack(raw / "a.tgz", {"t.en": b"one\n"})
    yaml = "kind: {}\nsource: en\nfiles: {{a.tgz: {{}}}}\nsplits: {{test: [{{file: a.tgz, members: {{en: t.en}}}}]}}"
    file.write_text(yaml.format("archives"))
    for said in ("not complete yet", "nothing has changed, skipped", "the files given with --raw have changed"):
        run(monkeypatch, file, "--raw", raw, "--out", tmp_path / "out", "--to", "download")
        assert f"== download: {said}" in capsys.readouterr().out
        (raw / "else.txt").write_text("of something else")
        if "skipped" in said:
            (tmp_path / "out" / "raw" / "a.tgz").unlink()
            (tmp_path / "out" / "raw" / "ledger.json").unlink()
            pack(raw / "a.tgz", {"t.en": b"two\n"})
    described = json.loads((tmp_path / "out" / "raw" / "manifest.json").read_text())["files"]["a.tgz"]
    content = (raw / "a.tgz").read_bytes()
    assert described == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}  # lines are of text
    file.write_text(yaml.format("text"))
    with pytest.raises(UserError, match=r"mine.yaml: `files` is \['a.tgz'\], expected none for this kind"):
        run(monkeypatch, file, "--raw", raw, "--out", tmp_path / "out")


def test_a_wrong_download_that_is_deleted_makes_nothing_run_again(tmp_path, monkeypatch, capsys):
    raw, out, file = tmp_path / "archives", tmp_path / "out", tmp_path / "mine.yaml"
    pack(raw / "a.tgz", {f"{split}.en": b"one line\n" * 9 for split in ("train", "valid", "test")})
    sources = "".join(
        f"  {split}: [{{file: a.tgz, members: {{en: {split}.en}}}}]\n" for split in ("train", "valid", "test")
    )
    file.write_text(f"kind: archives\nsource: en\nfiles: {{a.tgz: {{}}}}\nsplits:\n{sources}steps: [normalise_space]\n")
    (out / "raw").mkdir(parents=True)
    (out / "raw" / "a.tgz.bad").write_text("of a mirror")
    given = [file, "--raw", raw, "--out", out, "--to", "prepare", "--workers", 1]
    run(monkeypatch, *given)
    stamp = json.loads((out / "raw" / "stamp.json").read_text())
    assert stamp["files"].keys() == {"a.tgz", "manifest.json"}
    (out / "raw" / "stamp.json").write_text(json.dumps(stamp | {"files": sizes(out / "raw")}))  # as it was once
    (out / "raw" / "a.tgz.bad").unlink()
    capsys.readouterr()
    run(monkeypatch, *given)
    assert capsys.readouterr().out.count("nothing has changed, skipped") == 2
    for gone, said in (("manifest.json", "manifest.json is gone or has changed"), ("a.tgz", "a.tgz is gone")):
        (out / "raw" / gone).unlink()
        run(monkeypatch, *given)
        assert f"== download: {said}" in capsys.readouterr().out


def test_what_to_do_with_bytes_that_are_not_utf_8(tmp_path, sides, monkeypatch):
    out = tmp_path / "out"
    given = ["own_text", "--src", sides[0], "--tgt", sides[1], "--out", out, "--to", "download", "--workers", 1]
    with pytest.raises(UserError, match=r"my.en, line 1: byte 0xff is not UTF-8, as in 9 lines"):
        run(monkeypatch, *given)
    run(monkeypatch, *given, "--invalid", "replace")
    assert (out / "raw" / "train.de").read_text().count("\ufffd") == 9
    with pytest.raises(UserError, match="no pair is left"):  # not what the other option made
        run(monkeypatch, *given, "--invalid", "drop")
    with pytest.raises(UserError, match=r"debian_en_de.yaml: `invalid` is 'drop', expected nothing: kind debian"):
        run(monkeypatch, "debian_en_de", "--out", out, "--invalid", "drop")
    file = tmp_path / "mine.yaml"
    file.write_text("{kind: text, source: en, target: de, steps: [], invalid: skip}")
    with pytest.raises(UserError, match=r"mine.yaml: `invalid` is 'skip', expected error, replace or drop"):
        run(monkeypatch, file, "--raw", tmp_path, "--out", out)
