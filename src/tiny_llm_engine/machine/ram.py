"""This machine: its processor, and its free RAM."""

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
STATM = Path("/proc/self/statm")  # Linux alone has it


def processor_name() -> str:
    """The processor's name, and which of the vector units that matter to these figures it has."""
    file = Path("/proc/cpuinfo")
    if not file.exists():
        return platform.processor()
    pairs = (line.partition(":") for line in file.read_text(encoding="utf-8").splitlines())
    lines = {name.strip(): value.strip() for name, _, value in pairs}
    flags = set(lines.get("flags", "").split())
    units = [name for name in ("avx2", "avx512bw", "avx512_bf16", "amx_bf16") if name in flags]
    return " ".join([lines.get("model name", platform.processor()), *units])


def load_per_core() -> float:
    """Processes that wanted a core in the last minute, for each core; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # Windows
        return 0.0


def free_ram() -> int:
    """Bytes of RAM that are still available, within a container's limit."""
    free = [_mem_available(Path("/proc/meminfo")), _cgroup_room(CGROUP)]
    return min([size for size in free if size is not None], default=_half_of_ram())


def release_heap() -> None:
    """Give what C's heap keeps for later, such as the memory of loading, back to the system, where glibc can."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _mem_available(file: Path) -> int | None:
    """Linux's own estimate of available bytes; None on other systems."""
    if not file.exists():
        return None
    lines = dict(line.split(":", 1) for line in file.read_text(encoding="utf-8").splitlines() if ":" in line)
    return 1024 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else None


def _cgroup_room(folder: Path) -> int | None:
    """Bytes left under the container's limit (cgroup v2); None without a limit."""
    try:
        limit, used = (
            (folder / name).read_text(encoding="utf-8") for name in ("memory.max", "memory.current")
        )
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.strip() != "max" else None


def _half_of_ram() -> int:
    """Half of the RAM in bytes, for macOS and Windows: they report free RAM only through a library."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 * 2**30


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM; None where the system does not tell."""
    if not STATM.exists():
        return None
    return int(STATM.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
