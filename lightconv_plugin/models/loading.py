"""What a checkpoint that does not fit a model says."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class ClearLoading:
    """Put before a fairseq model among a class's parents: weights of another architecture are refused in a sentence."""

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's, upgrades included.

        Raises:
            ValueError: ``state_dict`` is of another architecture.
        """
        try:
            return super().load_state_dict(  # type: ignore[misc]
                state_dict, strict=strict, model_cfg=model_cfg, args=args
            )
        except RuntimeError as error:
            raise ValueError(describe_mismatch(self, state_dict)) from error


def describe_mismatch(model: Any, state_dict: Mapping[str, Tensor]) -> str:
    """Say how a checkpoint's weights differ from a model's: what was got, what was expected, what to do."""
    own = model.state_dict()
    missing = [name for name in own if name not in state_dict]
    unexpected = [name for name in state_dict if name not in own]
    reshaped = [
        f"{name} {tuple(state_dict[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in state_dict and state_dict[name].shape != own[name].shape
    ]
    parts = [
        f"{len(names)} {what} (such as {names[0]})"
        for names, what in (
            (missing, "expected and missing"),
            (unexpected, "unexpected"),
            (reshaped, "of another shape"),
        )
        if names
    ]
    advice = "give the --arch and the options that it was trained with, and its dictionaries"
    if any(".linear1." in name or ".conv_bias" in name for name in unexpected):
        advice = "it looks like fairseq's own lightconv: convert it with python -m lightconv_plugin.convert IN OUT"
    return f"the checkpoint's weights do not fit {type(model).__name__}: {'; '.join(parts)}. What to do: {advice}"
