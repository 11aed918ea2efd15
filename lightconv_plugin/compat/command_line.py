"""fairseq's command line: help that is whole."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from lightconv_plugin.compat.wrap import wrap


def help_with_model_options() -> None:
    """All versions: `--help` beside `--arch` and `--task` lists their options too.

    fairseq's parser prints its help and ends before it has read which model is meant.
    """
    from fairseq import options

    def whole(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(parser: Any, input_args: Any = None, *args: Any, modify_parser: Any = None, **kwargs: Any) -> Any:
            given = sys.argv[1:] if input_args is None else list(input_args)
            rest = [word for word in given if word not in ("-h", "--help")]
            if len(rest) == len(given):
                return original(parser, input_args, *args, modify_parser=modify_parser, **kwargs)
            calls = itertools.count(1)

            def then_print(complete: Any) -> None:
                if modify_parser is not None:
                    modify_parser(complete)
                if next(calls) == 2:  # fairseq calls this before and after it adds the model's options
                    complete.print_help()
                    complete.exit()

            return original(parser, rest, *args, modify_parser=then_print, **kwargs)

        return wrapper

    wrap(options, "parse_args_and_arch", whole)
