"""The checks of `doctor`: each looks at one thing and names the command that repairs it."""

import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tiny_llm_engine.machine import blas, installation
from tiny_llm_engine.machine.installation import glibc, has_mlx_wheels, installed_backends
from tiny_llm_engine.machine.repo import IN_CHECKOUT, MODELS
from tiny_llm_engine.machine.torch_build import GAUDI_FIX, INTEL_MAC, Facts, is_intel_mac

from . import probe, setup_torch

GET_PYTHON = "install Python 3.10 to 3.13"
AGAIN = "pip install --force-reinstall --no-deps tiny-llm"
REINSTALL, GET_MODEL = ("pdm install", "git checkout -- models") if IN_CHECKOUT else (AGAIN, AGAIN)
PYTHONS = [(3, minor) for minor in range(10, 14)]
# A few bf16 rounding steps at the magnitude of the numbers in hpu_self_check.
BF16_TOLERANCE = 0.1


@dataclass(frozen=True)
class Check:
    """The result of a check: "missing" if the course needs it, "warn" if it does not."""

    name: str
    status: Literal["ok", "warn", "missing"]
    detail: str
    fix: str = ""


@cache
def facts() -> Facts:
    return setup_torch.gather()


def check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in PYTHONS:
        return Check("Python", "ok", version)
    after = "`pdm use -f 3.12 && pdm install`" if IN_CHECKOUT else "an environment of it"
    return Check("Python", "missing", f"{version}; it runs on 3.10 to 3.13", f"{GET_PYTHON}, then {after}")


def check_machine() -> Check:
    system, machine = facts().system, facts().machine
    if is_intel_mac(system, machine):
        return Check("machine", "missing", f"{system} {machine}: {INTEL_MAC}", "use Apple silicon or Linux")
    if system == "Windows":
        return Check("machine", "warn", f"{system} {machine}: the torch port alone (MLX has no wheel here)")
    return Check("machine", "ok", f"{system} {machine}")


def check_packages() -> Check:
    """Check the packages that are needed everywhere; MLX and its BLAS have separate checks."""
    try:
        requirements = importlib.metadata.requires("tiny-llm") or []
    except importlib.metadata.PackageNotFoundError:
        return Check("packages", "missing", "tiny-llm itself is not installed here", REINSTALL)
    names = [re.split(r"[^\w.-]", line)[0] for line in requirements if ";" not in line]
    absent = [name for name in names if setup_torch.version_of(name) is None]
    if absent:
        return Check("packages", "missing", f"absent: {', '.join(absent)}", installation.INSTALL_MLX)
    return Check("packages", "ok", f"all {len(names)} are installed")


@cache
def ask(backend: str) -> dict:
    return probe.ask(backend)


def check_mlx() -> Check:
    version = setup_torch.version_of("mlx")
    if version:
        return _working("MLX", version, "mlx", installation.INSTALL_MLX)
    if is_intel_mac(facts().system, facts().machine) or facts().system == "Windows":
        return Check("MLX", "warn", "there is no MLX for this machine; the torch port is the whole course")
    if not has_mlx_wheels():
        found = ".".join(map(str, glibc())) or "another C library"
        detail = f"its wheels need glibc 2.35, and here is {found}; the torch port is the whole course"
        return Check("MLX", "warn", detail, installation.INSTALL_WITHOUT_MLX)
    return Check("MLX", "warn", "not installed: no MLX port", installation.INSTALL_MLX)


def check_torch() -> Check:
    if installed := facts().installed:
        return _working("torch", installed, "torch", installation.INSTALL_TORCH)
    return Check("torch", "warn", "not installed: no torch port", installation.INSTALL_TORCH)


def _working(name: str, version: str, backend: str, fix: str) -> Check:
    """Ask an installed port for its device."""
    try:
        answer = ask(backend)
    except Exception as error:
        return Check(name, "missing", f"{version} is installed but does not work: {error}", fix)
    of_vendor = "; the vendor's build" if backend == "torch" and facts().is_vendors else ""
    return Check(name, "ok", f"{version} on {answer['device']}, {answer['dtype']} by default{of_vendor}")


def check_gaudi() -> Check:
    """Check Gaudi's plug-in, its mode, and every fused function against its twin.

    The course also runs without a Gaudi.
    """
    habana = facts().habana
    if not habana and not facts().gaudi:
        return Check("Gaudi", "ok", "none on this machine")
    if not habana or not facts().installed:
        return Check("Gaudi", "warn", "its plug-in and its torch are not both visible from here", GAUDI_FIX)
    plug_in = f"habana-torch-plugin {habana}, {shutil.which('hl-smi') or 'no hl-smi'}"
    try:
        found = ask("torch")["hpu"]
    except Exception as error:
        return Check("Gaudi", "warn", f"{plug_in}; torch does not work: {error}", "see the line on torch")
    if not found["available"]:
        return Check("Gaudi", "warn", f"{plug_in}; {found['reason']}", repair_of(found["reason"]))
    mode = "lazy" if found["lazy"] else "eager"
    detail = f"{plug_in}; {found['reason']}, {mode} mode; fused functions against their twins: "
    return judge_fused("Gaudi", detail, found["errors"])


def repair_of(reason: str) -> str:
    """The command that makes the device usable."""
    if "no habana_frameworks" in reason:
        return GAUDI_FIX
    if "does not load" in reason:
        return (
            "take plug-in and torch from one Gaudi release, as its container has them; unset PT_HPU_LAZY_MODE"
        )
    return "start the container with `--runtime=habana`; `hl-smi` must list a card"


def judge_fused(name: str, detail: str, errors: list[tuple[str, float | str]]) -> Check:
    """The fused functions: the difference of each from its twin, or the error with which it fails, after `detail`."""
    found = [f"{name} fails ({e})" if isinstance(e, str) else f"{name} {e:.4f}" for name, e in errors]
    detail += ", ".join(found)
    if all(not isinstance(e, str) and e <= BF16_TOLERANCE for _, e in errors):
        return Check(name, "ok", detail)
    return Check(name, "warn", detail, "report this line and the Gaudi release: the twins are right")


def check_products() -> Check:
    """Report which products of bf16 matrices an engine uses on this CPU."""
    ports = [name for name in ("torch", "mlx") if setup_torch.version_of(name) is not None]
    try:
        answers = {name: ask(name) for name in ports}
    except Exception as error:
        detail = f"a port does not work: {error}"
        return Check("bf16 products", "warn", detail, "see the lines on MLX and torch")
    lines = [f"{name}: {answer['products']}" for name, answer in answers.items()]
    kernels = [answers[ports[0]]["kernels"]] if ports else ["no port is installed"]
    return Check("bf16 products", "ok", "; ".join(lines + kernels))


def check_quantized_products() -> Check:
    """Report which activations an engine multiplies by quantised weights on this CPU."""
    if setup_torch.version_of("torch") is None:
        return Check("quantised", "ok", "nothing to choose: it matters for torch")
    try:
        return Check("quantised", "ok", ask("torch")["quantized_products"])
    except Exception as error:
        return Check("quantised", "warn", f"torch does not work: {error}", "see the line on torch")


def check_blas() -> Check:
    """Check the BLAS that MLX uses on a Linux CPU, and how much faster it is than MLX's own."""
    if facts().system != "Linux" or setup_torch.version_of("mlx") is None:
        return Check("BLAS", "ok", "nothing to do: it matters for MLX on Linux")
    try:
        now, without = ask("mlx"), probe.ask("mlx", **{blas.SWITCH: "0"})
    except Exception as error:
        return Check("BLAS", "warn", f"MLX does not work: {error}", "see the line on MLX")
    speed = f"float32, 256 rows: {now['gflops']:.3g} GFLOP/s in MLX"
    if now["blas"] == "wheel":
        return Check("BLAS", "ok", f"OpenBLAS from {blas.WHEEL}, {speed}; {without['gflops']:.3g} without it")
    if now["blas"] == "off":
        return Check("BLAS", "warn", f"OpenBLAS is turned off, {speed}", f"unset {blas.SWITCH}")
    why, fix = _no_copy()
    if now["blas"] == "distribution":
        speeds = f"{speed}; {without['gflops']:.3g} without it"
        return Check("BLAS", "warn", f"the distribution's OpenBLAS, {speeds}; {why}", fix)
    return Check("BLAS", "warn", f"no OpenBLAS, {speed}; {why}", f"{fix}; or {_openblas_line()}")


def _no_copy() -> tuple[str, str]:
    """Why the fastest BLAS is not in use, and what repairs it."""
    try:
        blas.load_copy()
    except blas.NoCopyError as error:
        return str(error), error.fix
    return f"{blas.WHEEL} is ready now", "run it again"


def _openblas_line() -> str:
    """The install command for this distribution, or for all known ones."""
    lines = [line for tool, line in blas.INSTALL_LINES.items() if shutil.which(tool)]
    return " or ".join(lines or blas.INSTALL_LINES.values())


def check_model() -> Check:
    """Check that each shipped model has a config, a tokenizer and weights."""
    folders = [file.parent for file in sorted(MODELS.glob("*/config.json"))]
    whole = [f for f in folders if (f / "tokenizer.json").exists() and list(f.glob("*.safetensors"))]
    if whole:
        return Check("shipped model", "ok", ", ".join(folder.name for folder in whole))
    return Check("shipped model", "missing", f"none in {MODELS}", GET_MODEL)


def check_any_port() -> Check:
    """Check that there is an array library."""
    if found := installed_backends():
        return Check("port", "ok", " and ".join(found))
    return Check(
        "port",
        "missing",
        "neither MLX nor torch is installed",
        f"{installation.INSTALL_MLX}, or {installation.INSTALL_TORCH}",
    )


# What a user of the library needs. `course_checks` has those of a checkout.
CHECKS: list[Callable[[], Check]] = [
    check_python,
    check_machine,
    check_packages,
    check_mlx,
    check_torch,
    check_gaudi,
    check_blas,
    check_products,
    check_quantized_products,
    check_model,
    check_any_port,
]


def run(check: Callable[[], Check]) -> Check:
    """Run a check; an error in the check itself counts as a finding."""
    name = check.__name__.removeprefix("check_")
    try:
        return check()
    except SystemExit as error:
        return Check(name, "missing", str(error), "see the detail")
    except Exception as error:
        return Check(name, "missing", f"could not be checked: {type(error).__name__}: {error}", REINSTALL)
