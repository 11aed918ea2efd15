"""The operators and modules in a process that has torch and nothing of fairseq's."""

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import lightconv_plugin

ROOT = Path(__file__).resolve().parents[2]
NONE = "import sys\nfor name in ('fairseq', 'hydra', 'omegaconf'): sys.modules[name] = None\n"
README = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
OTHER_MODELS = (ROOT / "lightconv_plugin" / "README.md").read_text(encoding="utf-8").split("## In other models\n")[1]
EXAMPLES = "".join(block.split("```")[0] for block in OTHER_MODELS.split("```python\n")[1:])
LEARNT = """
assert loss < 2, loss  # 0.003 for three seeds, with AVX-512, AVX2 and without
torch.testing.assert_close(steps, out(conv(embed(tokens))), rtol=1e-4, atol=1e-5)
"""
# the compiler of torch alone would take 1.4 seconds to import
FIRST = """
import lightconv_plugin
assert {*lightconv_plugin.__all__, '__version__'} <= {*dir(lightconv_plugin)}
assert 'torch' not in sys.modules  # units needs Python alone
from lightconv_plugin import DynamicConv, LightweightConv, dynamic_conv, info, light_conv
import torch
assert 'torch._dynamo' not in sys.modules
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:  # made before the first call
    DynamicConv(8, 3, heads=2, causal=True)(torch.randn(5, 2, 8))
assert counter.get_total_flops() == 2 * 5 * 2 * 8 * (2 * 3 + 3)
"""


def wheel(folder: Path, *options: str) -> Path:
    """Build the wheel of a copy of the package in ``folder``, as pip and build do."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "lightconv_plugin", folder / "lightconv_plugin", ignore=shutil.ignore_patterns("__pyc*"))
    built = f"from setuptools import build_meta as b; print(b.build_wheel('.', {{'--build-option': {list(options)}}}))"
    said = subprocess.run([sys.executable, "-c", built], cwd=folder, capture_output=True, text=True, check=True)
    return folder / said.stdout.split()[-1]


def test_a_wheel_asks_for_torch_alone_and_holds_every_file(tmp_path):
    path = wheel(tmp_path)
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    (metadata,) = (tmp_path / "site").glob("*.dist-info")
    message = message_from_string((metadata / "METADATA").read_text(encoding="utf-8"))
    needs = message.get_all("Requires-Dist", [])
    assert [need for need in needs if "extra ==" not in need] == ["torch>=2.10"]
    assert message["Version"] == lightconv_plugin.__version__
    files = {path.relative_to(tmp_path) for path in (tmp_path / "lightconv_plugin").rglob("*") if path.is_file()}
    kept = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site" / "lightconv_plugin").rglob("*")}
    assert {path for path in files - kept if path.suffix not in (".ipynb", ".md", ".pyc")} == set()
    assert Path("lightconv_plugin/py.typed") in kept


def test_a_wheel_with_the_compiled_library_needs_no_compiler(tmp_path):
    path, site = wheel(tmp_path, "--compiled"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", site]
    subprocess.run([*pip, path], check=True, capture_output=True)  # pip refuses the tag of another machine
    (metadata,) = site.glob("*.dist-info")
    tags = message_from_string((metadata / "WHEEL").read_text(encoding="utf-8"))
    assert tags["Root-Is-Purelib"] == "false"
    assert f"-{tags['Tag']}.whl" in path.name
    platform = tags["Tag"].removeprefix("py3-none-")
    assert re.fullmatch(r"manylinux_2_\d+_\w+", platform)
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", path], capture_output=True, text=True, check=True
    )
    assert f'constrains the platform tag to "{platform}"' in " ".join(shown.stdout.split())
    assert (site / "lightconv_plugin/ops/native/csrc/cuda/band.cuh").is_file()
    bare = {"PATH": str(tmp_path / "empty"), "PYTHONPATH": str(site), "LIGHTCONV_BACKEND": "native"}
    code = f"{NONE}{FIRST}{README}{LEARNT}{EXAMPLES}\nprint(lightconv_plugin.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "site",
        env=bare | {"LIGHTCONV_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == [f"{site}/lightconv_plugin/__init__.py"], done.stderr
    assert not done.stderr
    assert not (tmp_path / "cache").exists()


def test_models_say_that_they_need_fairseq():
    code = NONE + "from lightconv_plugin import LightConvModel"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "need fairseq, which is not installed: pip install 'lightconv-plugin[fairseq]'" in done.stderr
