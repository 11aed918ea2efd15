"""The CUDA launcher and kernels on a CPU: cuda_shim/ stands in for libcuda and NVRTC, all else is the real code.

What is compiled is kept in the cache folder of the native library under a name that changes with the sources.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.ops import library

SHIM = Path(__file__).parent / "cuda_shim"
CUDA = library.SOURCES / "cuda"
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
LAUNCHER = ("driver", "compiler", "kernels", "launch", "auxiliary/launch")


def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted([*CUDA.rglob("*"), *SHIM.iterdir(), library.SOURCES / "random.h"]):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    return library.cache_folder() / f"shim-{fingerprint()}"


def compile_shared(target: Path, sources: list[Path], *flags: str) -> Path:
    """A shared object of C++ sources, unless it is there already."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(f".{os.getpid()}")
        command = [library.compiler(), "-std=c++20", "-O0", "-fPIC", "-shared", f"-I{library.SOURCES}", *flags]
        subprocess.run([*command, *map(str, sources), "-o", str(draft), "-ldl"], check=True)
        os.replace(draft, target)
    return target


def fake_driver() -> Path:
    return compile_shared(folder() / "libcuda.so", [SHIM / "libcuda.cpp"])


# flags of the kernels' compiler, by what is to be found
CHECKS = {
    "": "-O1",
    "address": "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all",
    "accesses": "-O1 -fsanitize=thread",
}


def fake_nvrtc(check: str = "") -> Path:
    """With shim.h precompiled, which halves the time of a kernel."""
    own = folder() / (check or "plain")
    flags = f"{library.compiler()} -std=c++20 -w -fPIC -fvisibility=hidden {CHECKS[check]}"
    compiled = own / "shim.h.gch"
    if not compiled.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        draft = compiled.with_suffix(f".{os.getpid()}")
        subprocess.run([*flags.split(), "-x", "c++-header", str(SHIM / "shim.h"), "-o", str(draft)], check=True)
        os.replace(draft, compiled)
    machine = compile_shared(folder() / "libshim.so", [SHIM / "scheduler.cpp", SHIM / "accesses.cpp"], "-O2")
    flags += f" -Wl,--no-as-needed {machine}"
    if check == "accesses":  # without the library that -fsanitize=thread brings
        flags += " -nodefaultlibs -lm -lc"
    command = f'-DSHIM_COMMAND="{flags} -I{compiled.parent} -I{SHIM}"'
    return compile_shared(own / "libnvrtc.so", [SHIM / "nvrtc.cpp"], command)


def empty_nvrtc() -> Path:
    """An NVRTC that gives images without code, which cost no time and whose launches do nothing."""
    return compile_shared(folder() / "libnvrtc-empty.so", [SHIM / "nvrtc.cpp"])


def launcher(driver: str, own: Path | None = None) -> ctypes.CDLL:
    """The launcher behind plain C functions, with ``driver`` in place of libcuda.so.1.

    ``own``: a folder for a copy, which shares nothing with what this process has loaded before.
    """
    name = "launcher-" + hashlib.sha256(driver.encode()).hexdigest()[:8] + ".so"
    sources = [SHIM / "harness.cpp", *(CUDA / f"{name}.cpp" for name in LAUNCHER)]
    path = compile_shared(folder() / name, sources, f'-DLIGHTCONV_LIBCUDA="{driver}"')
    library = ctypes.CDLL(str(path if own is None else shutil.copy(path, own)))
    for function in (
        *("conv_forward", "conv_backward", "run_glu", "run_loss", "run_loss_backward", "run_step"),
        *("run_decide", "run_adam", "run_gather"),
        *("run_residual_norm", "run_residual_norm_backward", "run_sums", "run_attend", "run_candidates"),
        "compile_only",
    ):
        getattr(library, function).restype = ctypes.c_char_p
    return library


def structure(name: str, **members: str) -> Any:
    """A struct of the C++ sources: names of members in their order, by their type."""
    fields = [(member, getattr(ctypes, kind)) for kind, names in members.items() for member in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Conv = structure(
    "Conv",
    c_longlong="T B H R K padding_l step sentence",
    c_int="type",
    c_bool="dynamic softmax",
    c_double="dropconnect",
    c_void_p="seed x logits",
)
Case = structure("Case", c_int="type K R H positions", c_bool="dynamic softmax drop flip aligned mma mask both")
StepArgs = structure("StepArgs", c_void_p="x logits ring ancestors position out", c_int="N M")
GluArgs = structure("GluArgs", c_void_p="x grad mask out", c_longlong="T B C")
LossArgs = structure(
    "LossArgs",
    c_void_p="logits target log_sums terms sums grad out",
    c_longlong="N V stride ignore",
    c_double="nll_share all_share",
)

DecideArgs = structure("DecideArgs", c_void_p="norm sample_size orders settings control outcome")
AdamArgs = structure(
    "AdamArgs",
    c_void_p="param grad exp_avg exp_avg_sq weight outcome",
    c_longlong="N",
    c_double="beta1 beta2 eps",
)
NormArgs = structure(
    "NormArgs",
    c_void_p="x y weight bias z out stats seed",
    c_uint="threshold",
    c_double="scale eps",
    c_longlong="N C",
)
NormGradArgs = structure(
    "NormGradArgs",
    c_void_p="grad grad_z z weight stats grad_x grad_y partial grad_affine seed",
    c_uint="threshold",
    c_double="scale",
    c_longlong="N C splits",
)
AttendArgs = structure(
    "AttendArgs",
    c_void_p="query keys values padding sentence out",
    c_double="scale",
    c_longlong="N H S sentences",
)
CandidateArgs = structure(
    "CandidateArgs",
    c_void_p="logits scores limits kept kept_words best words parents",
    c_double="temperature unk_penalty",
    c_longlong="N V beams pad eos unk",
)
SumsArgs = structure("SumsArgs", c_void_p="x partial out", c_longlong="N C splits")


def addresses(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


class Machine:
    """A pretended GPU; its capability, 90 for sm_90, is also its number among the pretended driver's devices."""

    def __init__(self, capability: int = 90, cache: Path | None = None, own: Path | None = None) -> None:
        self.driver = ctypes.CDLL(str(fake_driver()))
        self.library = launcher(str(fake_driver()), own)
        self.capability = capability
        self.set_up(cache or folder() / "kernels")

    def set_up(
        self, cache: Path, nvrtc: Path | None = None, marker: str = "shim", sources: Path = library.SOURCES
    ) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        words = (sources, nvrtc or fake_nvrtc(), cache, marker)
        self.library.set_up(*(str(word).encode() for word in words))

    def blank(self, like: Tensor, *shape: int) -> Tensor:
        """Memory for a result of a shape, or of ``like``'s; NaN, so that what is not written shows."""
        return like.new_full(shape, torch.nan) if shape else torch.full_like(like, torch.nan)

    def describe(
        self, x: Tensor, weight: Tensor, padding_l: int, softmax: bool, dropconnect: float, seed: Tensor | None
    ) -> Any:
        heads, width = weight.shape[-2:]
        batch_first = not x.is_contiguous()
        assert (x.transpose(0, 1) if batch_first else x).is_contiguous()
        assert (weight.transpose(0, 1) if batch_first and weight.ndim > 2 else weight).is_contiguous()
        assert x.dtype == weight.dtype
        order = (1, x.shape[0]) if batch_first else (x.shape[1], 1)
        sizes = (x.shape[0], x.shape[1], heads, x.shape[2] // heads, width, padding_l, *order)
        kind = (TYPES[x.dtype], weight.ndim == 4, softmax, dropconnect)
        return Conv(*sizes, *kind, *addresses(seed, x, weight))

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        padding_l: int,
        softmax: bool = True,
        dropconnect: float = 0.0,
        seed: Tensor | None = None,
        device: int | None = None,
        stream: int = 0,
    ) -> Tensor:
        out = self.blank(x)
        conv = self.describe(x, weight, padding_l, softmax, dropconnect, seed)
        place = (self.capability if device is None else device, ctypes.c_void_p(stream))
        self.must(self.library.conv_forward(*place, ctypes.byref(conv), ctypes.c_void_p(out.data_ptr())))
        return out

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        padding_l: int,
        softmax: bool = True,
        dropconnect: float = 0.0,
        seed: Tensor | None = None,
        wanted: tuple[bool, bool] = (True, True),
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x and of the weight; one that is not wanted stays NaN."""
        wide = weight.ndim == 2 and not softmax and x.dtype != torch.float64  # as the operators allocate it
        grad_x, grad_weight = self.blank(x), self.blank(weight.float() if wide else weight)
        conv = self.describe(x, weight, padding_l, softmax, dropconnect, seed)
        asked = (grad_x if wanted[0] else None, grad_weight if wanted[1] else None)
        pointers = map(ctypes.c_void_p, addresses(grad, *asked))
        self.must(self.library.conv_backward(self.capability, ctypes.byref(conv), *pointers))
        return grad_x, grad_weight

    def run(self, function: str, kind: Any, args: Any, *more: Any) -> None:
        self.must(getattr(self.library, function)(self.capability, kind, ctypes.byref(args), *more))

    def glu(self, x: Tensor, mask: Tensor | None, grad: Tensor | None = None) -> Tensor:
        """(T, B, 2C) to (T, B, C), or, with a gradient (T, B, C), to the gradient (T, B, 2C)."""
        time, batch, channels = x.shape[0], x.shape[1], x.shape[2] // 2
        out = self.blank(x) if grad is not None else self.blank(x, time, batch, channels)
        self.run("run_glu", TYPES[x.dtype], GluArgs(*addresses(x, grad, mask, out), time, batch, channels))
        return out

    def loss(self, logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
        """Rows of logits (N, V) with any stride, target (N,): what ``torch.ops.lightconv.smoothed_nll`` gives."""
        rows = logits.shape[0]
        sums, log_sums = torch.full((2,), torch.nan).double(), torch.full((rows,), torch.nan).double()
        pointers = addresses(logits, target, log_sums, None, sums, None, None)
        args = LossArgs(*pointers, *logits.shape, logits.stride(0), ignore)
        self.run("run_loss", TYPES[logits.dtype], args)
        return sums, log_sums

    def loss_backward(
        self, grad: Tensor, logits: Tensor, target: Tensor, log_sums: Tensor, shares: tuple[float, float], ignore: int
    ) -> Tensor:
        """See ``torch.ops.lightconv.smoothed_nll_backward``."""
        out = torch.full(logits.shape, torch.nan, dtype=logits.dtype)
        pointers = addresses(logits, target, log_sums, None, None, grad, out)
        args = LossArgs(*pointers, *logits.shape, logits.stride(0), ignore, *shares)
        self.run("run_loss_backward", TYPES[logits.dtype], args)
        return out

    def residual_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, seed: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``torch.ops.lightconv.residual_norm``."""
        z, out = self.blank(x), self.blank(x)
        sums = torch.empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
        stats = self.blank(sums, 2, *x.shape[:-1], 1)
        pointers = addresses(x, y, weight, bias, z, out, stats, seed)
        args = NormArgs(*pointers, eps=eps, N=x.numel() // x.shape[-1], C=x.shape[-1])
        self.run("run_residual_norm", TYPES[x.dtype], args, ctypes.c_double(p))
        return out, z, stats

    def residual_norm_backward(
        self,
        grad: Tensor,
        grad_z: Tensor | None,
        z: Tensor,
        weight: Tensor,
        stats: Tensor,
        p: float,
        seed: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``torch.ops.lightconv.residual_norm_backward``."""
        channels = z.shape[-1]
        grad_x, grad_affine = self.blank(z), self.blank(z, 2, channels)
        grad_y = self.blank(z) if p > 0 else z.new_empty(0)
        pointers = addresses(grad, grad_z, z, weight, stats, grad_x, grad_y, None, grad_affine, seed)
        args = NormGradArgs(*pointers, N=z.numel() // channels, C=channels)
        self.run("run_residual_norm_backward", TYPES[z.dtype], args, ctypes.c_double(p))
        return grad_x, grad_y, grad_affine

    def column_sums(self, x: Tensor) -> Tensor:
        """See ``torch.ops.lightconv.column_sums``."""
        out = self.blank(x, x.shape[1])
        self.run("run_sums", TYPES[x.dtype], SumsArgs(*addresses(x, None, out), *x.shape))
        return out

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None, sentence: Tensor, heads: int
    ) -> Tensor:
        """See ``torch.ops.lightconv.attend``."""
        out, channels = self.blank(query), query.shape[2] // heads
        pointers = addresses(query, keys, values, padding, sentence, out)
        args = AttendArgs(*pointers, channels**-0.5, query.shape[1], heads, keys.shape[1], len(keys))
        self.run("run_attend", TYPES[query.dtype], args, ctypes.c_longlong(channels))
        return out

    def step_candidates(
        self, logits: Tensor, scores: Tensor, limits: Tensor, beams: int, count: int, *rules: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``torch.ops.lightconv.step_candidates``."""
        temperature, pad, eos, unk, unk_penalty = rules
        best = self.blank(scores, len(logits) // beams, count)
        words, parents = (torch.full(best.shape, -1) for _ in range(2))
        pointers = addresses(logits, scores, limits, None, None, best, words, parents)
        args = CandidateArgs(*pointers, temperature, unk_penalty, *logits.shape, beams, int(pad), int(eos), int(unk))
        self.run("run_candidates", TYPES[logits.dtype], args, count)
        return best, words, parents

    def decide(self, norm: Tensor, size: Tensor, orders: Tensor, settings: Tensor, *changed: Tensor) -> None:
        """See ``torch.ops.lightconv.update_decide``."""
        args = DecideArgs(*addresses(norm, size, orders, settings, *changed))
        self.must(self.library.run_decide(self.capability, ctypes.byref(args)))

    def adam(
        self,
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        weight: Tensor | None,
        outcome: Tensor,
        settings: Any,
    ) -> None:
        """See ``ops.fused.update.adam``."""
        pointers = addresses(param, grad, exp_avg, exp_avg_sq, weight, outcome)
        self.run("run_adam", TYPES[grad.dtype], AdamArgs(*pointers, len(param), *settings.betas, settings.eps))

    def gather(self, begin: bool) -> int:
        """Begin or end to note launches; at the end the number of kernels that were compiled."""
        count = ctypes.c_int(-1)
        self.must(self.library.run_gather(begin, ctypes.byref(count)))
        return count.value

    def step(
        self, x: Tensor, weight: Tensor, ring: Tensor, ancestors: Tensor, position: Tensor, softmax: bool = True
    ) -> Tensor:
        heads, width = weight.shape[-2:]
        out = self.blank(x)
        sizes = {"K": width, "R": x.shape[2] // heads, "H": heads}
        case = Case(type=TYPES[x.dtype], dynamic=weight.ndim == 4, softmax=softmax, **sizes)
        args = StepArgs(*addresses(x, weight, ring, ancestors, position, out), x.shape[1], ring.shape[1])
        self.run("run_step", ctypes.byref(case), args)
        return out

    def kernels(self) -> list[str]:
        """The names of the kernels that were loaded, by any machine of this process."""
        self.driver.shim_function.restype = ctypes.c_char_p
        return [self.driver.shim_function(i).decode() for i in range(self.driver.shim_functions())]

    def launches(self) -> list[tuple[int, int, int, int, int]]:
        """(device, stream, blocks, threads, shared bytes) of each launch since the last call; then forgets them."""
        facts = (ctypes.c_longlong * 5)()
        found = []
        for i in range(self.driver.shim_launches()):
            self.driver.shim_launch(i, facts)
            found.append((facts[0], facts[1], facts[2], facts[3], facts[4]))
        self.driver.shim_forget()
        return found

    @staticmethod
    def must(message: bytes) -> None:
        if message:
            raise RuntimeError(message.decode())
