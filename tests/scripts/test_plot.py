"""Pictures: the values read from logs, models and records, and the files that are drawn from them."""

import csv
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_REGISTRY
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from data_prep import dataset
from data_prep.common.errors import UserError
from scripts.fairseq_io.models import load_plugin, training_arguments
from scripts.plot import figure, kernels, losses, reading
from scripts.plot.__main__ import main
from scripts.plot.reading import Layer, Reading, read
from scripts.scoring.metrics import measures
from scripts.scoring.significance import counts
from scripts.translate import Trained
from tests.scripts.run_records import record, speed, write

STAMP = "2026-01-02 03:04:05 | INFO |"
STARTS = f"{STAMP} fairseq_cli.train | num. shared model params: 7 (num. trained: 7)"
CHINESE = "软件包"


def inner(update: int, loss: float, wall: float, lr: float = 0.001) -> str:
    values = {"loss": loss, "ppl": 2**loss, "wpb": 100, "num_updates": update, "wall": wall, "lr": lr}
    return f"{STAMP} train_inner | {json.dumps({name: str(value) for name, value in values.items()})}"


def valid(update: int, loss: float) -> str:
    values = {"valid_loss": loss, "valid_ppl": 2**loss, "valid_num_updates": update}
    return f"{STAMP} valid | {json.dumps({name: str(value) for name, value in values.items()})}"


def log(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.log").write_text("\n".join([STARTS, *lines, ""]))
    return folder / "train.log"


def training(work: Path, name: str, seed: int = 1, offset: float = 0.0) -> None:
    """Write the log of a training of 100 updates with two validations."""
    lines = [inner(n, 10 - n / 20 + offset, 60.0 * n / 10) for n in range(10, 101, 10)]
    log(
        work / "toy" / name / f"seed{seed}" / "checkpoints",
        *lines[:5],
        valid(50, 7.6),
        *lines[5:],
        valid(100, 5.2 + offset),
    )


def texts(svg: Path) -> list[str]:
    """Return the texts of an SVG."""
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    return [str(element.text) for element in root.iter("{http://www.w3.org/2000/svg}text")]


# losses


def test_a_resumed_training_is_one_curve():
    """Updates that a kill lost are repeated: their tokens and losses count once, their time both times."""
    started = [STARTS, inner(10, 9.0, 60.0), inner(20, 8.0, 120.0), valid(20, 8.5), inner(30, 7.0, 180.0)]
    resumed = [STARTS, inner(30, 7.5, 60.0), '2026 | INFO | train_inner | {"lo', inner(40, 6.5, 120.0), valid(40, 6.6)]
    curves = losses.read_curves([*started, *resumed], "run")
    assert [(p.update, p.tokens, p.minutes, p.loss) for p in curves.train] == [
        (10, 1000, 1, 9.0),
        (20, 2000, 2, 8.0),
        (30, 3000, 4, 7.5),
        (40, 4000, 5, 6.5),
    ]
    assert [(p.update, p.tokens, p.loss, p.rate) for p in curves.valid] == [
        (20, 2000, 8.5, None),
        (40, 4000, 6.6, None),
    ]
    assert (curves.updates, curves.last_loss) == (40, 6.6)


def test_the_axis_holds_a_short_run_and_no_rate_of_a_cycle_that_never_began():
    long = losses.read_curves([inner(n, 12 - n / 200, n) for n in range(20, 1001, 20)], "long")
    short = losses.read_curves([inner(2, 13.0, 1.0), inner(4, 12.0, 2.0, lr=1.0)], "short")
    figure = Figure()
    axes = figure.subplots()
    losses._crop(axes, [long.train, short.train], "updates", "loss")
    low, high = axes.get_ylim()
    assert low < 7
    assert high > 13
    assert [point.rate for point in short.train] == [0.001, None]


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        ("work/toy/b", [("b", "1")]),
        ("work/toy/a", [("a", "1"), ("a", "2")]),
        ("work/toy/a/seed2", [("a", "2")]),
        ("work/toy/a/seed2/checkpoints", [("a", "2")]),
        ("work/toy/a/seed2/checkpoints/train.log", [("a", "2")]),
        ("work/toy", [("a", "1"), ("a", "2"), ("b", "1")]),
        ("elsewhere", [("elsewhere", "")]),
        ("fairseq.log", [("fairseq", "")]),
    ],
)
def test_a_run_is_named_by_its_configuration_and_seed(path, runs, tmp_path):
    for name, seed in (("a", 1), ("a", 2), ("b", 1)):
        training(tmp_path / "work", name, seed)
    log(tmp_path / "elsewhere", inner(1, 9.0, 1.0)).with_name("copy").write_text("not a log")
    (tmp_path / "fairseq.log").write_text(inner(1, 9.0, 1.0))
    assert [(run.name, run.seed) for run in losses.read_runs([tmp_path / path])] == runs


def test_the_picture_of_losses_names_each_configuration_once(tmp_path, capsys):
    for name in ("light", "dynamic"):
        for seed in (1, 2):
            training(tmp_path, name, seed, offset=0.5 if name == "light" else 0.0)
    out, table = tmp_path / "out" / "losses.svg", tmp_path / "losses.csv"
    main(["losses", str(tmp_path / "toy"), "--out", str(out), "--by", "minutes", "--csv", str(table)])
    written = texts(out)
    # the legend has the order of the curves
    assert [text for text in written if "seeds" in text] == ["light (2 seeds)", "dynamic (2 seeds)"]
    assert {"training", "validation", "minutes", "learning rate (10⁻³)", "loss (bits per token)"} <= {*written}
    assert "dynamic, seed 2: 100 updates, the last validation loss 5.200" in capsys.readouterr().out
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 4 * 12
    assert rows[0] | {"perplexity": ""} == {
        **{"run": "dynamic", "seed": "1", "split": "train", "update": "10", "tokens": "1000", "minutes": "1"},
        **{"loss": "9.5", "perplexity": "", "learning_rate": "0.001"},
    }
    assert [row["learning_rate"] for row in rows if row["split"] == "valid"] == [""] * 8
    assert "prefers-color-scheme:dark" in out.read_text()
    main(["losses", str(tmp_path / "toy"), "--out", str(tmp_path / "losses.PNG")])
    assert (tmp_path / "losses.PNG").read_bytes().startswith(b"\x89PNG")


def test_twenty_runs_with_long_names_make_a_small_file(tmp_path):
    names = [f"a_configuration_with_a_long_name_{number}_{'x' * number * 5}" for number in range(20)]
    for number, name in enumerate(names):
        training(tmp_path, name, offset=number / 10)
    training(tmp_path, CHINESE)
    out = tmp_path / "many.svg"
    main(["losses", *(str(tmp_path / "toy" / name) for name in [*names, CHINESE]), "--out", str(out)])
    assert out.stat().st_size < 200_000
    written = texts(out)
    assert CHINESE in written
    assert "training" not in written
    assert all(len(text) <= 60 for text in written)
    assert names[0] in written


def test_a_training_that_has_no_validation_or_diverges_is_drawn(tmp_path):
    log(tmp_path / "new", inner(5, 9.0, 1.0))
    log(tmp_path / "wild", inner(5, 9.0, 1.0), valid(5, math.nan), inner(10, math.inf, 2.0))
    for name in ("new", "wild"):
        main(["losses", str(tmp_path / name), "--out", str(tmp_path / f"{name}.svg")])
        assert name in texts(tmp_path / f"{name}.svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["losses", "nowhere"], "nowhere has no train.log; give a run's folder"),
        (["losses", "empty"], "empty/train.log has no losses yet"),
        (["scores", "empty"], "cannot read .*record.json"),
        (["kernels", "nowhere"], "there is no nowhere"),
    ],
)
def test_the_error_names_what_cannot_be_drawn(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log(tmp_path / "empty")
    with pytest.raises(UserError, match=message):
        main(words)


def test_the_help_names_the_pictures(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "95% intervals" in " ".join(capsys.readouterr().out.split())


def test_another_format_is_refused_before_the_work(capsys):
    with pytest.raises(SystemExit):
        main(["losses", "nowhere", "--out", "picture.jpg"])
    assert "has the suffix '.jpg'; expected .svg, .png, .pdf" in capsys.readouterr().err


def test_letters_that_no_font_has_are_named(tmp_path, monkeypatch, capsys):
    """An SVG is drawn with the reader's fonts, so only the PNG needs a font."""
    manager = figure.font_manager.fontManager
    monkeypatch.setattr(manager, "ttflist", [entry for entry in manager.ttflist if entry.name == figure.FONT])
    for suffix in (".svg", ".png"):
        with figure.drawing(tmp_path / f"a{suffix}", height=1.0, texts=[CHINESE]) as drawn:
            drawn.text(0.5, 0.5, CHINESE)
    error = capsys.readouterr().err
    assert error.count("no font of this machine has") == 1
    assert "fonts-noto-cjk" in error
    assert texts(tmp_path / "a.svg") == [CHINESE]


# kernels and attention

SMALL = """--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --attention-dropout 0
    --encoder-attention-heads 4 --decoder-attention-heads 4 --encoder-kernel-size-list [3,5]
    --decoder-kernel-size-list [3,5]"""
MODELS = {
    "dynamic": ("translation", f"--arch pla_dynamicconv_small {SMALL}"),
    "light": ("translation", f"--arch pla_lightconv_small {SMALL}"),
    "mixed": ("translation", f"--arch pla_lightconv_small {SMALL} --decoder-conv-type dynamic --weight-softmax 0"),
    "attention": ("translation", f"--arch pla_attention_iwslt_de_en {SMALL} --encoder-glu 0"),
    "language": (
        "language_modeling",
        "--arch pla_dynamicconv_lm_small --adaptive-input-cutoff 5,9 --adaptive-softmax-cutoff 5,9 "
        "--decoder-layers 2 --decoder-kernel-size-list [3,7]",
    ),
}
LINE = "eine kleine Katze"


@pytest.fixture(scope="module")
def words() -> Dictionary:
    made = Dictionary()
    for word in [*LINE.split(), "a", "small", "cat", "sits", "on", "the", "mat"]:
        made.add_symbol(word)
    return made


@pytest.fixture
def trained(request, words, tmp_path, monkeypatch) -> Trained:
    """A model with random weights, in the files of a run."""
    load_plugin()
    task, flags = MODELS[request.param]
    pair = ["--source-lang", "de", "--target-lang", "en"] if task == "translation" else []
    cfg = convert_namespace_to_omegaconf(training_arguments(["--task", task, *pair, *flags.split()]))
    torch.manual_seed(1)
    built_task = TASK_REGISTRY[task](cfg.task, words, *([words] if pair else []))
    model = built_task.build_model(cfg.model)
    history = [{"criterion_name": "C", "optimizer_name": "O", "lr_scheduler_state": {}, "num_updates": 1}]
    settings = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    state = {"args": None, "cfg": settings, "model": model.state_dict(), "optimizer_history": history}
    torch.save(
        state | {"extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}, tmp_path / "m.pt"
    )
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt"):
        words.save(str(tmp_path / name))
    monkeypatch.setattr(dataset, "FOLDER", tmp_path)
    target = "target: en\n" if pair else ""
    (tmp_path / "toy.yaml").write_text(f"kind: text\nsource: de\n{target}steps: [normalise_space]\n")
    generate = {"beam": 2, "max-len-a": 0, "max-len-b": 4, "min-len": 4}
    return Trained(tmp_path / "m.pt", tmp_path, "toy", (tmp_path,), generate, {})


@pytest.mark.parametrize(
    ("trained", "shapes", "labels"),
    [
        # per layer: the first and last offset, and (T, H, K); the encoder reads four subwords, the decoder five.
        # A subword of the source labels two matrices of attention, and dynamic kernels of the encoder
        ("dynamic", [(-1, 1, (4, 4, 3)), (-2, 2, (4, 4, 5)), (-2, 0, (5, 4, 3)), (-4, 0, (5, 4, 5))], 3),
        ("mixed", [(-1, 1, (4, 3)), (-2, 2, (4, 5)), (-2, 0, (5, 4, 3)), (-4, 0, (5, 4, 5))], 2),
        ("attention", [], 2),
        ("language", [(-2, 0, (4, 4, 3)), (-6, 0, (4, 4, 7))], 1),
    ],
    indirect=["trained"],
)
def test_kernels_and_attention_of_a_line(trained, shapes, labels, tmp_path):
    translates = labels > 1
    read_by_model = read(trained, f"  {LINE} ", attention=translates)
    layers = read_by_model.layers
    assert [(layer.offsets[0], layer.offsets[-1], layer.kernels.shape) for layer in layers] == shapes
    assert [layer.number for layer in layers] == [1, 2] * (len(shapes) // 2)
    if translates:
        assert read_by_model.source == [*LINE.split(), "</s>"]
        assert read_by_model.inputs == ["</s>", *read_by_model.outputs[:-1]]
        assert [weights.shape for weights in read_by_model.attention] == [(5, 4)] * 2
        assert all(np.allclose(weights.sum(axis=1), 1, atol=1e-5) for weights in read_by_model.attention)
    else:
        assert read_by_model.inputs == ["</s>", *LINE.split()]
    kernels.draw(tmp_path / "kernels.svg", read_by_model)
    written = texts(tmp_path / "kernels.svg")
    assert written.count("Katze") >= labels
    assert ("head 4" in written) == any("kernels" in text for text in written) == bool(shapes)


@pytest.mark.parametrize("trained", ["light"], indirect=True)
def test_kernels_of_lightconv_need_no_line(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_sample", None)
    static = read(trained, None, attention=False)
    assert [layer.kernels.shape for layer in static.layers] == [(4, 3), (4, 5), (4, 3), (4, 5)]
    state = torch.load(trained.model)["model"]
    expected = state["decoder.layers.1.mixer.conv.weight"].softmax(dim=-1)
    assert np.allclose(static.layers[3].kernels, expected)
    entropy = -(expected * expected.log2()).sum(dim=-1)
    assert static.layers[3].entropies() == pytest.approx(entropy.tolist(), rel=1e-5)
    kernels.draw(tmp_path / "kernels.svg", static)
    written = texts(tmp_path / "kernels.svg")
    assert {"−1", "1", "−4", "encoder 2:  K = 5", f"{entropy[0]:.2f}"} <= {*written}


@pytest.mark.parametrize("trained", ["dynamic", "language"], indirect=True)
def test_without_a_line_the_model_reads_one_of_the_test_set(trained, tmp_path):
    with pytest.raises(UserError, match=r"no prepared test\.de beside .* give one with --text"):
        read(trained, None, attention=False)
    (tmp_path / "test.de").write_text("Katze\n" + " ".join(["eine"] * 7) + "\n")
    sample = read(trained, None, attention=False)
    assert [*sample.source, *sample.inputs].count("eine") >= 7


@pytest.mark.parametrize(
    ("trained", "text", "attention", "message"),
    [
        ("attention", LINE, False, "neither LightConv nor DynamicConv; add --attention"),
        ("language", LINE, True, "is a language model, which has no source"),
        ("dynamic", "", False, "the line has 0 subwords; expected 1 to 80"),
        ("dynamic", "Katze " * 81, False, "the line has 81 subwords"),
    ],
    indirect=["trained"],
)
def test_a_picture_that_a_model_does_not_have_is_refused(trained, text, attention, message):
    with pytest.raises(UserError, match=message):
        read(trained, text, attention=attention)


def test_the_command_prints_the_source_and_the_translation(tmp_path, monkeypatch, capsys):
    layer = Layer("encoder", 1, range(-1, 2), np.full((2, 4, 3), 1 / 3))
    read_by_model = Reading([layer], ["a", CHINESE], ["</s>", "b"], ["b", "</s>"])
    monkeypatch.setattr(reading, "read", lambda trained, text, attention: read_by_model)
    monkeypatch.setattr("scripts.translate.find_trained", lambda *path, **options: None)
    main(["kernels", "run", "--text", "a line", "--out", str(tmp_path / "k.png")])
    assert capsys.readouterr().out.startswith(f"reads: a {CHINESE}\nwrites: b </s>\n")


@pytest.mark.parametrize("signed", [False, True])
def test_kernels_of_a_large_model_make_a_small_file(signed, tmp_path):
    """Kernels with negative weights are no distribution and have no entropy."""
    random = np.random.default_rng(1)
    drawn = random.standard_normal((30, 4, 31)) if signed else random.dirichlet(np.ones(31), (30, 4))
    layers = [Layer(side, n, range(-15, 16), drawn) for side in ("encoder", "decoder") for n in (1, 2, 3)]
    line = [f"unit{number}" * 9 for number in range(30)]
    kernels.draw(tmp_path / "kernels.svg", Reading(layers, line, line))
    assert (tmp_path / "kernels.svg").stat().st_size < 200_000
    assert all(entropy is None for entropy in layers[0].entropies()) == signed
    assert max(map(len, texts(tmp_path / "kernels.svg"))) < 60


# scores


def scored(name: str, data: str, spoilt: int, seeds: int = 2, **over: Any) -> dict[str, Any]:
    """Return a record whose hypotheses have ``spoilt`` plus the seed wrong lines of forty."""
    metric = measures({"metric": "bleu"}, "de")["sacrebleu"].metric
    references = [f"Satz {number} sagt, dass Katze {number} auf einer Matte sitzt." for number in range(40)]
    made = record(name, data, **over)
    for seed in range(1, seeds + 1):
        wrong = spoilt + seed
        lines = [*(line.replace("dass", "das") for line in references[:wrong]), *references[wrong:]]
        score = metric.corpus_score(lines, [references]).score
        test = {"sacrebleu": score, "bleu": score - 60, "lines": "; ".join(counts(metric, lines, references))}
        made["seeds"][str(seed)] = {"training": {"seconds": 60.0}, "valid": {}, "test": test}
    return made


def test_scores_are_compared_with_the_papers_the_best_first(tmp_path):
    by_length = [
        {"from": length, "lines": 9, "sentences_per_second": {"mean": 99 / length, "std": None, "n": 1}}
        for length in (9, 50)
    ]
    fast = speed(50.0, 1.25) | {"by_length": by_length, "baseline": {"model": "transformer", "by_length": by_length}}
    paths = [
        write(tmp_path, scored("lightconv", "iwslt14_de_en_2018", 9)),
        write(tmp_path, scored("dynamicconv", "iwslt14_de_en_2018", 2, speed=fast)).parent,
        write(tmp_path, scored("mine", "iwslt14_de_en_2018", 30, seeds=1)),
        write(tmp_path, record("lm", "debian_lm", metric="perplexity", test={"perplexity": [93.0, 94.0]})),
    ]
    out = tmp_path / "scores.svg"
    main(["scores", *map(str, paths), "--out", str(out)])
    written = texts(out)
    assert [text for text in written if text in ("dynamicconv", "lightconv", "mine")] == [
        *(["dynamicconv", "lightconv", "mine"] * 2),
        "dynamicconv",  # in the legend of the speed
    ]
    assert {"sacreBLEU on iwslt14_de_en_2018", "BLEU (tokenised) on iwslt14_de_en_2018", "the paper's"} <= {*written}
    assert "perplexity on debian_lm (lower is better)" in written
    assert {"each seed", "transformer", "shortest source line of the batch, in subwords"} <= {*written}
    assert sum("[" in text for text in written) == 4  # intervals: tokenised BLEU has no counts per line


def test_records_without_scores_are_refused_and_those_of_one_name_are_labelled_by_path(tmp_path):
    with pytest.raises(UserError, match="none of these runs has test scores"):
        main(["scores", str(write(tmp_path, record("m"))), "--out", str(tmp_path / "s.svg")])
    paths = [write(tmp_path / work, scored("m", "debian_en_de", 1)) for work in ("a", "b")]
    main(["scores", str(paths[0].parent), str(paths[1].parents[1]), "--out", str(tmp_path / "s.svg")])
    assert sum("…" in text or "record.json" in text for text in texts(tmp_path / "s.svg")) == 2
