import json

from scripts import train
from scripts.fairseq_io.trainlog import read_log

STAMP = "2026-01-02 03:04:05 | INFO |"


def inner(update: int, loss: float, wall: float = 1.0) -> str:
    values = {"epoch": 1, "loss": str(loss), "ppl": "9.5", "wps": "100", "num_updates": str(update), "wall": str(wall)}
    return f"{STAMP} train_inner | {json.dumps(values)}"


def valid(update: int, loss: float) -> str:
    values = {"epoch": 1, "valid_loss": str(loss), "valid_ppl": "9.5", "valid_num_updates": str(update)}
    return f"{STAMP} valid | {json.dumps(values)}"


LINES = [
    f"{STAMP} fairseq_cli.train | num. shared model params: 1,234,567 (num. trained: 1,234,000)",
    f"{STAMP} x.dispatch | lightconv_plugin: dynamic_conv runs on the reference backend",
    inner(20, 9.0, 3.0),
    inner(40, 8.0, 6.0),
    f'{STAMP} train_inner | {{"epoch": 1, "lo',
    f"{STAMP} other | {{}}",
    inner(40, 7.5, 7.0),
    valid(40, 7.7),
]


def test_the_facts_of_a_resumed_run():
    log = read_log(LINES)
    assert (log.parameters, log.trained_parameters) == (1234567, 1234000)
    assert log.backend == {"dynamic_conv": "reference"}
    assert log.train_loss == {20: 9.0, 40: 7.5}
    assert log.valid_loss == {40: 7.7}
    assert log.seconds == 7.0
    again = [LINES[0], inner(60, 7.0, 2.0), inner(80, 6.5, 9.0)]
    assert read_log(LINES + again).seconds == 16.0
    assert read_log([*LINES, *again, LINES[0]]).seconds == 16.0  # resumed after the last update
    assert read_log([]).seconds is None


def test_the_seconds_of_a_resumed_run_are_those_of_the_lines():
    """fairseq loads the state of its clock with the checkpoint, and from then on logs 0 seconds."""
    resumed = [inner(60, 7.0, 0.0).replace("03:04:05", "03:04:35"), inner(80, 6.5, 0.0).replace("03:04:05", "03:05:07")]
    assert read_log([*LINES, LINES[0], *resumed]).seconds == 7.0 + 62.0


def test_the_validations_without_gain_that_ended_a_training():
    """A resumed training has not ended."""
    ended = f"{STAMP} fairseq_cli.train | early stop since valid performance hasn't improved for last 5 runs"
    assert read_log(LINES).validations_without_gain is None
    assert read_log([*LINES, ended]).validations_without_gain == 5
    assert read_log([*LINES, ended, LINES[0]]).validations_without_gain is None


def test_the_summary_of_a_training():
    """Its speed is a median, since updates are slower at the start, and while the machine has other work."""
    lines = [inner(10 * n, 9 - n).replace('"wps": "100"', f'"wps": "{wps}"') for n, wps in enumerate([1, 90, 100, 110])]
    facts = train.summary(read_log([*lines, valid(10, 7.5), valid(20, 6.5), valid(30, 7.0)]))
    assert (facts["updates"], facts["tokens_per_second"], facts["train_loss"]) == (30, 95, 6.0)
    assert (facts["valid_loss"], facts["best_valid_loss"]) == (7.0, 6.5)
