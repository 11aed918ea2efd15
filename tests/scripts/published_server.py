"""Stand-ins for the models that the paper's authors published, on a server of this machine.

Each archive is made with a small model of fairseq's own class, trained for some seconds. Its test set comes in archives
of the true names, members and tags. The BLEU of fairseq's own model and search stands for the paper's figure.
"""

import random
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from sacrebleu.metrics.bleu import BLEU
from subword_nmt.learn_bpe import get_vocabulary

from data_prep.dataset import FOLDER, Dataset, load_dataset
from data_prep.lines import line_steps
from data_prep.text.bpe import learn_from_counts
from scripts.pretrained import FILE, Published, choose, read_published
from tests.convert import common
from tests.data_prep.corpora import packed
from tests.data_prep.web import Site, serving

TEST_LINES, TRAINING_LINES, UPDATES = 40, 400, 150
# a word in each language; some with a hyphen or an ampersand, for compounds and escapes
WORDS = {
    "en": "the market city house water people & today government economy world says",
    "de": "der Markt Stadt-Mitte Haus Wasser Leute & heute Landes-Regierung Wirtschaft Welt sagt",
}
CODES = {"iwslt14.de-en": "code", "wmt16.en-de": "bpecodes"}


def sentences(languages: Sequence[str], count: int, seed: int) -> list[tuple[str, ...]]:
    """Pairs of lines as people write them, a word for a word."""
    draw = random.Random(seed)
    lines = [draw.choices(range(12), k=draw.randint(3, 8)) for _ in range(count)]
    return [
        tuple(" ".join([*(WORDS[each].split()[word] for word in line), "."]) for each in languages) for line in lines
    ]


def segments(lines: Sequence[str]) -> bytes:
    """Lines as SGM and IWSLT's XML have them."""
    marked = [f'<seg id="{number}"> {line.replace("&", "&amp;")} </seg>' for number, line in enumerate(lines, 1)]
    return "\n".join(["<doc>", *marked, "</doc>", ""]).encode()


@dataclass(frozen=True)
class SmallSet:
    """The text of a pair of languages, raw and in units, with codes and dictionaries."""

    dataset: Dataset
    test: list[tuple[str, ...]]
    units: list[tuple[str, ...]]
    """Of the test set, then of the training text."""
    files: dict[str, bytes]
    dictionaries: list[Dictionary]


def make_test_set(of: str, name: str, folder: Path) -> SmallSet:
    """Make the text of a dataset, cut by joint codes that are learnt on it."""
    dataset = load_dataset(name)
    test = sentences(dataset.languages, TEST_LINES, seed=1)
    pairs = test + sentences(dataset.languages, TRAINING_LINES, seed=2)
    codes = folder / f"{of}.codes"

    def cut(merges: str) -> list[list[str]]:
        codes.write_text(merges)
        steps = [line_steps(dataset, language, codes) for language in dataset.languages]
        return [[step(pair[side].replace("&", "&amp;")) for pair in pairs] for side, step in enumerate(steps)]

    # no merge: the characters of words, from which the words come back
    words = [_words(line) for lines in cut("#version: 0.2\nq q</w>\n") for line in lines]
    learnt = learn_from_counts(get_vocabulary(words).items(), merges=70)
    units, files, dictionaries = cut(learnt), {CODES[of]: learnt.encode()}, []
    for lines, language in zip(units, dataset.languages, strict=True):
        dictionaries.append(Dictionary())
        for line in [*units[0], *units[1]] if dataset.binarise.joined_dictionary else lines:
            for unit in line.split():
                dictionaries[-1].add_symbol(unit)
        dictionaries[-1].finalize(padding_factor=8)
        dictionaries[-1].save(str(codes))
        files[f"dict.{language}.txt"] = codes.read_bytes()
    codes.unlink()
    return SmallSet(dataset, test, list(zip(*units, strict=True)), files, dictionaries)


def _words(units: str) -> str:
    return units.replace("@@ ", "")


def padded(lines: Sequence[Sequence[int]], *, left: bool) -> torch.Tensor:
    """Ids as a tensor (B, T), padded with 1."""
    pads = [[1] * (max(map(len, lines)) - len(line)) for line in lines]
    return torch.tensor([[*pad, *line] if left else [*line, *pad] for pad, line in zip(pads, lines, strict=True)])


def train(model: Any, test_set: SmallSet) -> None:
    """Train a little: a wrong conversion changes BLEU by tens."""
    ids = [
        [dictionary.encode_line(pair[side], add_if_not_exist=False).tolist() for pair in test_set.units[TEST_LINES:]]
        for side, dictionary in enumerate(test_set.dictionaries)
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    model.train()
    draw = random.Random(0)
    for _ in range(UPDATES):
        chosen = draw.sample(range(TRAINING_LINES), 32)
        sources, targets = ([side[n] for n in chosen] for side in ids)
        beginnings = padded([[2, *line[:-1]] for line in targets], left=False)
        logits = model(padded(sources, left=True), torch.tensor([*map(len, sources)]), beginnings)[0].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, padded(targets, left=False).flatten(), ignore_index=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def figure(model: Any, test_set: SmallSet, published: Published) -> float:
    """The tokenised BLEU of fairseq's own model and search on the test set."""
    source, target = test_set.dictionaries
    beam, lenpen = published.generate["beam"], published.generate["lenpen"]
    search = SequenceGenerator([model], target, beam_size=beam, len_penalty=lenpen, max_len_b=200)
    found = []
    for line, _ in test_set.units[:TEST_LINES]:
        ids = source.encode_line(line, add_if_not_exist=False).long()[None]
        sample = {"src_tokens": ids, "src_lengths": torch.tensor([ids.shape[1]])}
        found.append(_words(target.string(search.generate([model], {"net_input": sample})[0][0]["tokens"])))
    references = [_words(pair[1]) for pair in test_set.units[:TEST_LINES]]
    return float(BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(found, [references]).score)


def make_model(published: Published, test_set: SmallSet) -> tuple[Any, Namespace]:
    """Make a model of fairseq's own class as the name says it is."""
    source, target = test_set.dictionaries
    task = Namespace(source_dictionary=source, target_dictionary=target)
    arch = {"de-en": "lightconv_iwslt_de_en", "en-de": "lightconv_wmt_en_de_big"}[published.of[-5:]]
    options: dict[str, Any] = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in {"conv_type": published.conv_type, "glu": published.glu, "embed_dim": 32}.items()
    }
    options |= {"share_all_embeddings": test_set.dataset.binarise.joined_dictionary, "dropout": 0.0}
    options |= {"weight_softmax": True, "attention_dropout": 0.0, "weight_dropout": 0.0}
    options |= {"source_lang": test_set.dataset.source, "target_lang": test_set.dataset.target}
    return common.theirs(task, arch, **common.TINY | options)


def archive(published: Published, model: Any, args: Namespace, test_set: SmallSet, how: str, at: Path) -> bytes:
    """The .tar.gz: a folder with the model as fairseq saved it until 2020, dictionaries and codes."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if how == "weights":
        name = next(name for name in state if re.search(r"decoder.*conv\.(weight|weight_linear\.weight)$", name))
        state[name] = state[name].flip(-1 if "linear" not in name else 0)
    files = dict(test_set.files)
    if how == "dictionary":
        name = f"dict.{test_set.dataset.target}.txt"
        files[name] = b"".join(files[name].splitlines(keepends=True)[:-1])
    state = common.early_names(state, shared=test_set.dataset.binarise.joined_dictionary)
    files["model.pt"] = common.save(at, state, args).read_bytes()
    at.unlink()
    folder = published.archive.removesuffix(".tar.gz")
    return packed(published.archive, {f"{folder}/{name}": content for name, content in files.items()})


def dataset_file(test_set: SmallSet, site: Site, file: Path, *, lines: int) -> None:
    """Serve the archives of a test set, and write the dataset with their addresses in place of the true ones."""
    content = yaml.safe_load((FOLDER / f"{test_set.dataset.name}.yaml").read_text())
    sources = [one for source in test_set.dataset.splits["test"] for one in source.each()]
    share = -(-TEST_LINES // len(sources))
    members: dict[str, dict[str, bytes]] = {}
    for place, source in enumerate(sources):
        pairs = test_set.test[:lines][place * share : (place + 1) * share]
        for side, language in enumerate(test_set.dataset.languages):
            members.setdefault(source.file, {})[source.members[language]] = segments([pair[side] for pair in pairs])
    for name, files in members.items():
        content["files"][name] = {"urls": [site.add(f"/{test_set.dataset.name}/{name}", packed(name, files))]}
    for expected in content["expected"]:
        expected["lines"] |= {"test": TEST_LINES} if "test" in expected["lines"] else {}
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


@contextmanager
def published(folder: Path, damage: Mapping[str, str], *, trained: bool = True) -> Iterator[Path]:
    """Serve some models, each damaged in some way or, with "", not at all; yields their table.

    The ways: ``weights`` (one layer's kernels are turned round), ``model`` (another model's file), ``dictionary`` (a
    type less), or ``lines`` (the test set lacks one).
    """
    content = yaml.safe_load(FILE.read_text())
    known = read_published()
    chosen = [choose(known, name) for name in damage]
    content["models"] = {model.name: content["models"][model.name] for model in chosen}
    with serving() as site:
        content["url"] = f"{site.url}/models/"
        for each, how in zip(chosen, damage.values(), strict=True):
            test_set = make_test_set(each.of, each.dataset, folder)
            other = {"dynamic": "lightweight", "lightweight": "dynamic"}[each.conv_type]
            model, args = make_model(replace(each, conv_type=other) if how == "model" else each, test_set)
            content["models"][each.name]["config"] = str(each.config)
            if trained:
                train(model, test_set)
                content["models"][each.name]["figure"] = round(figure(model, test_set, each), 2)
            site.add(f"/models/{each.archive}", archive(each, model, args, test_set, how, folder / "model.pt"))
            name = f"{test_set.dataset.name}_small.yaml"
            dataset_file(test_set, site, folder / name, lines=TEST_LINES - (how == "lines"))
            content["test_sets"][each.of]["dataset"] = name
        table = folder / "published.yaml"
        table.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        yield table
