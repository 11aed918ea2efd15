"""Flags as fairseq's own parsers take them; what they refuse is said with the configuration's file and key."""

import argparse
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from scripts.common.errors import UserError

PARSERS = {
    "fairseq_cli.train": "get_training_parser",
    "fairseq_cli.generate": "get_generation_parser",
    "fairseq_cli.eval_lm": "get_eval_lm_parser",
}
_INF = math.inf
# the numbers that make sense: of the first pattern that a flag's name matches. fairseq notices others late or never.
_RANGES = {
    r"(encoder|decoder)-((embed|ffn-embed|conv|query|input|output)-dim|[\w-]*heads|layers|kernel-size-list)": (1, _INF),
    r"[\w-]+-cutoff|(max-tokens|batch-size)(-valid)?|update-freq|required-batch-size-multiple": (1, _INF),
    r"tokens-per-sample|max-(source|target)-positions|(save|validate|log)-interval|lr-period-updates": (1, _INF),
    r"beam|nbest": (1, _INF),
    r"[\w-]*dropout|[\w-]*layerdrop|label-smoothing|momentum": (0, 1),
    r"lr|temperature": (5e-324, _INF),
    r"warmup-updates|max-(update|epoch)|(save|validate)-interval-updates|validate-after-updates": (0, _INF),
    r"weight-decay|clip-norm|num-workers|min-len|max-len-[ab]|stepwise-length-penalty|no-repeat-ngram-size": (0, _INF),
}
_KINDS = {"int": "a whole number", "float": "a number", "eval_bool": "true or false"}


@dataclass(frozen=True)
class Command:
    """One of fairseq's commands, as a configuration has it run.

    ``keys`` has the configuration's key, such as tune.lenpen, of each flag that the configuration sets.
    """

    path: Any
    words: list[str]
    keys: Mapping[str, str]

    @property
    def module(self) -> str:
        """fairseq's module, such as fairseq_cli.train."""
        return next(word for word in self.words if word in PARSERS)

    @property
    def name(self) -> str:
        """The command's name as people type it."""
        return "fairseq-" + self.module.removeprefix("fairseq_cli.").replace("_", "-")

    def given(self, flag: str) -> str | None:
        """The value of a flag in the command."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"--{flag}=")), None)

    def refusal(self, flag: str, expected: str) -> UserError:
        """The sentence that refuses the value of a flag."""
        key, value = self.keys.get(flag, flag), self.given(flag)
        return UserError(f"{self.path}: `{key}` is {'true' if value is None else value}, expected {expected}")


def parse(command: Command) -> argparse.Namespace:
    """Parse the flags with fairseq's parser for the command. ``load_plugin`` comes first."""
    from fairseq import options

    parser = getattr(options, PARSERS[command.module])()
    get_value = parser._get_value

    def refuse(text: str) -> NoReturn:
        raise _explained(command, text, [name.lstrip("-") for name in parser._option_string_actions])

    def convert(action: argparse.Action, text: str) -> Any:
        try:
            return get_value(action, text)
        except argparse.ArgumentError:
            raise
        except Exception as problem:  # fairseq evaluates lists as Python code
            raise argparse.ArgumentError(action, f"invalid list value: {text!r}") from problem

    parser.error, parser._get_value = refuse, convert
    try:
        flags = command.words[command.words.index(command.module) + 1 :]
        parsed: argparse.Namespace = options.parse_args_and_arch(parser, flags)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{command.path}: {command.name} cannot take its flags together: {error}") from error
    for flag in command.keys:
        _check_numbers(command, flag, vars(parsed).get(flag.replace("-", "_")))
    return parsed


def _explained(command: Command, text: str, flags: list[str]) -> UserError:
    """The refusal of a parser that knows ``flags``, in the configuration's words."""
    if unknown := re.match(r"unrecognized arguments: --([\w-]+)", text):
        near = difflib.get_close_matches(unknown[1], flags, 1)
        arch = f" with arch {command.given('arch')}" if command.given("arch") else ""
        return UserError(
            f"{command.path}: `{command.keys.get(unknown[1], unknown[1])}` is not a flag of {command.name}{arch}; "
            + (f"did you mean {near[0]}?" if near else "take it out")
        )
    argument = re.match(r"argument (\S*--\S+?)(?: .*?)?: (.*)", text, re.DOTALL)
    if not argument:
        return UserError(f"{command.path}: {command.name} refuses its flags: {text}")
    spellings, problem = re.findall(r"--([\w-]+)", argument[1]), argument[2]
    flag = next((name for name in spellings if name in command.keys or command.given(name)), spellings[-1])
    expected = f"otherwise: {problem}"
    if kind := re.match(r"invalid (\S+) value", problem):
        expected = _KINDS.get(kind[1], "a value of fairseq's kind, such as a number or a list of them")
    elif choices := re.match(r"invalid choice: .*?\(choose from (.*)\)", problem, re.DOTALL):
        known = [name.strip("' ") for name in choices[1].split(",")]
        near = difflib.get_close_matches(str(command.given(flag)), known, 3)
        few = known if len(known) <= 12 else [*near, f"the {len(known)} names that fairseq-train --help lists"]
        expected = f"one of {', '.join(few)}"
    elif problem.startswith("ignored explicit argument"):
        expected = "true or false"
    elif problem == "expected one argument":
        expected = "a value"
    return command.refusal(flag, expected)


def _check_numbers(command: Command, flag: str, value: Any) -> None:
    values = [as_number(one) for one in (value if isinstance(value, list) else [value])]
    numbers = [number for number in values if number is not None]
    if any(not math.isfinite(number) for number in numbers):
        raise command.refusal(flag, "a finite number")
    least, most = next((limits for names, limits in _RANGES.items() if re.fullmatch(names, flag)), (-_INF, _INF))
    if any(number < least or number >= most for number in numbers):
        above = "a number above 0" if 0 < least < 1 else f"a number from {least} on"
        raise command.refusal(flag, above if most == _INF else f"a number from {least} to less than {most}")


def as_number(value: Any) -> float | None:
    """Return a number, or a text that is one; None for anything else."""
    if isinstance(value, bool):
        return None
    try:  # fairseq's parser leaves some numbers as text
        return float(value)
    except (TypeError, ValueError):
        return None
