"""scripts.own_text: two text files become a dataset and a configuration for the other commands."""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fairseq.data.data_utils import post_process

from data_prep.common.errors import UserError
from data_prep.common.files import read_json
from data_prep.dataset import Dataset, Step, load_dataset
from data_prep.download import download
from data_prep.lines import line_steps
from data_prep.prepare import prepare
from data_prep.steps.plan import plan
from data_prep.text import sentencepiece
from scripts import own_text
from scripts.config import Config, flags, load_config
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints
from scripts.fairseq_io.devices import Devices
from scripts.fairseq_io.models import load_plugin, training_arguments
from scripts.own_text import Side
from scripts.reproduce.run import build_run
from scripts.scoring.detokenise import detokeniser
from scripts.scoring.metrics import measures
from scripts.translate import find_trained

ENGLISH = ("library", "game", "editor", "server", "font", "viewer", "compiler", "driver")
WORDS = {
    "zh": ("函数库", "游戏", "编辑器", "服务器", "字体", "查看器", "编译器", "驱动程序"),
    "bo": ("དཔེ་མཛོད་", "རྩེད་མོ་", "རྩོམ་སྒྲིག་", "ཞབས་ཞུ་", "ཡིག་གཟུགས་", "ལྟ་བྱེད་", "སྒྲིག་བྱེད་", "ཁ་ལོ་བ་"),
    "ja": ("ﾗｲﾌﾞﾗﾘ", "ｹﾞｰﾑ", "ｴﾃﾞｨﾀ", "ｻｰﾊﾞ", "ﾌｫﾝﾄ", "ﾋﾞｭｰｱ", "ｺﾝﾊﾟｲﾗ", "ﾄﾞﾗｲﾊﾞ"),
    "de": ("Bibliothek ", "Spiel ", "Editor ", "Server ", "Schrift ", "Betrachter ", "Compiler ", "Treiber "),
}


def corpus(folder: Path, language: str, count: int = 600) -> tuple[Path, Path]:
    """Write pairs of English and another language; of these, only German has spaces between words."""
    draw = random.Random(1)
    files = folder / f"a.{language}", folder / "my text's.en"
    lines: tuple[list[str], list[str]] = [], []
    for number in range(count):
        words = [draw.randrange(8) for _ in range(draw.randint(4, 12))]
        lines[0].append("".join(WORDS[language][word] for word in words) + str(number))
        lines[1].append(" ".join(ENGLISH[word] for word in words) + f" {number}")
    for file, text in zip(files, lines, strict=True):
        file.write_text("\n".join(text) + "\n", encoding="utf-8")
    return files


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout to write to, without GPUs; it is the current folder."""
    for name in ("debian_en_de", "iwslt14_de_en", "own_text"):
        shutil.copytree(own_text.CHECKOUT / "configs" / name, tmp_path / "configs" / name)
    (tmp_path / "data_prep" / "datasets").mkdir(parents=True)
    monkeypatch.setattr(own_text, "CHECKOUT", tmp_path)
    monkeypatch.setattr(own_text, "find_devices", lambda **_: Devices(gpu=False, count=1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(checkout) -> Callable[..., Path]:
    """Return a function that calls the command with two files, and returns the path of the dataset's YAML."""

    def called(src: Path, tgt: Path, source: str, target: str = "en", name: str = "mine", *more: str) -> Path:
        own_text.main([name, "--src", str(src), "--tgt", str(tgt), "--source", source, "--target", target, *more])
        return checkout / "data_prep" / "datasets" / f"{name}.yaml"

    return called


def config_of(dataset: Path) -> Config:
    return load_config(dataset.parents[2] / "configs" / dataset.stem / "dynamicconv.yaml")


def change(path: Path, pattern: str, new: str) -> None:
    path.write_text(re.sub(pattern, new, path.read_text(encoding="utf-8")), encoding="utf-8")


def prepared(dataset: Path, checkout: Path) -> list[dict[str, Any]]:
    """Prepare the text with few subwords; return the counts of each step."""
    change(dataset, "units: 2000", "units: 90")
    download(load_dataset(str(dataset)), raw=None, out=checkout / "raw")
    prepare(load_dataset(str(dataset)), raw=checkout / "raw", out=checkout / "out", workers=1)
    return read_json(checkout / "out" / "counts.json")["steps"]


@pytest.mark.parametrize(
    "name",
    [
        "my.de",
        "😀 my text.de",
        "it's.de",
        'a"b\\c.de',
        "- {a: b} #c.de",
        "\u2028\x85\x7f\x1b\t\xa0.de",
        "日本語.de",
        "no",
    ],
)
def test_any_path_is_read_back_from_the_dataset_s_file(name, checkout, call):
    src, tgt = corpus(checkout, "de", 20)
    (checkout / "😀").mkdir()
    src = src.rename(checkout / "😀" / name)
    assert load_dataset(str(call(src, tgt, "de"))).text == {"train.de": str(src), "train.en": str(tgt)}


@pytest.mark.parametrize("language", WORDS)
def test_nothing_of_a_good_text_is_lost(language, checkout, call):
    """The dataset's file names the text files, given here by a relative and an absolute path."""
    src, tgt = corpus(checkout, language)
    path = call(src.relative_to(checkout), tgt, language)
    config = config_of(path)
    assert (config.dataset, config.generate["post-process"], config.metric) == ("mine", "sentencepiece", "sacrebleu")
    assert not any(entry.get("dropped") for entry in prepared(path, checkout))


def test_the_command_starts_the_run_or_prints_the_command_for_it(checkout, call, monkeypatch, capsys):
    ran = list[list[str]]()
    monkeypatch.setattr(own_text.reproduce, "main", ran.append)
    files = corpus(checkout, "de", 20)
    call(*files, "de", "en", "mine", "--run")
    assert ran == [["configs/mine/dynamicconv.yaml"]]
    (checkout / "else where").mkdir()
    monkeypatch.chdir(checkout / "else where")
    call(*files, "de", "en", "elsewhere")
    command = capsys.readouterr().out.splitlines()[-1]
    shown = subprocess.run(f"{command} --print", shell=True, capture_output=True, text=True, check=False)
    assert shown.stderr.startswith("error: no dataset 'elsewhere' (")  # the printed command uses the real checkout


def test_a_project_has_all_files_in_its_own_folder(checkout, call, monkeypatch, capsys):
    """It prints the folder of results, and writes nothing to the checkout; the run's record leads to the dataset."""
    (project := checkout / "my project").mkdir()
    files = corpus(project, "de")
    in_checkout = sorted(checkout.rglob("*"))
    monkeypatch.chdir(project)
    name = "dynamicconv"  # a dataset may have the name of the model
    call(*files, "de", "en", name, "--project", ".")
    assert "results will be in work/dynamicconv\n" in capsys.readouterr().out
    config = load_config(Path("configs") / name / "dynamicconv.yaml")
    change(Path(f"datasets/{name}.yaml"), "units: 2000", "units: 90")
    monkeypatch.chdir(checkout)  # paths in a configuration are relative to its file
    run = build_run(config, project / "work", devices=1)
    assert (run.dataset_root, run.model_root) == (project / "work" / name, project / "work" / name / name)
    assert all(stage.folder.is_relative_to(project) for stage in run.stages.values())
    dataset = load_dataset(config.dataset)
    download(dataset, raw=None, out=run.dataset_root / "raw")
    prepare(dataset, raw=run.dataset_root / "raw", out=run.dataset_root / "prepared", workers=1)
    (run.dataset_root / "binarised").mkdir()
    (run.model_root / "model.pt").parent.mkdir()
    (run.model_root / "model.pt").touch()
    run.write_record("download")
    assert load_dataset(find_trained(run.model_root).dataset).file == project / "datasets" / f"{name}.yaml"
    assert [path for path in sorted(checkout.rglob("*")) if not path.is_relative_to(project)] == [
        path for path in in_checkout if not path.is_relative_to(project)
    ]


def test_outside_of_the_checkout_it_prints_that_it_writes_there(checkout, call, tmp_path_factory, monkeypatch, capsys):
    files = corpus(tmp_path_factory.mktemp("text"), "de", 20)
    monkeypatch.chdir(files[0].parent)
    call(*files, "de")
    assert f"the files and results go to the checkout, {checkout}; --project DIR" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "tokens"), [(5, 1536), (300, 2400)])
def test_a_batch_has_room_for_the_longest_line(words, tokens, checkout, call, capsys):
    german, english = checkout / "a.de", checkout / "a.en"
    for path, word in ((german, "Wort"), (english, "word")):
        path.write_text("".join(f"{word} {number}{f' {word}' * (words - 2)}\n" for number in range(20)))
    config = config_of(call(german, english, "de"))
    assert config.batch == {"tokens": tokens, "max-tokens": tokens // 2, "cpu-processes": 2}
    printed = capsys.readouterr().out  # so that swapped files are noticed
    assert "a.de begins in de: Wort 0" in printed
    assert "a.en begins in en: word 0" in printed


def two_sides(pairs: int, words: list[int]) -> tuple[Side, Side]:
    return Side(Path("a"), "de", lines=pairs, words=words), Side(Path("b"), "en", lines=pairs, words=[10] * len(words))


def test_names_that_yaml_reads_as_other_types(checkout, call):
    path = call(*corpus(checkout, "de", 20), source="no", name="2024")
    dataset = load_dataset(str(path))
    plan(dataset, checkout)
    assert (dataset.languages, config_of(path).dataset) == (("no", "en"), "2024")


@pytest.mark.parametrize(("longer", "most"), [(5, 150), (4, 100)])
def test_the_longest_five_in_a_thousand_lines_are_left_out(longer, most):
    assert own_text.max_words(*two_sides(1000, [10] * (1000 - longer) + [130] * longer)) == most


def test_wrong_input_is_refused(checkout, call, capsys):
    chinese, english = corpus(checkout, "zh", 20)
    (short := checkout / "short.en").write_text("one line\n")
    call(chinese, english, "zh", name="there")
    for tgt, source, name, message in (
        (short, "zh", "mine", r"a\.zh has 20 lines but .*short\.en has 1 lines"),
        (english, "de.x", "mine", r"--source: got 'de\.x', expected a code of two or three letters"),
        (short, "german", "mine", "--source: got 'german', expected a code of two or three letters, .*: de, zh"),
        (english, "en", "mine", "--source and --target are both en"),
        (english, "zh", "there", r"there\.yaml exists already; continue with .* configs/there/"),
    ):
        with pytest.raises((UserError, SystemExit)) as refusal:
            call(chinese, tgt, source, name=name)
        assert re.search(message, f"{refusal.value}{capsys.readouterr().err}")


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("pairs", [300, 800, 3000, 20_000, 200_000, 2_000_000, 40_000_000])
def test_twenty_checkpoints_are_validated_and_no_mean_reaches_high_learning_rates(pairs, gpu, checkout):
    """With a GPU, the model is one of the paper's."""
    path = checkout / "configs" / "mine" / "dynamicconv.yaml"
    path.parent.mkdir()
    sides = two_sides(pairs, [20] * 100)
    path.write_text(own_text.config_text("mine", *sides, files=own_text.Files.in_checkout("mine"), gpu=gpu))
    config = load_config(path)
    large = "pla_dynamicconv_iwslt" if pairs < 1_000_000 else "pla_dynamicconv_wmt"
    assert config.train["arch"].startswith(large if gpu else "pla_dynamicconv_small")
    assert config.train["share-all-embeddings"]
    load_plugin()
    args = training_arguments(flags(config.train))
    check_checkpoints(config, args)
    assert args.max_update / args.save_interval_updates == 20
    assert args.validate_interval_updates == args.save_interval_updates
    assert min(args.save_interval, args.validate_interval) > args.max_update  # even with an update per epoch
    assert config.averaged == ["best", 1, 3, 5]


SENTENCES = {
    "am": "ሰላም፣ ዓለም። ይህ «አጭር» ጽሑፍ ነው፤ ቁጥሩ፦",
    "arb_Arab": "مرحبًا، يا عالم! هل هذا «نصٌّ قصير»؟ الرقم:",
    "ben_Beng": "বিদ্যালয়ের ছাত্রেরা বাংলা পড়ে। এটি কি ‘ছোট’ বাক্য?",
    "cat_Latn": "L'avi col·lecciona “llibres” d'art; l’home, no.",
    "fas": "می‌خواهم کتاب‌ها را بخوانم؛ آیا «کوتاه» است؟",
    "fra_Latn": "L'été est là, m. Dupont ; 5, aujourd'hui.",
    "he": 'בית־ספר של צה"ל, ת״א וג\'ירפה: "שלום!"',
    "hin_Deva": "क्षत्रिय विद्यार्थी हिन्दी पढ़ते हैं। क्या यह “छोटा” वाक्य है?",
    "hye": "Ինչո՞ւ է այսպես։ Բարև՛, «աշխարհ»։",
    "ja": "これは「短い文」です。５ｍ²の部屋、½と…。",
    "khm": "សួស្តីពិភពលោក។ នេះជាប្រយោគខ្លីៗ",
    "kor_Hang": "안녕하세요, 세계! 이것은 “짧은” 문장입니다.",
    "my": "မြန်မာစာသည် လှပသည်။ ကျောင်းသို့၊ သွားသည်။",
    "rus": "Привет, «мир»! Это т. е. короткий „текст“ — не более.",
    "sin_Sinh": "ශ්‍රී ලංකාව ලස්සන රටකි. සිංහල භාෂාව, ක්‍රමය.",
    "srp_Latn": "Zdravo, „svete”! Njegov džak je ovde.",
    "tha": "นี่คือประโยคสั้นๆ ที่ไม่มีช่องว่าง ฯ",
    "tur_Latn": "İstanbul'da ISPARTA'lı ılık içecek var; \"çok güzel\".",
    "uk": "Комп'ютер і м’ясо об'єднані: «так».",
    "zho_Hant": "你好，世界！這是「短句」：約翰·史密斯買了５ｍ²（½）……",
}
"""Sentences with the punctuation, joiners and quotes of a script, and characters that NFKC would change."""


@pytest.mark.parametrize("target", SENTENCES)
def test_a_perfect_translation_scores_100(target, tmp_path):
    """The references are prepared as a test set is, their subwords joined, and the text detokenised."""
    references, codes = [f"{SENTENCES[target]} {n}" for n in range(20)], tmp_path / "codes"
    with pytest.raises(sentencepiece.TooManyUnits) as refusal:
        sentencepiece.learn(iter(references), units=1000)
    codes.write_bytes(sentencepiece.learn(iter(references), units=refusal.value.limit))
    for name, parameters in (("tokenise", {"escape": False}), ("sentencepiece", {"units": 200})):
        steps = (Step(name=name, parameters=parameters),)
        dataset = Dataset(name="d", file=tmp_path, kind="text", source="en", target=target, steps=steps)
        joined = [post_process(line, dataset.units) for line in map(line_steps(dataset, target, codes), references)]
        back = list(map(detokeniser(target, dataset), joined))
        metric = measures({"metric": "sacrebleu"}, target)["sacrebleu"]
        assert metric.metric.corpus_score(back, [references]).score == pytest.approx(100), f"{back[0]}\n{references[0]}"


def test_the_error_for_a_missing_package_names_the_command_that_installs_it(tmp_path):
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError('No module named yaml', name='yaml')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "scripts.own_text", "x"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (process.returncode, "Traceback" in process.stderr) == (1, False)
    assert re.match("error: the package yaml is not installed for .* scripts/setup.sh", process.stderr)
