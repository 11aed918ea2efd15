"""Stand-ins for the Chinese-English models that the paper's authors published, on a local server.

Each archive is made with a small model of fairseq's own class, trained for some seconds and saved as one of fairseq's
versions saved it. The test set comes in archives with the names, members and tags of the real ones. The BLEU of
fairseq's own model and search on that test set stands for the paper's score. In a damaged model, one layer's kernels
are reversed.
"""

import random
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_generator import SequenceGenerator
from sacrebleu.metrics.bleu import BLEU
from sacremoses import MosesDetokenizer
from subword_nmt.learn_bpe import get_vocabulary

from data_prep.dataset import FOLDER, Dataset, load_dataset
from data_prep.lines import line_steps
from data_prep.text.bpe import learn_from_counts
from scripts.pretrained import FILE, Published, read_published
from tests.convert import common
from tests.data_prep.corpora import packed
from tests.data_prep.web import Site, serving

TEST_LINES, TRAINING_LINES, UPDATES = 20, 400, 150
# a word in each language; some with a hyphen or an ampersand, for escapes
WORDS = [
    ("中国", "the"),
    ("市场", "market"),
    ("城市", "city-centre"),
    ("房子", "house"),
    ("水", "water"),
    ("人民", "people"),
    ("和", "&"),
    ("今天", "today"),
    ("政府", "self-government"),
    ("经济", "economy"),
    ("世界", "world"),
    ("说", "says"),
]
SIZES = {f"{side}_{name}": 32 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")}


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Return pairs of lines as people write them, translated word by word."""
    draw = random.Random(seed)
    sequences = [draw.choices(WORDS, k=draw.randint(3, 8)) for _ in range(count)]
    return [("".join(zh for zh, _ in words) + " .", " ".join(en for _, en in words) + " .") for words in sequences]


def segments(lines: Sequence[str]) -> bytes:
    """Return lines as segments, which SGM and IWSLT's XML have alike."""
    marked = [f'<seg id="{number}"> {line.replace("&", "&amp;")} </seg>' for number, line in enumerate(lines, 1)]
    return "\n".join(["<doc>", *marked, "</doc>", ""]).encode()


@dataclass(frozen=True)
class SmallSet:
    """The text of both languages, raw and in subwords, with BPE codes and dictionaries."""

    dataset: Dataset
    test: list[tuple[str, str]]
    units: list[tuple[str, str]]
    """The test set, then the training text, in subwords."""
    files: dict[str, bytes]
    dictionaries: tuple[Dictionary, Dictionary]


def make_test_set(name: str, folder: Path) -> SmallSet:
    """Make the text of a dataset, each side segmented by BPE codes that are learnt on it."""
    dataset = load_dataset(name)
    test = sentences(TEST_LINES, seed=1)
    pairs = test + sentences(TRAINING_LINES, seed=2)
    codes, units, dictionaries = folder / "codes", list[list[str]](), (Dictionary(), Dictionary())
    files = dict[str, bytes]()
    for side, language in enumerate(dataset.languages):
        lines = [pair[side].replace("&", "&amp;") for pair in pairs]
        codes.write_text(
            "#version: 0.2\nq q</w>\n"
        )  # no merge applies: words are split into characters, and joined again
        cut = line_steps(dataset, language, codes)
        words = get_vocabulary([_words(cut(line)) for line in lines])
        codes.write_text(learn_from_counts(words.items(), merges=70))
        files[f"{language}.code"] = codes.read_bytes()
        cut = line_steps(dataset, language, codes)
        units.append([cut(line) for line in lines])
        for unit in " ".join(units[side]).split():
            dictionaries[side].add_symbol(unit)
        dictionaries[side].finalize(padding_factor=8)
        dictionaries[side].save(str(codes))
        files[f"dict.{language}.txt"] = codes.read_bytes()
    files["bpecodes"] = files["en.code"]  # the source must not be segmented by it
    codes.unlink()
    return SmallSet(dataset, test, list(zip(*units, strict=True)), files, dictionaries)


def _words(units: str) -> str:
    return units.replace("@@ ", "")


def train(model: Any, test_set: SmallSet) -> None:
    """Train so long that a wrong conversion changes BLEU by tens."""
    lines = [
        [dictionary.encode_line(pair[side], add_if_not_exist=False).long() for pair in test_set.units[TEST_LINES:]]
        for side, dictionary in enumerate(test_set.dictionaries)
    ]
    draw, pairs = random.Random(1), list(zip(*lines, strict=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    model.train()
    for _ in range(UPDATES):
        sources, targets = zip(*draw.sample(pairs, 32), strict=True)
        lengths = torch.tensor([*map(len, sources)])
        beginnings = collate_tokens([line.roll(1) for line in targets], 1)
        logits = model(collate_tokens(sources, 1, left_pad=True), lengths, beginnings)[0]
        expected = collate_tokens(targets, 1)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten(), ignore_index=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def figure(model: Any, test_set: SmallSet, published: Published) -> float:
    """Return the BLEU of fairseq's own model and search on the test set, measured as in section 5.2."""
    target = test_set.dictionaries[1]
    beam, lenpen = published.generate["beam"], published.generate["lenpen"]
    search = SequenceGenerator([model], target, beam_size=beam, len_penalty=lenpen, max_len_b=200)
    translations = []
    for source, _ in test_set.units[:TEST_LINES]:
        ids = test_set.dictionaries[0].encode_line(source, add_if_not_exist=False).long()[None]
        sample = {"src_tokens": ids, "src_lengths": torch.tensor([ids.shape[1]])}
        translations.append(_words(target.string(search.generate([model], {"net_input": sample})[0][0]["tokens"])))
    moses, raw = MosesDetokenizer(lang="en"), [pair[1].replace("&", "&amp;") for pair in test_set.test]
    return float(BLEU().corpus_score([moses.detokenize(line.split()) for line in translations], [raw]).score)


def make_model(published: Published, test_set: SmallSet) -> tuple[Any, Namespace]:
    """Train a model of fairseq's own class, of the kind that the published model's name states."""
    task = Namespace(source_dictionary=test_set.dictionaries[0], target_dictionary=test_set.dictionaries[1])
    kind = "dynamic" if published.name.startswith("dynamicconv") else "lightweight"
    options: dict[str, Any] = {f"{side}_conv_type": kind for side in ("encoder", "decoder")}
    # a GLU in the encoder alone, which gives LightConv the paper's number of parameters
    options |= {"encoder_glu": ".glu." in published.name, "decoder_glu": False, "share_all_embeddings": False, **SIZES}
    options |= {"weight_softmax": True, "dropout": 0.0, "attention_dropout": 0.0, "weight_dropout": 0.0}
    options |= {"source_lang": test_set.dataset.source, "target_lang": test_set.dataset.target}
    model, args = common.theirs(task, "lightconv_wmt_zh_en_big", **{**common.TINY, **options})
    train(model, test_set)
    return model, args


def archive(published: Published, model: Any, args: Namespace, test_set: SmallSet, damaged: bool, at: Path) -> bytes:
    """Return a .tar.gz: a folder with the model as an old version of fairseq saved it, dictionaries and codes."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if damaged:
        name = next(name for name in state if re.search(r"decoder.*conv\.weight$", name))
        state[name] = state[name].flip(-1)
    state = common.early_names(state, shared=False, ancient=not damaged)
    content = common.save(at, state, args, settings="args", zipped=False).read_bytes()
    at.unlink()
    folder, files = published.archive.removesuffix(".tar.gz"), {"model.pt": content, **test_set.files}
    return packed(published.archive, {f"{folder}/{name}": content for name, content in files.items()})


def dataset_file(test_set: SmallSet, site: Site, file: Path) -> None:
    """Serve the archives of a test set, and write the dataset with their addresses in place of the real ones."""
    content = yaml.safe_load((FOLDER / f"{test_set.dataset.name}.yaml").read_text())
    (source,) = (member_source for source in test_set.dataset.splits["test"] for member_source in source.expand())
    sides = zip(test_set.dataset.languages, zip(*test_set.test, strict=True), strict=True)
    served = packed(source.file, {source.members[language]: segments(lines) for language, lines in sides})
    content["files"][source.file] = {"urls": [site.add(f"/{source.file}", served)]}
    for expected in content["expected"]:
        expected["lines"] |= {"test": TEST_LINES} if "test" in expected["lines"] else {}
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def small_config(model: Published, folder: Path) -> Path:
    """Write the model's configuration with the stand-in's size; return its path."""
    flags = {name.replace("_", "-"): str(value) for name, value in {**common.TINY, **SIZES}.items()}
    flags |= {f"{side}-conv-dim": "32" for side in ("encoder", "decoder")}
    path = folder / f"{model.config.parent.name}-{model.config.name}"
    path.write_text(yaml.safe_dump({"base": str(model.config.resolve()), "train": flags}))
    return path


@contextmanager
def published(folder: Path, names: Sequence[str], damaged: str) -> Iterator[Path]:
    """Serve the models ``names``; yield the path of their table."""
    models, folder = read_published(), folder.resolve()
    chosen = [models[name] for name in names]
    content = yaml.safe_load(FILE.read_text())
    content["models"] = {model.name: content["models"][model.name] for model in chosen}
    test_set = make_test_set(chosen[0].dataset, folder)
    with serving() as site:
        content["url"] = f"{site.url}/models/"
        for chosen_model in chosen:
            model, args = make_model(chosen_model, test_set)
            content["models"][chosen_model.name]["config"] = str(small_config(chosen_model, folder))
            content["models"][chosen_model.name]["figure"] = round(figure(model, test_set, chosen_model), 2)
            served = archive(chosen_model, model, args, test_set, chosen_model.name == damaged, folder / "model.pt")
            site.add(f"/models/{chosen_model.archive}", served)
        file = folder / f"{test_set.dataset.name}_small.yaml"
        dataset_file(test_set, site, file)
        content["test_sets"][chosen[0].of]["dataset"] = str(file)
        table = folder / "published.yaml"
        table.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        yield table
