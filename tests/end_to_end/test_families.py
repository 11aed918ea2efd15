"""One model of each family from YAML alone, and fairseq's own ConvS2S, trained, loaded and used."""

import pytest
import torch
import yaml
from fairseq import checkpoint_utils

from tests.end_to_end.test_commands import PLUGIN, WHOLE, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]

SMALL_ENCODER_DECODER = {"encoder_embed_dim": 32, "decoder_embed_dim": 32, "encoder_layers": 2, "decoder_layers": 2}


def yaml_config(data, save_dir, *, task, model, criterion, **sections):
    """Return a complete config of fairseq-hydra-train, for 5 updates unless ``sections`` change that."""
    return {
        "common": {"user_dir": str(PLUGIN), "cpu": True, "seed": 1},
        "task": {"data": str(data), **task},
        "model": model,
        "criterion": criterion,
        "optimizer": {"_name": "adam", "adam_betas": "(0.9, 0.98)"},
        "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": 10},
        "dataset": {"max_tokens": 300, "num_workers": 0, "disable_validation": True},
        "optimization": {"max_update": 5, "lr": [0.01], "clip_norm": 0.1},
        "checkpoint": {"save_dir": str(save_dir)},
        **sections,
    }


def test_a_translation_model_trains_from_yaml(corpus, tmp_path):
    model = {"_name": "pla_dynamicconv_decoupled_iwslt_de_en", "encoder_query_dim": 8, "decoder_query_dim": 8}
    small: dict[str, object] = {f"{side}_ffn_embed_dim": 32 for side in ("encoder", "decoder")}
    small |= {f"{side}_kernel_size_list": [3] for side in ("encoder", "decoder")}
    config = yaml_config(
        corpus,
        tmp_path / "saved",
        task={"_name": "translation", "source_lang": "en", "target_lang": "de"},
        model={**SMALL_ENCODER_DECODER, **small, **model},
        criterion={"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
    )
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(config))
    run("hydra_train", "--config-dir", tmp_path, "--config-name", "one", cwd=tmp_path)
    trained = tmp_path / "saved" / "checkpoint_last.pt"
    saved = torch.load(trained, weights_only=False)["cfg"]["model"]
    assert {name: saved[name] for name in model} == model
    options = ["--user-dir", PLUGIN, "--path", trained, "--cpu", "--gen-subset", "valid", "--max-len-b", 10]
    assert "BLEU4 = " in run("generate", corpus, *options, cwd=tmp_path)


def test_language_model_trains_from_yaml_and_fairseq_eval_lm_reads_it(corpus, tmp_path):
    """The recipe of Table 4, for 60 updates: separate sentences, and adaptive input tied to the adaptive softmax."""
    (tmp_path / "data").mkdir()
    for path in corpus.iterdir():  # the German side alone, under the names of a monolingual corpus
        if ".de." in path.name:
            name = "dict.txt" if path.name == "dict.de.txt" else path.name.replace(".en-de.de", "")
            (tmp_path / "data" / name).write_bytes(path.read_bytes())
    config = yaml_config(
        tmp_path / "data",
        tmp_path / "saved",
        task={"_name": "language_modeling", "sample_break_mode": "eos", "tokens_per_sample": 64},
        model={
            "_name": "pla_dynamicconv_lm_small",
            "decoder_embed_dim": 32,
            "decoder_layers": 2,
            "decoder_kernel_size_list": [3, 7],
            "adaptive_input_cutoff": [16, 32],
            "adaptive_softmax_cutoff": [16, 32],
        },
        criterion={"_name": "adaptive_loss"},
        optimizer={"_name": "nag", "momentum": 0.99},
        distributed_training={"ddp_backend": "legacy_ddp"},
        lr_scheduler={"_name": "cosine", "warmup_updates": 10, "warmup_init_lr": 1e-7, "lr_period_updates": 50},
        optimization={"max_update": 60, "lr": [1.0], "clip_norm": 0.1},
    )
    (tmp_path / "lm.yaml").write_text(yaml.safe_dump(config))
    run("hydra_train", "--config-dir", tmp_path, "--config-name", "lm", cwd=tmp_path)
    output = run(
        "eval_lm", tmp_path / "data", "--user-dir", PLUGIN, "--path", tmp_path / "saved" / "checkpoint_last.pt",
        "--gen-subset", "valid", "--sample-break-mode", "eos", "--cpu", *WHOLE, cwd=tmp_path,
    )  # fmt: skip
    perplexity = float(output.rsplit("Perplexity: ", 1)[1].split()[0])
    assert perplexity == pytest.approx(
        perplexity_of(tmp_path / "saved" / "checkpoint_last.pt"), abs=0.01
    )  # which eval_lm rounds


def perplexity_of(checkpoint):
    """Return the perplexity per word of the validation set, computed sentence by sentence."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    task.load_dataset("valid")
    losses = []
    with torch.no_grad():
        for pair in task.dataset("valid"):
            source, target = pair["source"][None], pair["target"][None]
            probabilities = model.eval().get_normalized_probs(model(source), log_probs=True, sample={"target": target})
            losses.append(-probabilities.double().gather(2, target[..., None]).flatten())
    return torch.cat(losses).mean().exp().item()


def test_fairseqs_convs2s_trains_and_generates(corpus, tmp_path):
    """``fconv``, Table 1's first row (Gehring et al., 2017), is fairseq's own; the plugin only makes it load again."""
    layers = "[(32, 3)] * 2"
    run(
        "train", corpus, "--user-dir", PLUGIN, "--arch", "fconv_iwslt_de_en", "--encoder-layers", layers,
        "--decoder-layers", layers, "--encoder-embed-dim", 32, "--decoder-embed-dim", 32,
        "--decoder-out-embed-dim", 32, "--task", "translation", "--optimizer", "nag", "--lr", "0.25",
        "--clip-norm", "0.1", "--criterion", "label_smoothed_cross_entropy", "--max-tokens", 300, "--max-update", 5,
        "--num-workers", 0, "--disable-validation", "--save-dir", tmp_path / "saved", "--cpu", cwd=tmp_path,
    )  # fmt: skip
    output = run(
        "generate", corpus, "--user-dir", PLUGIN, "--path", tmp_path / "saved" / "checkpoint_last.pt", "--cpu",
        "--gen-subset", "valid", *WHOLE, cwd=tmp_path,
    )  # fmt: skip
    assert sum(line.startswith("H-") for line in output.splitlines()) == 20
