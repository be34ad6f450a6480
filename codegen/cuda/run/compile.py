"""CUDA C++ to cubin through NVRTC, which needs no GPU; registers and spills from its log.

The library is found in the pip packages (`nvidia.cu13`, `nvidia.cuda_nvrtc`), else in the system's
CUDA; CuPy uses the same files.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from eqsat.errors import CompileError, UnsupportedError

SEVERAL_BLOCKS = r"__launch_bounds__\((\d+), ([2-9]|\d\d+)\)"  # of so many threads, so many blocks
FEW_SPILLS = 96  # bytes that a thread stores and loads for want of registers
WORTH_SPILLS = 4 / 3  # times as many blocks at once
NO_CACHE = "--no-cache"  # which older NVRTC, that keeps nothing, does not know
# 177: unused variable
OPTIONS = ("-std=c++17", "--device-int128", "--ptxas-options=-v", "--diag-suppress=177")


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: the ELF image, the compiler's log, and what each thread and block takes.

    `spills` are bytes of spill stores and loads; `shared_bytes` is static shared memory only.
    """

    data: bytes
    log: str
    registers: int
    spills: int
    shared_bytes: int


def compile_cubin(source: str, arch: str, rules: Sequence[str] = ()) -> Cubin:
    """Compile for an architecture such as sm_90a.

    Where the source asks for room for several blocks on an SM, ptxas is held to that if it would
    take more registers otherwise, and then spills few of them. By itself
    ptxas may spill a register or two to fit one more block on an SM; then it is told that one
    block is enough. Raises CompileError with the numbered source, the log and the rules that led
    to the kernel; UnsupportedError where there is no NVRTC.
    """
    several = re.search(SEVERAL_BLOCKS, source)
    free = re.sub(SEVERAL_BLOCKS, r"__launch_bounds__(\1)", source)
    cubin = _compile(free, arch, rules)
    if several:
        held = _compile(source, arch, rules)
        blocks = int(several[2])
        more = blocks >= WORTH_SPILLS * (blocks * held.registers // max(cubin.registers, 1))
        if held.registers < cubin.registers and held.spills <= FEW_SPILLS * more:
            return held
    if cubin.spills:
        one_block = re.sub(r"__launch_bounds__\((\d+)\)", r"__launch_bounds__(\1, 1)", free)
        alone = _compile(one_block, arch, rules)
        return min(cubin, alone, key=lambda c: c.spills)
    return cubin


def compile_ptx(source: str, arch: str) -> str:
    """The PTX of a kernel for an architecture such as sm_90a. Raises as `compile_cubin` does."""
    ptx, _ = _translate(source, arch.replace("sm_", "compute_"), (), "PTX")
    return ptx.decode().rstrip("\0")


def disassemble(cubin: bytes) -> str:
    """The machine code (SASS) in a cubin; UnsupportedError where nvdisasm is not installed."""
    places = [shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm"]
    places += [str(path) for folder in _packages() for path in folder.glob("*/bin/nvdisasm")]
    tool = next((place for place in places if place and Path(place).exists()), None)
    if tool is None:
        raise UnsupportedError(
            "showing machine code needs nvdisasm, which was not found. Install it with: "
            "pip install nvidia-cuda-nvdisasm."
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--print-code", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _compile(source: str, arch: str, rules: Sequence[str]) -> Cubin:
    data, log = _translate(source, arch, rules, "CUBIN")
    return Cubin(
        data,
        log,
        _number(r"Used (\d+) registers", log),
        _number(r"(\d+) bytes spill stores", log) + _number(r"(\d+) bytes spill loads", log),
        _number(r"(\d+) bytes smem", log),
    )


def _translate(source: str, arch: str, rules: Sequence[str], form: str) -> tuple[bytes, str]:
    """What NVRTC makes of the source, in the form CUBIN or PTX, and its log."""
    library = _library()
    program = ctypes.c_void_p()
    _check(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
        ),
    )
    try:
        status = _compiled(library, program, (f"-arch={arch}", *OPTIONS, *_uncached()))
        log = _text(library, program, "ProgramLog").decode(errors="replace").rstrip("\0\n")
        if status:
            raise CompileError(_complaint(source, arch, log, rules))
        return _text(library, program, form), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _compiled(library: ctypes.CDLL, program: ctypes.c_void_p, options: Sequence[str]) -> int:
    """NVRTC's status after it compiled a program."""
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    return int(library.nvrtcCompileProgram(program, len(options), array))


@lru_cache(maxsize=1)
def _uncached() -> tuple[str, ...]:
    """The option with which NVRTC compiles what it has compiled before, where it has it: beside a
    driver it keeps results, and then says nothing of the registers and spills of a kernel.
    """
    library, program = _library(), ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), b"", b"empty.cu", 0, None, None)
    _check(library, created)
    try:
        return () if _compiled(library, program, (NO_CACHE,)) else (NO_CACHE,)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _number(pattern: str, log: str) -> int:
    return sum(int(number) for number in re.findall(pattern, log))


def _complaint(source: str, arch: str, log: str, rules: Sequence[str]) -> str:
    lines = source.splitlines()
    width = len(str(len(lines)))
    numbered = "\n".join(f"{n:{width}} | {line}" for n, line in enumerate(lines, 1))
    return (
        f"NVRTC refused generated source for {arch}; this is a bug of eqsat's CUDA emitter.\n"
        f"rules that led there: {', '.join(rules) or 'none'}\n{numbered}\n{log}\n"
        f"Report it with the lines above; EQSAT_DEBUG=3 shows the kernel that was emitted."
    )


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, data))
    return data.raw


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(
            f"NVRTC failed with {library.nvrtcGetErrorString(status).decode()}. Check that its "
            f"packages are complete: pip install --force-reinstall nvidia-cuda-nvrtc."
        )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """NVRTC, its built-in functions loaded first so that it finds them."""
    tried = []
    for path in _candidates():
        tried.append(str(path))
        try:
            for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    raise UnsupportedError(
        f"CUDA kernels need the NVRTC library; none was found (tried: "
        f"{', '.join(tried) or 'none'}). Install it with: pip install 'eqsat[cuda13]' (or "
        f"'eqsat[nvrtc]' to compile without a GPU)."
    )


def _candidates() -> Iterator[Path]:
    folders = _packages()
    roots = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME")]
    for folder in folders:
        for part in ("cu13/lib", "cuda_nvrtc/lib"):
            yield from _libraries(folder / part)
    for root in (*filter(None, roots), "/usr/local/cuda"):
        for part in ("lib64", "targets/x86_64-linux/lib"):
            yield from _libraries(Path(root) / part)
    name = ctypes.util.find_library("nvrtc")
    if name:
        yield Path(name)


def _packages() -> list[Path]:
    """Folders of the pip packages below the name `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _libraries(folder: Path) -> list[Path]:
    pattern = re.compile(r"libnvrtc\.so\.\d+(\.\d+)*")
    return [p for p in sorted(folder.glob("libnvrtc.so.*")) if pattern.fullmatch(p.name)]
