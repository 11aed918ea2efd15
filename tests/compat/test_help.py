"""`--help` with `--arch` of ours: every option of the model, each with a sentence."""

import sys
from dataclasses import fields

import pytest
from fairseq import options

import lightconv_plugin.register  # noqa: F401  applies the shims
from lightconv_plugin.models.config import LightConvConfig, LightConvLanguageModelConfig
from tests.compat.conftest import REPO, unwrapped

CASES = [
    ("pla_dynamicconv_small", "translation", LightConvConfig),
    ("pla_dynamicconv_lm_small", "language_modeling", LightConvLanguageModelConfig),
]


def asked_for_help(monkeypatch, capsys, arch, task, parse) -> str:
    argv = ["fairseq-train", "--help", "--user-dir", str(REPO / "lightconv_plugin"), "--arch", arch, "--task", task]
    monkeypatch.setattr(sys, "argv", argv)
    parser = options.get_training_parser()
    with pytest.raises(SystemExit) as end:
        parse(parser)
    assert end.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.parametrize(("arch", "task", "config"), CASES)
def test_every_option_is_listed_with_a_sentence(monkeypatch, capsys, arch, task, config):
    printed = " ".join(asked_for_help(monkeypatch, capsys, arch, task, options.parse_args_and_arch).split())
    listed = 0
    for option in fields(config):
        if option.name.startswith("_") or str(option.default).startswith("${"):
            continue  # the task's own options
        flag = option.name.replace("_", "-")
        taken_back = f", --{flag.removeprefix('no-')} " if flag.startswith("no-") else f", --no-{flag} "
        assert f"--{flag} " in printed or f"--{flag}{taken_back}" in printed
        sentence = option.metadata["help"]
        assert " ".join(sentence.split()[:4]) in printed, option.name
        listed += 1
    assert listed > 25


def test_fairseq_alone_lists_none_of_them(monkeypatch, capsys):
    printed = asked_for_help(
        monkeypatch, capsys, "pla_dynamicconv_small", "translation", unwrapped(options.parse_args_and_arch)
    )
    assert "--max-tokens" in printed
    assert "--encoder-kernel-size-list" not in printed
