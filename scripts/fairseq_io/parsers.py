"""Flags as fairseq's own parsers take them; what they refuse is said with the configuration's file and key."""

import argparse
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scripts.common.errors import UserError

PARSERS = {
    "fairseq_cli.train": "get_training_parser",
    "fairseq_cli.generate": "get_generation_parser",
    "fairseq_cli.eval_lm": "get_eval_lm_parser",
}
_WIDE, _COUNT = r"(encoder|decoder)-(embed|ffn-embed|conv|query|input|output)-dim", r"(encoder|decoder)-[\w-]*heads"
_BATCH = r"(max-tokens|batch-size)(-valid)?|update-freq|required-batch-size-multiple|tokens-per-sample"
# the numbers that make sense: of the first pattern that a flag's name matches. fairseq notices others late or never.
RANGES = {
    rf"{_WIDE}|{_COUNT}|(encoder|decoder)-(layers|kernel-size-list)|[\w-]+-cutoff": (1, math.inf),
    rf"{_BATCH}|max-(source|target)-positions|beam|nbest|(save|validate|log)-interval|lr-period-updates": (1, math.inf),
    r"[\w-]*dropout|[\w-]*layerdrop|label-smoothing|momentum": (0, 1),
    r"lr|temperature": (5e-324, math.inf),
    r"warmup-updates|max-(update|epoch)|(save|validate)-interval-updates|validate-after-updates": (0, math.inf),
    r"weight-decay|clip-norm|num-workers": (0, math.inf),
    r"min-len|max-len-[ab]|stepwise-length-penalty|no-repeat-ngram-size": (0, math.inf),
}
_KINDS = {"int": "a whole number", "float": "a number", "eval_bool": "true or false"}


@dataclass(frozen=True)
class Asked:
    """One of fairseq's commands as a configuration asks for it.

    ``keys`` has the configuration's key, such as tune.lenpen, of each flag that the configuration sets.
    """

    path: Any
    command: list[str]
    keys: Mapping[str, str]

    @property
    def module(self) -> str:
        """fairseq's module, such as fairseq_cli.train."""
        return next(word for word in self.command if word in PARSERS)

    @property
    def name(self) -> str:
        """The command's name as people type it."""
        return "fairseq-" + self.module.removeprefix("fairseq_cli.").replace("_", "-")

    def given(self, flag: str) -> str | None:
        """The value of a flag in the command."""
        return next((word.partition("=")[2] for word in self.command if word.startswith(f"--{flag}=")), None)

    def refusal(self, flag: str, expected: str) -> UserError:
        """The sentence that refuses the value of a flag."""
        key, value = self.keys.get(flag, flag), self.given(flag)
        return UserError(f"{self.path}: `{key}` is {'true' if value is None else value}, expected {expected}")


class _Refused(Exception):
    """A parser's refusal, which would end the process."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.flags = [name.lstrip("-") for name in parser._option_string_actions]


@contextmanager
def _raising() -> Iterator[None]:
    """Have all parsers raise in place of ending the process, also for a value whose conversion fails unforeseen."""
    error, get_value = argparse.ArgumentParser.error, argparse.ArgumentParser._get_value

    def refuse(self: argparse.ArgumentParser, message: str) -> None:
        raise _Refused(self, message)

    def convert(self: argparse.ArgumentParser, action: argparse.Action, text: str) -> Any:
        try:
            return get_value(self, action, text)
        except argparse.ArgumentError:
            raise
        except Exception as problem:  # fairseq evaluates lists as Python code
            raise argparse.ArgumentError(action, f"invalid list value: {text!r}") from problem

    argparse.ArgumentParser.error, argparse.ArgumentParser._get_value = refuse, convert  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        argparse.ArgumentParser.error, argparse.ArgumentParser._get_value = error, get_value  # type: ignore[method-assign]


def parse(asked: Asked) -> argparse.Namespace:
    """Parse the flags with fairseq's parser for the command. ``load_plugin`` comes first."""
    from fairseq import options

    parser = getattr(options, PARSERS[asked.module])()
    flags = asked.command[asked.command.index(asked.module) + 1 :]
    try:
        with _raising():
            parsed: argparse.Namespace = options.parse_args_and_arch(parser, flags)
    except _Refused as refused:
        raise _explained(asked, refused) from None
    except Exception as error:
        raise UserError(f"{asked.path}: {asked.name} cannot take its flags together: {error}") from error
    for flag in asked.keys:
        _check_numbers(asked, flag, vars(parsed).get(flag.replace("-", "_")))
    return parsed


def _explained(asked: Asked, refused: _Refused) -> UserError:
    """The refusal in the configuration's words."""
    text = str(refused)
    if unknown := re.match(r"unrecognized arguments: --([\w-]+)", text):
        near = difflib.get_close_matches(unknown[1], refused.flags, 1)
        key = asked.keys.get(unknown[1], unknown[1])
        arch = f" with arch {asked.given('arch')}" if asked.given("arch") else ""
        return UserError(
            f"{asked.path}: `{key}` is not a flag of {asked.name}{arch}; "
            + (f"did you mean {near[0]}?" if near else "take it out")
        )
    argument = re.match(r"argument (\S*--\S+?)(?: .*?)?: (.*)", text, re.DOTALL)
    if not argument:
        return UserError(f"{asked.path}: {asked.name} refuses its flags: {text}")
    spellings, problem = re.findall(r"--([\w-]+)", argument[1]), argument[2]
    flag = next((name for name in spellings if name in asked.keys or asked.given(name)), spellings[-1])
    if kind := re.match(r"invalid (\S+) value", problem):
        return asked.refusal(flag, _KINDS.get(kind[1], "a value of fairseq's kind, such as a number or a list of them"))
    if choices := re.match(r"invalid choice: .*?\(choose from (.*)\)", problem, re.DOTALL):
        known = [name.strip("' ") for name in choices[1].split(",")]
        near = difflib.get_close_matches(str(asked.given(flag)), known, 3)
        few = known if len(known) <= 12 else [*near, f"the {len(known)} names that fairseq-train --help lists"]
        return asked.refusal(flag, f"one of {', '.join(few)}")
    if problem.startswith("ignored explicit argument"):
        return asked.refusal(flag, "true or false")
    return asked.refusal(flag, "a value" if problem == "expected one argument" else f"otherwise: {problem}")


def _check_numbers(asked: Asked, flag: str, value: Any) -> None:
    values = [as_number(one) for one in (value if isinstance(value, list) else [value])]
    numbers = [number for number in values if number is not None]
    if any(not math.isfinite(number) for number in numbers):
        raise asked.refusal(flag, "a finite number")
    least, most = next((limits for names, limits in RANGES.items() if re.fullmatch(names, flag)), (-math.inf, math.inf))
    if any(number < least or number >= most for number in numbers):
        above = "a number above 0" if 0 < least < 1 else f"a number from {least} on"
        raise asked.refusal(flag, above if most == math.inf else f"a number from {least} to less than {most}")


def as_number(value: Any) -> float | None:
    """Return a number, or a text that is one; None for anything else."""
    if isinstance(value, bool):
        return None
    try:  # fairseq's parser leaves some numbers as text
        return float(value)
    except (TypeError, ValueError):
        return None
