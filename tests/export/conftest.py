"""A model that is trained until its translations differ, and its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fairseq import checkpoint_utils

from lightconv_plugin.export import __main__ as command
from tests.compat.conftest import checkpoint, corpus, train  # noqa: F401  fixtures

MODEL = """
    --arch pla_dynamicconv_iwslt_de_en --encoder-layers 1 --decoder-layers 1 --share-all-embeddings
    --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 --encoder-kernel-size-list 5
    --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-attention-heads 4 --decoder-kernel-size-list 5
    --dropout 0 --attention-dropout 0 --weight-dropout 0 --max-source-positions 60 --max-target-positions 60
"""


@pytest.fixture(scope="session")
def trained(train, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A checkpoint after some seconds of training."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, "--max-update", "100", "--disable-validation", model=MODEL)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "out"
    command.main([str(trained), str(out)])
    return out


@pytest.fixture(scope="session")
def original(trained: Path) -> tuple[Any, Any]:
    """The model and its task, as fairseq-generate loads them."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained)])
    return model.eval().requires_grad_(False), task
