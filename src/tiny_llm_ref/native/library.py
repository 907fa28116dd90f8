"""Compiles a kernel's C++ file at its first use, keeps the library in the user's cache folder, and loads it. Given.

Nothing is built when the course is installed: where there is no compiler, the engine uses other kernels.
"""

import ctypes
import functools
import hashlib
import os
import pkgutil
import platform
import shlex
import shutil
import subprocess
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

from .compile_errors import readable

SWITCH = "TINY_LLM_NATIVE"  # 0: no kernels of our own
FLAGS = "TINY_LLM_NATIVE_FLAGS"  # further flags, for example -mno-avx512f
COMPILERS = ("c++", "g++", "clang++")
ALWAYS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno")
# The first set that the compiler takes: Apple's clang has no OpenMP, and for arm64 another name of the processor.
SETS_OF_FLAGS = (("-march=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
HEADERS = ("lines.h",)


class NativeError(Exception):
    """There is no such kernel on this machine; the message says why."""


class CompileError(NativeError):
    """The compiler refuses a kernel's source; the message is the compiler's."""


def compiler() -> str:
    """The program that compiles: the one that CXX names, or the first of the usual ones.

    Raises:
        NativeError: there is none, or TINY_LLM_NATIVE is 0.
    """
    if os.environ.get(SWITCH) == "0":
        raise NativeError(f"{SWITCH} is 0")
    named = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [named] if named else COMPILERS)), None)
    if found is None:
        raise NativeError(
            f"no C++ compiler: {named or ', '.join(COMPILERS)} not found; on Debian `apt install g++`"
        )
    return found


def source(name: str) -> str:
    """The text of a file of this package, as the package's loader knows it."""
    return (pkgutil.get_data(__name__.rpartition(".")[0], name) or b"").decode()


def library(name: str) -> ctypes.CDLL:
    """The compiled kernel `name`, for example "product.cpp".

    Raises:
        NativeError: there is no compiler, or the library cannot be loaded here.
        CompileError: the source does not compile.
    """
    texts = tuple((file, source(file)) for file in (name, *HEADERS))
    return _library(texts, compiler(), os.environ.get(FLAGS, ""))


@functools.cache
def _library(texts: tuple[tuple[str, str], ...], program: str, more_flags: str) -> ctypes.CDLL:
    _share_threads()
    try:
        kept = _kept(texts, program, more_flags)
        found = _whole_copy(kept) if kept else None
        if found is not None:
            return ctypes.CDLL(str(found))
        with tempfile.TemporaryDirectory() as folder:
            made = _compile(texts, program, more_flags, Path(folder))
            return ctypes.CDLL(str(_keep(made, kept) or made))  # once loaded, the file may go
    except OSError as error:
        raise NativeError(f"a kernel cannot be loaded: {error}") from error


def _kept(texts: tuple[tuple[str, str], ...], program: str, more_flags: str) -> Path | None:
    """Where the library of these texts is kept, without the checksum; None if this user has no home."""
    file = os.stat(program)
    of = (texts, more_flags, ALWAYS, SETS_OF_FLAGS, os.path.realpath(program), file.st_size, file.st_mtime_ns)
    key = hashlib.sha256(repr((of, processor())).encode()).hexdigest()[:16]
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        home = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return home / "tiny-llm" / "native" / f"{Path(texts[0][0]).stem}-{key}"


def processor() -> str:
    """The processor and its instructions: machines with others may share a home."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _named(kept: Path, content: bytes) -> Path:
    return kept.with_name(f"{kept.name}-{zlib.crc32(content):08x}.so")


def _whole_copy(kept: Path) -> Path | None:
    """The kept library whose checksum fits its name, or None: loading half a file would end the process."""
    copies = kept.parent.glob(f"{kept.name}-*.so")
    return next((copy for copy in copies if copy == _named(kept, copy.read_bytes())), None)


def _keep(made: Path, kept: Path | None) -> Path | None:
    """Copies a library into the cache, under another name first: two processes may do so at once.

    Returns:
        The copy; None if the folder cannot be written.
    """
    if kept is None:
        return None
    content = made.read_bytes()
    part = kept.with_name(f"{kept.name}-{os.getpid()}.part")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        return part.replace(_named(kept, content))
    except OSError:
        with suppress(OSError):
            part.unlink()
        return None


def _compile(texts: tuple[tuple[str, str], ...], program: str, more_flags: str, folder: Path) -> Path:
    """Writes the texts into a folder and compiles the first of them."""
    for name, text in texts:
        (folder / name).write_text(text, encoding="utf-8")
    made, said = folder / "kernel.so", ""
    for flags in SETS_OF_FLAGS:
        command = [program, *ALWAYS, *flags, *shlex.split(more_flags), texts[0][0], "-o", str(made)]
        done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode == 0:
            return made
        said = done.stderr
    raise CompileError(f"{texts[0][0]} does not compile:\n{readable(said, Path(__file__).parent)}")


def _share_threads() -> None:
    """Lets kernels use the OpenMP threads that this process has already, such as torch's.

    Two sets of threads would take the cores from each other: each waits for work in a loop.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for path in {line.split()[-1] for line in maps if "libgomp" in line}:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
