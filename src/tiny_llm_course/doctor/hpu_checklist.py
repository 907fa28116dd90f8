"""`pdm run doctor --hpu`: the checklist for a real Gaudi. Facts of the machine, a run on the device, and a verdict.

Standard library only: it also runs where nothing is installed. Each function `judge_…` is given the report and returns
a finding. Written from public sources, and tried against the imitation in `tests_refsol`; not run on a Gaudi.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.files import Json

from ..trace.text import counted
from .checks import Check, judge_fused, repair_of

COMMAND = [sys.executable, "-m", f"{__package__}.hpu_run"]
LIMIT = 3600  # seconds of the run: a warm-up of 36 shapes may take a good part of it
# Variables that matter here; the rest of the environment is nobody's business.
VARIABLES = (
    "PT_",
    "HABANA",
    "HLS_",
    "HCCL",
    "HCL_",
    "GC_",
    "LOG_LEVEL",
    "VLLM_",
    "FUSER_",
    "RUNTIME_SCALE",
    "XDG_CACHE",
)
PYTHON_PACKAGES = re.compile(r"habana|^torch$|neural-compressor|^vllm|tiny-llm")
DRIVER_PACKAGES = tuple(f"habanalabs-{part}" for part in ("firmware-tools", "graph", "rdma-core", "thunk"))
LISTINGS = (
    ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", "habana*"],
    ["rpm", "-qa", "--qf", "%{NAME} %{VERSION}\n", "habana*"],
)
# Gaudi software and the PyTorch of its images, the newest last: release notes of vllm-gaudi, up to 0.30.0.
RELEASES = {"1.22": "2.7", "1.23": "2.9", "1.24.0": "2.10", "1.24.1": "2.11", "1.24.2": "2.13"}
# Share of the free memory that the engine leaves to graphs, see `engine_profiling.GRAPH_SHARE`.
RESERVE = 0.9 * 0.1


def collect() -> Json:
    """All facts, of JSON's types; "parts" are what `hpu_run` has printed, by name."""
    report = {
        "machine": f"{platform.platform()}, Python {platform.python_version()}",
        "commit": output_of(["git", "-C", str(ROOT), "rev-parse", "HEAD"]),
        "environment": {name: text for name, text in os.environ.items() if matters(name)},
        "python packages": python_packages(),
        "driver packages": driver_packages(),
        "hl-smi before": output_of(["hl-smi"]),
        **run(),
    }
    return {**report, "hl-smi after": output_of(["hl-smi"])}


def matters(variable: str) -> bool:
    """Whether an environment variable belongs into the file; no secret does."""
    return variable.startswith(VARIABLES) and not re.search("KEY|TOKEN|SECRET|PASSWORD", variable)


def output_of(command: list[str]) -> str | None:
    """What a command prints; None if it is not installed, fails or does not end in a minute."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def python_packages() -> dict[str, str]:
    """The versions of the packages that belong to the plug-in, to torch and to this course."""
    installed = importlib.metadata.distributions()
    versions = (((d.metadata["Name"] or "").lower().replace("_", "-"), d.version) for d in installed)
    return {name: version for name, version in sorted(versions) if PYTHON_PACKAGES.search(name)}


def driver_packages() -> dict[str, str]:
    """The versions of the packages of the system whose names begin with habana."""
    lines = "\n".join(filter(None, map(output_of, LISTINGS))).splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def run() -> Json:
    """The parts that the run on the device has printed, how it ended, and the end of its errors."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=errors, text=True)
        clock = threading.Timer(LIMIT, child.kill)
        clock.start()
        lines = [line for line in child.stdout or () if line.startswith('{"part":') and line.endswith("}\n")]
        code = child.wait()
        clock.cancel()
        errors.seek(0)
        last = errors.read().splitlines()[-20:]
    parts = [json.loads(line) for line in lines]
    return {"parts": {part.pop("part"): part for part in parts}, "exit code": code, "errors": last}


def judge_hl_smi(report: Json) -> Check:
    table = report["hl-smi before"]
    if table is None:
        fix = "start the container with `--runtime=habana`, or put hl-smi on the PATH"
        return Check("hl-smi", "missing", "it is not here, or it fails", fix)
    driver = re.search(r"[Dd]river [Vv]ersion:?\s*([\w.-]+)", table)
    return Check("hl-smi", "ok", f"driver {driver[1]}" if driver else "its table is in the file")


def judge_packages(report: Json) -> Check:
    """Whether the plug-in and the graph compiler are of one release, and whether all packages are there."""
    plug_in = report["python packages"].get("habana-torch-plugin")
    if plug_in is None:
        return Check("packages", "missing", "no habana-torch-plugin", "run it in Intel's container")
    graph = report["driver packages"].get("habanalabs-graph")
    if graph and release(graph) != release(plug_in):
        detail = f"habana-torch-plugin {plug_in}, but habanalabs-graph {graph}"
        fix = "take both from one Gaudi release, as its container has them"
        return Check("packages", "missing", detail, fix)
    absent = [name for name in DRIVER_PACKAGES if name not in report["driver packages"]]
    detail = f"habana-torch-plugin {plug_in}, habanalabs-graph {graph}"
    if absent:
        fix = "compare with `apt list --installed | grep habana` in the installation guide"
        return Check("packages", "warn", f"{detail}; the system does not list {', '.join(absent)}", fix)
    return Check("packages", "ok", detail)


def release(version: str) -> list[str]:
    """The first three numbers of a version: 1.24.1 of 1.24.1.482 and of 1.24.1-482."""
    return re.findall(r"\d+", version)[:3]


def judge_release(report: Json) -> Check:
    """Whether PyTorch is the one of the plug-in's release, as far as the releases are known here."""
    plug_in = ".".join(release(report["python packages"].get("habana-torch-plugin", "")))
    torch = report["parts"]["imports"]["torch"] or "none"
    found, known = f"Gaudi software {plug_in or 'unknown'}, PyTorch {torch}", list(RELEASES.items())
    expected = next((of for name, of in known if f"{plug_in}.".startswith(f"{name}.")), None)
    if expected is None:
        newest = " with PyTorch ".join(known[-1])
        return Check("release", "warn", f"{found}; the newest known here is {newest}", "send the file in")
    if not torch.startswith(f"{expected}."):
        return Check("release", "warn", f"{found}, whose images have {expected}", "take both from one image")
    return Check("release", "ok", found)


def judge_imports(report: Json) -> Check:
    part = report["parts"]["imports"]
    early = [name for name, was_there in part["loaded before"].items() if was_there]
    if early:
        fix = "set PT_HPU_LAZY_MODE and the other variables in the shell, or do not import torch from sitecustomize"
        return Check("import order", "missing", f"{' and '.join(early)} came before hpu.py", fix)
    return Check("import order", "ok", "hpu.py set the environment, then came torch and the plug-in")


def judge_device(report: Json) -> Check:
    part = report["parts"]["imports"]
    found = part["detection"]
    if not found["available"]:
        return Check("device", "missing", found["reason"], repair_of(found["reason"]))
    mode = "lazy mode, HPU graphs" if found["lazy"] else "eager mode with torch.compile"
    return Check("device", "ok", f"{found['reason']}, torch {part['torch']}, {mode}")


def judge_functions(report: Json) -> Check:
    found = judge_fused("operators", "against their twins: ", report["parts"]["fused"]["errors"])
    return replace(found, status="missing" if found.fix else "ok")


def judge_warm_up(report: Json) -> Check:
    part = report["parts"]["engine"]
    if not part["is compiled"]:
        return Check("warm-up", "missing", "nothing was compiled", "unset what turns it off")
    shapes = counted(part["shapes"], "shape")
    before, after = (part["moments"][f"{when} the warm-up"] for when in ("before", "after"))
    compiled = difference(before, after, "graph_compilation")
    if compiled == 0:
        fix = "a warm cache: name an empty folder in PT_HPU_RECIPE_CACHE_CONFIG to count"
        return Check("warm-up", "warn", f"{shapes}, no graph compiled", fix)
    graphs = "the plug-in counts no graphs" if compiled is None else f"{counted(compiled, 'graph')} compiled"
    return Check("warm-up", "ok", f"{shapes}, {graphs}, {part['seconds']:.0f} s")


def judge_bias(report: Json) -> Check:
    """The largest plane of a bias: from 2 GiB on a kernel returns NaN, so it is computed in several calls."""
    bias = report["parts"]["engine"]["largest bias"]
    size = f"{bias['queries']} x {bias['keys']}, {bias['bytes'] / 2**20:,.1f} MiB"
    return Check("largest bias", "ok", f"{size}: {counted(bias['calls'], 'call')}")


def judge_recompilation(report: Json) -> Check:
    """Whether a graph was compiled while requests ran."""
    late, after = late_count(report, "graph_compilation")
    if late is None:
        return Check("graphs", "warn", "the plug-in counts no graphs", "report the Gaudi release")
    if late:
        fix = "send the file in: a step has a shape that the warm-up has not"
        return Check("graphs", "missing", f"{counted(late, 'graph')} compiled while requests ran", fix)
    return Check("graphs", "ok", f"none was compiled after the warm-up; {after['graph_compilation']} before")


def judge_fallbacks(report: Json) -> Check:
    """Whether an operator ran on the CPU: a copy there and back, at each call."""
    late, after = late_count(report, "cpu_fallback")
    if late is None:
        return Check("CPU fallbacks", "warn", "the plug-in counts none", "report the Gaudi release")
    if after["cpu_fallback"]:
        detail = f"{after['cpu_fallback']}, {late} of them while requests ran: {after.get('operators', {})}"
        fix = "send the file in: it names the operators"
        return Check("CPU fallbacks", "missing" if late else "warn", detail, fix)
    return Check("CPU fallbacks", "ok", "none")


def late_count(report: Json, name: str) -> tuple[int | None, Json]:
    """By how much a count has grown while requests ran, and all counts after that."""
    after = report["parts"]["serving"]["after"]
    return difference(report["parts"]["engine"]["moments"]["after the warm-up"], after, name), after


def difference(before: Json, after: Json, name: str) -> int | None:
    """By how much a count has grown; None where the plug-in has no such count."""
    return None if None in (before[name], after[name]) else after[name] - before[name]


def judge_tokens(report: Json) -> Check:
    device, cpu = (report["parts"][name]["answers"] for name in ("serving", "cpu"))
    wrong = [number for number, pair in enumerate(zip(device, cpu, strict=True)) if pair[0] != pair[1]]
    if wrong:
        fix = "look at the operators first; if they are right, compare PT_HPU_LAZY_MODE=0 with 1"
        detail = f"{len(wrong)} of {len(cpu)} answers differ from the CPU's: {wrong}"
        return Check("tokens", "missing", detail, fix)
    return Check("tokens", "ok", f"all {sum(map(len, cpu))} of {len(cpu)} answers equal the CPU's")


def judge_memory(report: Json) -> Check:
    """Whether the graphs of the warm-up took less than what an engine leaves to them."""
    moments = report["parts"]["engine"]["moments"]
    before, after = (moments[f"{when} the warm-up"]["free"] for when in ("before", "after"))
    used, reserve = before - after, RESERVE * before
    detail = f"{gib(before)} free before the warm-up, {gib(after)} after it"
    if used > reserve:
        fix = "give a smaller gpu_memory_utilization, fewer max_num_seqs, or enforce_eager=True"
        return Check("memory", "missing", f"{detail}; an engine leaves {gib(reserve)} to graphs", fix)
    return Check("memory", "ok", f"{detail}, of {gib(moments['before the weights']['total'])}")


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


# Each with the part of the run that it needs; None for the facts of the machine.
JUDGES: list[tuple[str | None, Callable[[Json], Check]]] = [
    (None, judge_hl_smi),
    (None, judge_packages),
    ("imports", judge_release),
    ("imports", judge_imports),
    ("imports", judge_device),
    ("fused", judge_functions),
    ("engine", judge_warm_up),
    ("engine", judge_bias),
    ("serving", judge_recompilation),
    ("serving", judge_fallbacks),
    ("engine", judge_memory),
    ("cpu", judge_tokens),
]


def judge(report: Json) -> list[Check]:
    """The findings, as far as the run came; the last one says how it ended."""
    findings = [judge(report) for part, judge in JUDGES if part is None or part in report["parts"]]
    if report["exit code"]:
        reached = list(report["parts"])[-1:] or ["nothing"]
        last = report["errors"][-1:] or ["no message"]
        detail = f"ended with {report['exit code']} after the part {reached[0]!r}: {last[0]}"
        findings.append(
            Check("run", "missing", detail, "send the file in: it has the last lines of the errors")
        )
    return findings


def write(report: Json, findings: list[Check], file: Path) -> None:
    """One file of JSON: findings first, then all facts. The user's home folder is written as ~."""
    text = json.dumps({"findings": [vars(one) for one in findings], **report}, indent=1)
    file.write_text(text.replace(str(Path.home()), "~") + "\n", encoding="utf-8")
