"""Reading YAML: wrong files raise a UserError with the line."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from data_prep.common.strict_yaml import read_yaml


def write(folder: Path, text: str) -> Path:
    path = folder / "odd.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("? [a, b]\n: 1\n", "line 1, column 3: .*found unhashable key"),
        ("a: " + "[" * 3000 + "]" * 3000, "recursion"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: .*the key 'a' is repeated here"),
        ("a: {b: 1, b: 2}\n", "the key 'b' is repeated here"),
        ("1: a\n0x1: b\n", "the key 1 is repeated"),
        ("a: 2001-13-45\n", "not valid YAML: month must be in 1..12"),
        ("a: !!int x\n", "invalid literal for int"),
        ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("", "holds nothing, expected keys with values"),
        ("- a\n", "holds list"),
    ],
)
def test_wrong_files_raise_a_user_error(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=message) as refusal:
        read_yaml(path)
    assert str(path) in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nothing.yaml: No such file"):
        read_yaml(tmp_path / "nothing.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(UserError, match=r"latin.yaml is not UTF-8 \(byte 3\)"):
        read_yaml(tmp_path / "latin.yaml")


def test_all_features_of_yaml_are_read(tmp_path):
    text = "\ufeffx: &x {a: 1, b: [2, ~]}\ny: {<<: *x, a: 3}\nz: *x\n'on': yes\n1: 2\n"
    first = {"a": 1, "b": [2, None]}
    expected = {"x": first, "y": {"a": 3, "b": [2, None]}, "z": first, "on": True, 1: 2}
    assert read_yaml(write(tmp_path, text)) == expected


pieces = st.sampled_from(
    [*"[]{}:,-?&*!|>'\"%@`#\n \t=~<", "a", "1", "\0", "\u2028", "&a ", "*a", "<<: ", "!!set ", ": "]
)


@settings(deadline=None)
@given(st.lists(pieces, max_size=25).map("".join))
@example("a: &a\n ? *a\n : b")
def test_random_text_raises_nothing_else(tmp_path_factory, text):
    with suppress(UserError):
        assert isinstance(read_yaml(write(tmp_path_factory.mktemp("yaml"), text)), dict)
