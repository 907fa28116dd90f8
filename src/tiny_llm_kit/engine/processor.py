"""The processor of this machine."""

import platform
from pathlib import Path


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
