"""Translate single lines with a trained model, as fairseq-generate translates a subset."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.common.errors import UserError
from scripts.config import flags
from scripts.fairseq_io.commands import FASTER_TASKS, PRECISION
from scripts.fairseq_io.inputs import user_dir
from scripts.fairseq_io.models import Command, load_plugin, parse
from scripts.fairseq_io.precision import VARIABLE

TASK = FASTER_TASKS["translation"]  # serves every translation model
# flags of generation that concern a subset on disk, or a precision that so little text does not need
_NOT_HERE = ("task", "gen-subset", "max-tokens", "batch-size", "required-batch-size-multiple", "fp16", "cpu", "nbest")


class Answer(NamedTuple):
    """A hypothesis: its tokens with BPE undone, and its score to base 2, as fairseq-generate prints it."""

    text: str
    score: float


class Translator:
    """A trained model, which is loaded once and then translates any number of lines.

    Args:
        model: a checkpoint.
        dictionaries: the folder of dict.<language>.txt.
        languages: source and target, as the dictionaries' names have them.
        generate: fairseq-generate's flags, without dashes.
        precision: the precision of matrix products on a CPU: fp32, bf16 or int8. The weights of the search are packed
            in it; all other products are in the precision of the Translator that was made last.

    Raises:
        UserError: a file is missing, or flags contradict each other.
    """

    def __init__(
        self,
        model: Path,
        dictionaries: Path,
        languages: tuple[str, str],
        generate: Mapping[str, Any],
        *,
        precision: str = "fp32",
    ) -> None:
        for path in (model, *(dictionaries / f"dict.{language}.txt" for language in languages)):
            if not path.is_file():
                raise UserError(f"there is no {path}; give a trained model, and its dictionaries with --dictionaries")
        os.environ[VARIABLE] = "fp32"  # this search ignores a value from the shell
        load_plugin()
        import torch
        from fairseq import checkpoint_utils, tasks, utils
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        from lightconv_plugin import ops

        ops.set_precision(precision)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        section = {key: value for key, value in generate.items() if key not in (*_NOT_HERE, PRECISION)}
        source, target = languages
        options = [f"--source-lang={source}", f"--target-lang={target}", f"--task={TASK}", f"--user-dir={user_dir()}"]
        arguments = [str(dictionaries.resolve()), f"--path={model.resolve()}", *options, *flags(section)]
        command = Command(model, ["fairseq_cli.generate", *arguments], {key: key for key in section})
        cfg = convert_namespace_to_omegaconf(parse(command))
        self._task = tasks.setup_task(cfg.task)
        self._models, _ = checkpoint_utils.load_model_ensemble([str(model)], task=self._task)
        for loaded in self._models:
            loaded.eval().to(self._device)
            loaded.prepare_for_inference_(cfg)
        try:
            self._generator = self._task.build_generator(self._models, cfg.generation)
        except ValueError as error:
            raise UserError(f"{model}: cannot search with these flags: {error}") from error
        self._post_process = cfg.common_eval.post_process
        # the task here has fairseq's own limit of 1,024, whatever the model was trained with
        positions = utils.resolve_max_positions(*(loaded.max_positions() for loaded in self._models))
        self.longest: int = positions[0] - 1
        """The largest number of tokens in a source line, without the end-of-sentence symbol."""

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translate lines of subwords in one batch; return the best hypothesis of each, as tokens with BPE undone.

        Lines are cut after ``longest`` tokens.
        """
        return [answers[0].text for answers in self.search(lines, 1)]

    def search(self, lines: Sequence[str], count: int) -> list[list[Answer]]:
        """Search all lines in one batch; return up to ``count`` hypotheses of each, the best first."""
        import torch

        words = self._task.source_dictionary
        tokens = [
            words.encode_line(" ".join(line.split()[: self.longest]), add_if_not_exist=False).long() for line in lines
        ]
        dataset = self._task.build_dataset_for_inference(tokens, [len(line) for line in tokens])
        sample = dataset.collater([dataset[index] for index in range(len(lines))])
        inputs = {key: sample["net_input"][key].to(self._device) for key in ("src_tokens", "src_lengths")}
        with torch.no_grad():
            hypotheses = self._task.inference_step(self._generator, self._models, {"net_input": inputs})
        order = sample["id"].tolist()  # the collater sorts by length
        answers = {
            number: [self._answer(hypothesis) for hypothesis in best[:count]]
            for number, best in zip(order, hypotheses, strict=True)
        }
        return [answers[number] for number in range(len(lines))]

    def _answer(self, hypothesis: dict[str, Any]) -> Answer:
        ignored = getattr(self._generator, "symbols_to_strip_from_output", {self._generator.eos})
        text = self._task.target_dictionary.string(
            hypothesis["tokens"].int().cpu(), self._post_process, extra_symbols_to_ignore=ignored
        )
        return Answer(text, float(hypothesis["score"]) / math.log(2))
