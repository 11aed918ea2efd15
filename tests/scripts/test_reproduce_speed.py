"""When the stage speed runs."""

import shutil

import pytest

from tests.scripts.stand_in import CONFIG, ONE_SEED

pytestmark = pytest.mark.usefixtures("forks")


def test_speed_comes_last_and_again_when_the_baseline_has_been_trained(place):
    speed = "speed: {beam: 4, batch-size: 8, subset: test, runs: 2, baseline: other.yaml}\n"
    (place.folder / "other.yaml").write_text(CONFIG)
    place.config(CONFIG + speed)
    assert place.run()[0] == 0
    assert place.ran() == ["speed"]
    assert place.record()["speed"] == {"ratio": 2.0}
    (place.folder / "model.yaml").rename(place.folder / "kept.yaml")
    (place.folder / "other.yaml").rename(place.folder / "model.yaml")
    (place.folder / "work" / "toy" / "model").rename(place.folder / "work" / "toy" / "kept")
    assert place.run()[0] == 0
    (place.folder / "work" / "toy" / "model").rename(place.folder / "work" / "toy" / "other")
    (place.folder / "work" / "toy" / "kept").rename(place.folder / "work" / "toy" / "model")
    (place.folder / "model.yaml").rename(place.folder / "other.yaml")
    (place.folder / "kept.yaml").rename(place.folder / "model.yaml")
    assert place.run()[0] == 0
    assert place.ran() == ["speed"]


def test_the_speed_of_random_weights_needs_no_training(place):
    status, _, err = place.run("--untrained")
    assert status == 1
    assert "has no section `speed`, which is all that --untrained measures" in err
    place.config(CONFIG + "speed: {beam: 4, batch-size: 8, subset: test, runs: 2}\n")
    status, _, err = place.run("--untrained")
    assert status == 1
    assert "holds a trained model; leave --untrained out" in err
    shutil.rmtree(place.folder / "work" / "toy" / "model")
    status, out, err = place.run("--untrained")
    assert status == 0, err
    assert place.ran() == ["speed"]  # the data are there
    assert (place.record()["speed"], place.record()["seeds"]) == ({"ratio": 2.0}, {})
    assert "2.00" in out
    assert place.run("--untrained")[0] == 0
    assert place.ran() == []
    assert place.run()[0] == 0
    assert place.ran() == [*ONE_SEED[3:], "speed"]  # now of the trained model
