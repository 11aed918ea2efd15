"""Registers, spills, shared memory and instructions of CUDA kernels, compiled for a GPU that need not be there."""

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lightconv_plugin.ops import library

FRAME_SIZE, REGISTERS = 0x11, 0x2F  # EIATTR_FRAME_SIZE, EIATTR_REGCOUNT
INSTRUCTION = 16  # bytes, from sm_70 on
# of a multiprocessor: kilobytes of shared memory, of which each block takes one beside its own, and warps
SHARED = {75: 64, 80: 164, 86: 100, 87: 164, 89: 100, 90: 228, 100: 228, 103: 228, 110: 228, 120: 100, 121: 100}
WARPS = {75: 32, 80: 64, 87: 48, 90: 64, 100: 64, 103: 64, 110: 48}  # others: 48
ON_A_GPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


class Code(NamedTuple):
    """A function of an ELF image: registers and bytes of local memory of a thread, which are spills; instructions."""

    registers: int
    spilled: int
    instructions: int


def code_of(cubin: bytes) -> Code:
    """Read the one function of an image: its attributes are in .nv.info, its instructions in .text.NAME."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    found, instructions = {}, 0
    for name, _, _, _, offset, length in sections:
        at = sections[names][4] + name
        title = cubin[at : cubin.index(b"\0", at)]
        if title.startswith(b".text."):
            instructions = length // INSTRUCTION
        if title != b".nv.info":
            continue
        end = offset + length
        while offset < end:
            form, attribute, extra = struct.unpack_from("<BBH", cubin, offset)
            if form == 4 and extra == 8:
                found[attribute] = struct.unpack_from("<I", cubin, offset + 8)[0]
            offset += 4 + (extra if form == 4 else 0)
    return Code(found[REGISTERS], found[FRAME_SIZE], instructions)


class Compiled(NamedTuple):
    """A kernel's launch and its code; ``warps``: those that a multiprocessor has room for at once."""

    launch: library.Launch
    code: Code
    warps: int

    @property
    def title(self) -> str:
        """The pass or part of it, as in row_sums, of a name such as lightconv_light_conv_row_sums_f16_aligned."""
        return re.sub(r"lightconv_(light|dynamic)_conv_|_(f32|f16|bf16|f64)(_.*|$)", "", self.launch.kernel)


def compiled(launch: library.Launch, capability: int) -> Compiled:
    """Read a launch's code from the cache, whose files begin with a digest of 16 characters."""
    code = code_of(launch.code.read_bytes()[16:])
    warps = launch.threads // 32
    by_registers = 65_536 // (32 * -(-code.registers // 8) * 8) // warps
    by_memory = SHARED[capability] * 1024 // (launch.shared_bytes + 1024)
    blocks = min(by_registers, by_memory, WARPS.get(capability, 48) // warps, 32)
    return Compiled(launch, code, blocks * warps)


def compile_for(capability: int, call: Callable[[], object]) -> list[Compiled]:
    """Return the kernels that ``call`` would launch on a GPU: it calls operators by `on_a_gpu`, on CPU tensors."""
    with library.compiled_together(capability) as launches:
        call()
    return sorted((compiled(launch, capability) for launch in launches), key=lambda each: each.launch.kernel)


def on_a_gpu(operator: str, *args: Any) -> Any:
    """Call what an operator of the library has for a GPU."""
    return getattr(torch.ops.lightconv, operator).default.redispatch(ON_A_GPU, *args)
