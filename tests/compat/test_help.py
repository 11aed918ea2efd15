"""`--help` with `--arch` of ours: every option of the model, each with a sentence."""

import sys
from dataclasses import fields

import pytest
from fairseq import options

import lightconv_plugin.register  # noqa: F401  applies the shims
from lightconv_plugin.models.config import LightConvConfig, LightConvLanguageModelConfig
from tests.compat.conftest import REPO


def asked_for_help(monkeypatch, capsys, arch, task) -> str:
    argv = ["fairseq-train", "--help", "--user-dir", str(REPO / "lightconv_plugin"), "--arch", arch, "--task", task]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        options.parse_args_and_arch(options.get_training_parser())
    assert end.value.code in (0, None)
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arch", "task", "config"),
    [
        ("pla_dynamicconv_small", "translation", LightConvConfig),
        ("pla_dynamicconv_lm_small", "language_modeling", LightConvLanguageModelConfig),
    ],
)
def test_every_option_is_listed_with_a_sentence(monkeypatch, capsys, arch, task, config):
    printed = asked_for_help(monkeypatch, capsys, arch, task)
    own = [f for f in fields(config) if not f.name.startswith("_") and not str(f.default).startswith("${")]
    assert len(own) > 25  # the others are the task's
    for option in own:
        flag = option.name.replace("_", "-")
        taken_back = f", --{flag.removeprefix('no-')} " if flag.startswith("no-") else f", --no-{flag} "
        assert f"--{flag} " in printed or f"--{flag}{taken_back}" in printed
        assert " ".join(option.metadata["help"].split()[:4]) in printed, option.name
