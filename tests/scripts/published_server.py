"""Stand-ins for the models that the paper's authors published, on a server of this machine, to try `pretrained score`.

    python -m tests.scripts.published_server DIR [NAME ...] [--damage NAME ...]

Each archive of configs/published.yaml (or of the models NAME) is made with a small model of fairseq's own class,
trained for some seconds and saved as one of fairseq's versions saved it. Its test set comes in archives of the true
names, members and tags. The BLEU of fairseq's own model and search on that test set stands for the paper's figure. The
command that scores them is printed. With a damaged model, in which one layer's kernels are turned round, it ends with
status 1 and names that model.
"""

import argparse
import random
import re
import time
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
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
from scripts.pretrained import FILE, Published, choose, each_archive, read_published
from tests.convert import common
from tests.data_prep.corpora import packed
from tests.data_prep.web import Site, serving

TEST_LINES, TRAINING_LINES, UPDATES = 40, 400, 150
# a word in each language of the five; some with a hyphen or an ampersand, for compounds and escapes
WORDS = [
    ("the", "der", "le", "中国"),
    ("market", "Markt", "marché", "市场"),
    ("city", "Stadt-Mitte", "ville", "城市"),
    ("house", "Haus", "maison", "房子"),
    ("water", "Wasser", "eau", "水"),
    ("people", "Leute", "gens", "人民"),
    ("and", "&", "&", "和"),
    ("today", "heute", "aujourd'hui", "今天"),
    ("government", "Landes-Regierung", "gouvernement", "政府"),
    ("economy", "Wirtschaft", "économie", "经济"),
    ("world", "Welt", "monde", "世界"),
    ("says", "sagt", "dit", "说"),
]
LANGUAGES = ("en", "de", "fr", "zh")
# of the source and the target as public programs name them; a file of each. Of the others: bpecodes, a guess.
# bpecodes beside zh.code and en.code holds one of these two: the source is not to be cut by it
CODES = {"iwslt14.de-en": ("code",), "wmt17.zh-en": ("zh.code", "en.code")}
SIZES = {f"{side}_{name}": 32 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")}
# names of parameters, settings, torch's new file format or not: until 2020 there was no cfg
FORMS = [("ancient", "args", False), ("early", "args", False), ("early", "args", True), ("late", "cfg", True)]


def sentences(source: str, target: str, count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of lines as people write them, a word for a word."""
    draw = random.Random(seed)
    sides = [LANGUAGES.index(language) for language in (source, target)]
    result = []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(3, 8))
        lines = [("" if side == 3 else " ").join(word[side] for word in words) for side in sides]
        result.append((f"{lines[0]} .", f"{lines[1]} ."))
    return result


def segments(lines: Sequence[str]) -> bytes:
    """Lines as SGM and IWSLT's XML have them."""
    marked = [f'<seg id="{number}"> {line.replace("&", "&amp;")} </seg>' for number, line in enumerate(lines, 1)]
    return "\n".join(["<doc>", *marked, "</doc>", ""]).encode()


@dataclass(frozen=True)
class SmallSet:
    """The text of a pair of languages, raw and in units, with codes and dictionaries."""

    dataset: Dataset
    test: list[tuple[str, str]]
    units: list[tuple[str, str]]
    """Of the test set, then of the training text."""
    files: dict[str, bytes]
    dictionaries: tuple[Dictionary, Dictionary]


def make_test_set(of: str, name: str, folder: Path) -> SmallSet:
    """Make the text of a dataset, cut by codes that are learnt on it."""
    dataset = load_dataset(name)
    source, target = dataset.languages
    test = sentences(source, target, TEST_LINES, seed=1)
    pairs = test + sentences(source, target, TRAINING_LINES, seed=2)
    texts = [[pair[side].replace("&", "&amp;") for pair in pairs] for side in (0, 1)]
    codes = folder / f"{of}.codes"
    codes.write_text("#version: 0.2\nq q</w>\n")  # no merge: the characters of words, from which the words come back
    tokens = [
        [_words(line_steps(dataset, dataset.languages[side], codes)(line)) for line in texts[side]] for side in (0, 1)
    ]
    joint = dataset.binarise.joined_dictionary or of.startswith("iwslt")
    counts = [get_vocabulary([*tokens[0], *tokens[1]] if joint else tokens[side]) for side in (0, 1)]
    learnt = [learn_from_counts(words.items(), merges=70) for words in counts]
    units = []
    for side in (0, 1):
        codes.write_text(learnt[side])
        step = line_steps(dataset, dataset.languages[side], codes)
        units.append([step(line) for line in texts[side]])
    dictionaries = [Dictionary(), Dictionary()]
    for side in (0, 1):
        for line in [*units[0], *units[1]] if dataset.binarise.joined_dictionary else units[side]:
            for unit in line.split():
                dictionaries[side].add_symbol(unit)
        dictionaries[side].finalize(padding_factor=8)
    files = {}
    for side, language in enumerate(dataset.languages):
        dictionaries[side].save(str(codes))
        files[f"dict.{language}.txt"] = codes.read_bytes()
    for content, file in zip(learnt, CODES.get(of, ("bpecodes",)), strict=False):
        files[file] = content.encode()
    if of == "wmt17.zh-en":
        files["bpecodes"] = learnt[1].encode()
    codes.unlink()
    return SmallSet(dataset, test, list(zip(*units, strict=True)), files, (dictionaries[0], dictionaries[1]))


def _words(units: str) -> str:
    return units.replace("@@ ", "")


def train(model: Any, test_set: SmallSet) -> None:
    """Train a little: a wrong conversion changes BLEU by tens."""
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
        wanted = collate_tokens(targets, 1)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def figure(model: Any, test_set: SmallSet, published: Published) -> float:
    """The BLEU of fairseq's own model and search on the test set, as section 5.2 measures it."""
    target = test_set.dictionaries[1]
    beam, lenpen = published.generate["beam"], published.generate["lenpen"]
    search = SequenceGenerator([model], target, beam_size=beam, len_penalty=lenpen, max_len_b=200)
    found = []
    for source, _ in test_set.units[:TEST_LINES]:
        ids = test_set.dictionaries[0].encode_line(source, add_if_not_exist=False).long()[None]
        sample = {"src_tokens": ids, "src_lengths": torch.tensor([ids.shape[1]])}
        found.append(_words(target.string(search.generate([model], {"net_input": sample})[0][0]["tokens"])))
    references = [_words(pair[1]) for pair in test_set.units[:TEST_LINES]]
    if published.measure == "sacrebleu":
        moses = MosesDetokenizer(lang=test_set.dataset.target)
        raw = [pair[1].replace("&", "&amp;") for pair in test_set.test]
        return float(BLEU().corpus_score([moses.detokenize(line.split()) for line in found], [raw]).score)
    if published.measure == "bleu_compounds":
        found, references = (
            [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", x) for x in side] for side in (found, references)
        )
    return float(BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(found, [references]).score)


def make_model(published: Published, test_set: SmallSet) -> tuple[Any, Namespace]:
    """Train a model of fairseq's own class as the name says it is."""
    task = Namespace(source_dictionary=test_set.dictionaries[0], target_dictionary=test_set.dictionaries[1])
    arch = {"de-en": "iwslt_de_en", "en-de": "wmt_en_de_big", "en-fr": "wmt_en_fr_big", "zh-en": "wmt_zh_en_big"}
    options: dict[str, Any] = {f"{side}_conv_type": published.conv_type for side in ("encoder", "decoder")}
    # of LightConv, as the paper counts its parameters, in the encoder alone
    options |= {
        "encoder_glu": published.glu,
        "decoder_glu": published.glu and published.conv_type == "dynamic",
        **SIZES,
    }
    options |= {"share_all_embeddings": test_set.dataset.binarise.joined_dictionary, "dropout": 0.0}
    options |= {"weight_softmax": True, "attention_dropout": 0.0, "weight_dropout": 0.0}
    options |= {"source_lang": test_set.dataset.source, "target_lang": test_set.dataset.target}
    model, args = common.theirs(task, f"lightconv_{arch[published.of[-5:]]}", **{**common.TINY, **options})
    train(model, test_set)
    return model, args


def archive(
    published: Published, model: Any, args: Namespace, test_set: SmallSet, form: int, damaged: bool, at: Path
) -> bytes:
    """The .tar.gz: a folder with the model as a version of fairseq saved it, dictionaries and codes."""
    layout, settings, zipped = FORMS[form % len(FORMS)]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if damaged:
        name = next(name for name in state if re.search(r"decoder.*conv\.(weight|weight_linear\.weight)$", name))
        state[name] = state[name].flip(-1 if "linear" not in name else 0)
    if layout != "late":
        shared = test_set.dataset.binarise.joined_dictionary
        state = common.early_names(state, shared=shared, ancient=layout == "ancient")
    content = common.save(at, state, args, settings=settings, zipped=zipped).read_bytes()
    at.unlink()
    folder, files = published.archive.removesuffix(".tar.gz"), {"model.pt": content, **test_set.files}
    return packed(published.archive, {f"{folder}/{name}": content for name, content in files.items()})


def dataset_file(test_set: SmallSet, site: Site, file: Path) -> None:
    """Serve the archives of a test set, and write the dataset with their addresses in place of the true ones."""
    content = yaml.safe_load((FOLDER / f"{test_set.dataset.name}.yaml").read_text())
    sources = [one for source in test_set.dataset.splits["test"] for one in source.each()]
    share = -(-TEST_LINES // len(sources))
    members: dict[str, dict[str, bytes]] = {}
    for place, source in enumerate(sources):
        pairs = test_set.test[place * share : (place + 1) * share]
        for side, language in enumerate(test_set.dataset.languages):
            members.setdefault(source.file, {})[source.members[language]] = segments([pair[side] for pair in pairs])
    for name, files in members.items():
        content["files"][name] = {"urls": [site.add(f"/{test_set.dataset.name}/{name}", packed(name, files))]}
    for expected in content["expected"]:
        expected["lines"] |= {"test": TEST_LINES} if "test" in expected["lines"] else {}
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def small_config(model: Published, folder: Path) -> Path:
    """A configuration as the model's, of the stand-in's size."""
    flags = {name.replace("_", "-"): str(value) for name, value in {**common.TINY, **SIZES}.items()}
    flags |= {f"{side}-conv-dim": "32" for side in ("encoder", "decoder")}
    path = folder / f"{model.config.parent.name}-{model.config.name}"
    path.write_text(yaml.safe_dump({"base": str(model.config.resolve()), "train": flags}))
    return path


@contextmanager
def published(folder: Path, names: Sequence[str] = (), damaged: Collection[str] = ()) -> Iterator[Path]:
    """Serve the models ``names`` (none: all); yields their table."""
    known, folder = read_published(), folder.resolve()
    chosen = [choose(known, name) for name in names] or each_archive(known)
    spoilt = [choose(known, name) for name in damaged]
    content = yaml.safe_load(FILE.read_text())
    content["models"] = {model.name: content["models"][model.name] for model in chosen}
    content["test_sets"] = {key: dict(value) for key, value in content["test_sets"].items()}
    datasets = {model.of: model.dataset for model in chosen}
    test_sets = {of: make_test_set(of, dataset, folder) for of, dataset in datasets.items()}
    with serving() as site:
        content["url"] = f"{site.url}/models/"
        for form, each in enumerate(chosen):
            test_set = test_sets[each.of]
            model, args = make_model(each, test_set)
            content["models"][each.name]["config"] = str(small_config(each, folder))
            content["models"][each.name]["figure"] = found = round(figure(model, test_set, each), 2)
            print(f"{each.name}: BLEU {found} by fairseq's own model", flush=True)
            at = folder / "model.pt"
            packed_model = archive(each, model, args, test_set, form, each in spoilt, at)
            site.add(f"/models/{each.archive}", packed_model)
        for end, test_set in test_sets.items():
            file = folder / f"{test_set.dataset.name}_small.yaml"
            dataset_file(test_set, site, file)
            content["test_sets"][end]["dataset"] = str(file)
        table = folder / "published.yaml"
        table.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        yield table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="for the table; an empty or a new folder")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="models, as `pretrained list` prints them (default: all)"
    )
    parser.add_argument("--damage", metavar="NAME", action="append", default=[], help="turn its kernels round")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # small models
    with published(arguments.folder, arguments.names, arguments.damage) as table:
        print(
            f"\nserving, until Ctrl-C; in another terminal:\n  python -m scripts.pretrained score all --models {table}",
            end="",
        )
        print(f" --out {arguments.folder / 'work'}", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
