"""The origin of a figure: commit, machine, versions, load; and a seal that shows an edit."""

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

from tiny_llm_engine.machine.ram import processor_name
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_extensions.arguments import output_argument

RESULTS = ROOT / "benchmark_results"
NOT_KEPT = r" ?--(save|api-key)[ =]\S+| ?--header([ =](?!--)\S+)*"  # of the options of a command
NAMES = {"cuda": "nvidia-smi --query-gpu=name --format=csv,noheader", "hpu": "hl-smi -Q name -f csv,noheader"}
PACKAGES = ("tiny-llm", "mlx", "torch", "transformers", "llama-cpp-python", "xllamacpp", "mlx-lm", "numpy")


def provenance(device: str) -> dict:
    """The facts that a reader needs to judge a figure, and to repeat it. No name of a person, host or folder."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--", "src")),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "load_before": load(),
        },
        "device": _device_name(device),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES if _version(name)},
    }


def load() -> float | None:
    """Processes that wanted to run, on average over the last minute; None where the system does not count."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def warn_if_busy() -> None:
    """Print one line on standard error if more processes want to run than there are cores: times say little then."""
    now, cores = load() or 0.0, os.cpu_count() or 1
    if now > cores:
        text = f"warning: the load is {now:.1f} on {cores} cores: measured times will be too long"
        print(text, file=sys.stderr)


def _device_name(device: str) -> str:
    """With an accelerator's name: "cuda, NVIDIA H200"."""
    try:
        done = subprocess.run(NAMES[device].split(), capture_output=True, text=True, check=True)
    except (KeyError, OSError, subprocess.CalledProcessError):  # no accelerator, or no tool that works
        return device
    return ", ".join([device, *done.stdout.splitlines()[:1]])


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def seal(result: dict) -> dict:
    """The result as its file has it, where keys are texts, with a digest of everything else in it."""
    written = json.loads(json.dumps(result))
    return {**written, "seal": _digest(written)}


def is_sealed(result: dict) -> bool:
    """Whether nothing was changed since it was sealed."""
    return result.get("seal") == _digest({key: value for key, value in result.items() if key != "seal"})


def _digest(result: dict) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def keep(console: Console, result: dict, name: str, argv: list[str] | None) -> None:
    """Save a result with the options of its command, as a reader would type them without secrets, and say where."""
    typed = " ".join(sys.argv[1:] if argv is None else argv)
    result["options"] = re.sub(NOT_KEPT, "", typed).strip()
    console.print(f"kept: {save(result, name, RESULTS).name}")


def result_argument(text: str) -> str:
    """The name of a sealed result, whose file can be written: an argument's type.

    Raises:
        argparse.ArgumentTypeError: it is not a name, or the file cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        rule = "use letters, digits, and . _ - between them"
        raise argparse.ArgumentTypeError(f"{text!r} is not a name: {rule}")
    RESULTS.mkdir(exist_ok=True)
    output_argument(str(RESULTS / f"{text}.json"))
    return text


def save(result: dict, name: str, folder: Path = RESULTS) -> Path:
    """Write `name`.json, sealed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(json.dumps(seal(result), indent=1) + "\n", encoding="utf-8")
    return file
