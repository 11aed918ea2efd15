"""The lines that a model is asked go through the steps that its test set went through."""

from pathlib import Path

import pytest
import yaml

from data_prep.dataset import FOLDER, load_dataset
from data_prep.lines import line_steps
from data_prep.prepare import prepare
from scripts.common.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "text_samples"
CHINESE = ["你好世界 & <ok>", "软件包的网页浏览器，版本3.2。", "这个软件包提供开发文件。"] * 40


def texts(language: str) -> list[str]:
    return CHINESE if language == "zh" else (SAMPLES / f"{language}.txt").read_text(encoding="utf-8").splitlines()


def step_name(step: str | dict) -> str:
    return step if isinstance(step, str) else next(iter(step))


@pytest.fixture
def prepared(tmp_path):
    """Prepares text of this machine by the steps of a dataset; returns the dataset and the folder."""

    def make(name, *, units=0):  # units: of SentencePiece, in place of tokens and BPE
        about = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
        steps = [
            {"bpe": step["bpe"] | {"merges": 60}} if step_name(step) == "bpe" else step
            for step in about["steps"]
            if not (units and step_name(step) == "tokenise")
        ]
        if units:
            steps[-1] = {"sentencepiece": {"units": units, "joint": False}}
        file, raw = tmp_path / f"{name}.yaml", tmp_path / "raw"
        file.write_text(
            yaml.safe_dump({key: about[key] for key in ("source", "target")} | {"kind": "text", "steps": steps})
        )
        raw.mkdir()
        for language in (about["source"], about["target"]):
            for split in ("train", "valid", "test"):
                (raw / f"{split}.{language}").write_text(
                    "".join(f"{line}\n" for line in texts(language) * (12 if split == "train" else 1)), encoding="utf-8"
                )
        dataset = load_dataset(str(file))
        prepare(dataset, raw=raw, out=tmp_path / "prepared", workers=1)
        return dataset, tmp_path / "prepared"

    return make


@pytest.mark.parametrize("name", ["debian_en_de", "wmt16_en_de", "wmt14_en_fr", "wmt17_zh_en"])
def test_raw_lines_become_the_prepared_ones(prepared, name):
    dataset, folder = prepared(name)
    for language in dataset.languages:
        codes = next(path for path in (folder / f"codes.{language}", folder / "codes") if path.exists())
        apply = line_steps(dataset, language, codes)
        raw, made = (
            (path / f"test.{language}").read_text(encoding="utf-8").splitlines() for path in (folder / "raw", folder)
        )
        assert len(raw) > 50
        assert [apply(line) for line in raw] == made
        assert made != raw


def test_lines_in_sentencepiece(prepared):
    dataset, folder = prepared("debian_en_de", units=150)
    for language in dataset.languages:
        apply = line_steps(dataset, language, folder / f"sentencepiece.model.{language}")
        made = (folder / f"test.{language}").read_text(encoding="utf-8").splitlines()
        raw = (folder / "raw" / f"test.{language}").read_text(encoding="utf-8").splitlines()
        assert [apply(line) for line in raw] == made
        assert any("\u2581" in line for line in made)


def test_what_cannot_be_done_is_refused(prepared):
    dataset, folder = prepared("debian_en_de")
    with pytest.raises(UserError, match="no language 'fr'; expected en or de"):
        line_steps(dataset, "fr", folder / "codes")
    with pytest.raises(UserError, match="cannot be read"):
        line_steps(dataset, "en", folder / "nothing")
    with pytest.raises(UserError, match="wmt16_en_de for wmt16_en_de_google"):
        line_steps(load_dataset("wmt16_en_de_google"), "en", folder / "codes")
