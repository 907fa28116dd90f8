"""Compiles a kernel's C++ file at its first use, keeps the library in the user's cache folder, and loads it.

Nothing is built when the course is installed: where there is no compiler, the engine uses other kernels.
"""

import ctypes
import functools
import hashlib
import os
import pkgutil
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tiny_llm_engine.machine.user_cache import user_cache, whole_copies, with_checksum

from .compile_errors import readable

SWITCH = "TINY_LLM_NATIVE"  # 0: no kernels of our own
FLAGS = "TINY_LLM_NATIVE_FLAGS"  # further flags, for example -mno-avx512f
# GCC first: its OpenMP is the one that torch's Linux wheels bring.
COMPILERS = ("g++", "c++", "clang++")
# A function that forgets its `return` would run into the next one.
ALWAYS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-Werror=return-type")
# The first set that the compiler takes: some have another name of the processor on arm64, and some have no OpenMP.
ONE_THREAD = (("-march=native",), ("-mcpu=native",), ())
WITH_OPENMP = tuple((*flags, "-fopenmp") for flags in ONE_THREAD)
# On a Mac none: Apple's compiler has no OpenMP, and LLVM's ends a process in which torch has brought another copy.
SETS_OF_FLAGS = (() if sys.platform == "darwin" else WITH_OPENMP) + ONE_THREAD
# Linux lets a process use the matrix unit of an x86 processor when it asks: `arch_prctl`, and what is asked for.
ASK_FOR_UNIT = 158, 0x1023, 18
NO_UNIT = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
OPENMP_LIBRARY = re.compile(r"/(libgomp|libomp|libiomp5)[^/]*$")
OF_GCC, OF_LLVM = b"GOMP_", b"__kmpc_"  # what begins the names of the OpenMP of each
SECONDS = 120  # for a compiler; a kernel takes one or two
GIVEN = __name__.rpartition(".")[0]  # the package of the kernels without blanks, and of the header
HEADERS = "lines.h", "kept.h"
UNIT = (("unit.h", GIVEN),)  # what those with a way of a matrix unit include
KEPT_DAYS = 30  # a library in the cache, after it was loaded last

Flags = tuple[str, ...]
Texts = tuple[tuple[str, str], ...]  # names and contents of files; the first one is compiled


class NativeError(Exception):
    """There is no such kernel on this machine; the message says why."""


class CompileError(NativeError):
    """The compiler refuses a kernel's source; the message is the compiler's."""


def compiler() -> str:
    """The command that compiles: CXX, which may have several words, or the first of the usual ones.

    Raises:
        NativeError: no compiler was found, or TINY_LLM_NATIVE is 0.
    """
    if os.environ.get(SWITCH) == "0":
        raise NativeError(f"{SWITCH} is 0")
    named = os.environ.get("CXX")
    for words in [_words("CXX", named)] if named else [[name] for name in COMPILERS]:
        program = shutil.which(words[0]) if words else None
        if program:
            return shlex.join([program, *words[1:]])
    raise NativeError(
        f"no C++ compiler: {named or ', '.join(COMPILERS)} not found; on Debian `apt install g++`"
    )


def _words(name: str, line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise NativeError(f"{name} is {line!r}: {error}") from None


def source(name: str, package: str = GIVEN) -> str:
    """The text of a file of a package, as the package's loader knows it."""
    return (pkgutil.get_data(package, name) or b"").decode()


def library(
    name: str, package: str = GIVEN, included: Sequence[tuple[str, str]] = (), flags: Flags = ()
) -> ctypes.CDLL:
    """The compiled kernel `name` of a package, for example "product.cpp" of "tiny_llm.native".

    Args:
        included: files that it includes beside the headers, and the package of each.
        flags: of the compiler, beside those of all kernels.

    Raises:
        NativeError: there is no compiler, or the library cannot be loaded here.
        CompileError: the source does not compile.
    """
    files = (name, package), *((header, GIVEN) for header in HEADERS), *included
    texts = tuple((file, source(file, owner)) for file, owner in files)
    try:
        return _library(
            texts, compiler(), shlex.join((*flags_here(), *flags)) + " " + os.environ.get(FLAGS, "")
        )
    except _CompilerSays as error:
        where = Path(getattr(sys.modules[package], "__file__", None) or ".").parent
        raise CompileError(f"{name} does not compile:\n{readable(str(error), where)}") from None


@functools.cache
def flags_here() -> Flags:
    """What the compiler is told about this process: not to use a matrix unit that is refused to it."""
    if sys.platform != "linux" or "amx_tile" not in processor():
        return ()
    return () if ctypes.CDLL(None).syscall(*ASK_FOR_UNIT) == 0 else NO_UNIT


class _CompilerSays(Exception):
    """What a compiler prints about a source that it refuses."""


@functools.cache
def _library(texts: Texts, command: str, more_flags: str) -> ctypes.CDLL:
    has_gccs_threads = _share_threads() == "libgomp"
    try:
        with tempfile.TemporaryDirectory() as folder:
            for sets in (SETS_OF_FLAGS, ONE_THREAD):
                for file in _files(texts, command, more_flags, sets, Path(folder)):
                    # Clang's OpenMP brings threads of its own. Between operations of torch, which waits with GCC's,
                    # products on 2 cores took 1.2 to 1.5 times as long as on one thread.
                    code = file.read_bytes()
                    if has_gccs_threads and OF_LLVM in code:
                        break
                    with suppress(OSError):  # a folder that allows no programs: another one may
                        loaded = ctypes.CDLL(str(file))  # once loaded, the file may go
                        if "\n#pragma omp" in texts[0][1] and OF_GCC not in code and OF_LLVM not in code:
                            _say_one_thread(command)
                        return loaded
    except OSError as error:
        raise NativeError(f"a kernel cannot be compiled: {error}") from error
    raise NativeError(f"a kernel cannot be loaded from {tempfile.gettempdir()}")


@functools.cache
def _say_one_thread(command: str) -> None:
    """Prints why kernels do not use the other cores: once, and not for each of them."""
    print(f"kernels in C++ run on one thread: {command} has no OpenMP for this process", file=sys.stderr)


def _files(
    texts: Texts, command: str, more_flags: str, sets: Sequence[Flags], folder: Path
) -> Iterator[Path]:
    """Where the library of these texts is: in the cache, or in `folder` after it is compiled."""
    kept = _kept((texts, command, more_flags, sets), Path(texts[0][0]).stem)
    for copy in whole_copies(kept) if kept else ():
        with suppress(OSError):
            os.utime(copy)  # `_remove_unused` goes by the time of the last use
        yield copy
    flags = *_accepted_flags(command, sets), *_words(FLAGS, more_flags)
    made = _compile(texts, command, flags, folder)
    copies = _keep(made, kept)
    yield from (made, *copies)


def _kept(of: tuple[Texts, str, str, Sequence[Flags]], stem: str) -> Path | None:
    """Where the library of these texts, command and flags is kept, without the checksum; None without a home."""
    file = os.stat(shlex.split(of[1])[0])
    key = repr((of, ALWAYS, file.st_size, file.st_mtime_ns, processor()))
    with suppress(OSError):
        return user_cache() / "native" / f"{stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return None


def processor() -> str:
    """The processor and its instructions: machines with others may share a home."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {_name_on_a_mac() or platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _name_on_a_mac() -> str:
    """For example "Apple M2"; empty elsewhere."""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _keep(made: Path, kept: Path | None) -> list[Path]:
    """Copies a library into the cache, under another name first: two processes may do so at once.

    Returns:
        The copy; nothing if the folder cannot be written.
    """
    if kept is None:
        return []
    content, part = made.read_bytes(), None
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(kept.parent)
        with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            file.write(content)
        return [part.replace(with_checksum(kept, content))]
    except OSError:
        with suppress(OSError):
            if part is not None:
                part.unlink()
        return []


def _remove_unused(folder: Path) -> None:
    """Removes libraries that no process has loaded for `KEPT_DAYS`, and files that were never finished.

    A process that has loaded such a library keeps it; one that is about to load it compiles it again.
    """
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for file in folder.iterdir():
        with suppress(OSError):  # another process removed it, or it is another user's
            if file.suffix in (".so", ".part") and file.stat().st_mtime < oldest:
                file.unlink()


def _compile(texts: Texts, command: str, flags: Flags, folder: Path) -> Path:
    """Writes the texts into a folder and compiles the first of them."""
    for name, text in texts:
        (folder / name).write_text(text, encoding="utf-8")
    made = folder / "kernel.so"
    done = _run(command, *flags, texts[0][0], "-o", str(made), folder=folder)
    if done.returncode == 0:
        return made
    raise _CompilerSays(done.stderr)


@functools.cache
def _accepted_flags(command: str, sets: Sequence[Flags]) -> Flags:
    """The first set of flags with which the compiler makes a library, tried on an empty file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.cpp").touch()
        tries = (_run(command, *flags, "empty.cpp", "-o", "empty.so", folder=folder) for flags in sets)
        return next((flags for flags, done in zip(sets, tries, strict=True) if done.returncode == 0), ())


def _run(command: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    whole = [*shlex.split(command), *ALWAYS, *arguments]
    text = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
    null = subprocess.DEVNULL
    with subprocess.Popen(whole, cwd=folder, stdin=null, start_new_session=True, **text) as process:
        try:
            out, errors = process.communicate(timeout=SECONDS)
        except BaseException as error:  # Ctrl-C too: what a compiler has started would run on
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise NativeError(f"{command} was not done after {SECONDS} s") from None
    return subprocess.CompletedProcess(whole, process.returncode, out, errors)


def _share_threads() -> str:
    """Lets kernels use the OpenMP threads that this process has already, such as torch's.

    Two sets of threads would take the cores from each other: each waits for work in a loop. LLVM's library also has the
    functions that GCC calls.

    Returns:
        "libgomp" if GCC's are here, else "libomp" or "libiomp5" if LLVM's are, else nothing.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    paths = {line.split(maxsplit=5)[-1] for line in maps if OPENMP_LIBRARY.search(line)}
    shared = filter(_is_shared, sorted(paths, key=_openmp_name))
    return next(map(_openmp_name, list(shared)), "")


def _openmp_name(path: str) -> str:
    return next(iter(OPENMP_LIBRARY.findall(path)), "")


def _is_shared(path: str) -> bool:
    """Makes the functions of a library that is loaded already visible to those which come later."""
    with suppress(OSError):  # its file was replaced meanwhile
        return bool(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))
    return False
