"""A converted model has the original's logits and beams, for every form in which fairseq saved models."""

import itertools

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from lightconv_plugin import LightConvModel, convert
from tests.convert import common

FORMS = list(itertools.product(("lightweight", "dynamic"), (True, False), (True, False), ("early", "late")))
# every form of settings and of files with each layout, spread over the forms above
SAVED = list(itertools.product(("args", "cfg", "dict"), (True, False)))


def batch(task):
    """Return sentences of two lengths, padded on the left as fairseq does, and the starts of translations."""
    draw = torch.Generator().manual_seed(3)
    source = torch.randint(4, len(task.source_dictionary), (2, 9), generator=draw)
    source[1, :3] = task.source_dictionary.pad()
    source[:, -1] = task.source_dictionary.eos()
    target = torch.randint(4, len(task.target_dictionary), (2, 12), generator=draw)
    return {"src_tokens": source, "src_lengths": torch.tensor([9, 6]), "prev_output_tokens": target}


def beams(model, task, sample):
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=10)
    return [
        [(hypothesis["tokens"].tolist(), hypothesis["score"].item()) for hypothesis in hypotheses]
        for hypotheses in generator.generate([model], {"net_input": sample, "id": torch.arange(2)})
    ]


def check_equal(original, path, folder, task):
    data = {"data": str(folder)}
    (converted,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=data)
    converted.eval()
    assert isinstance(converted, LightConvModel)
    sample = batch(task)
    with torch.no_grad():
        expected, logits = original(**sample)[0], converted(**sample)[0]
    assert expected.std() > 0.1, "logits that are all alike prove nothing"
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    sample.pop("prev_output_tokens")
    for ours, theirs in zip(beams(converted, task, sample), beams(original, task, sample), strict=True):
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-5)


# layers with different widths, and learned positions
OTHERS = {
    "decoder_output_dim": 8,
    "tie_adaptive_weights": False,
    "encoder_conv_dim": 32,
    "decoder_conv_dim": 8,
    "encoder_conv_type": "dynamic",
    "decoder_conv_type": "lightweight",
    "weight_softmax": True,
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
}


def both(**options):
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in options.items()}


def case(operator, glu, shared, _layout):
    norms = {"encoder_normalize_before": not shared, "decoder_normalize_before": not glu}
    return {**both(conv_type=operator, glu=glu), **norms, "weight_softmax": glu or not shared}


@pytest.mark.parametrize(
    ("options", "shared", "layout", "settings", "zipped", "half"),
    [
        *(
            (case(*form), form[2], form[3], *SAVED[(5 * number + number // 6) % len(SAVED)], False)
            for number, form in enumerate(FORMS)
        ),
        (OTHERS, False, "late", "args", True, False),
        (common.DYNAMIC, True, "late", "args", True, True),
    ],
)
def test_logits_and_beams(tmp_path, options, shared, layout, settings, zipped, half):
    task = common.write_dictionaries(tmp_path, shared=shared)
    model, args = common.theirs(task, **{**common.TINY, **options}, share_all_embeddings=shared)
    state = model.state_dict()
    if layout == "early":
        state = common.early_names(state, shared=shared, ancient=settings == "args")
    if half:
        state = {name: tensor.half() for name, tensor in state.items()}
        model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    source = common.save(tmp_path / "in.pt", state, args, settings=settings, zipped=zipped)
    convert.main([str(source), str(tmp_path / "out.pt")])
    stored = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    types = {tensor.dtype for name, tensor in stored.items() if not name.endswith("version")}
    assert types == {torch.float16 if half else torch.float32}
    check_equal(model, tmp_path / "out.pt", tmp_path, task)
