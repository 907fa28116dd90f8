"""`pdm run doctor --hpu`: a whole run beside the imitation of a Gaudi, and every failure that it can find.

Nothing here ran on a Gaudi.
"""

import json
import os
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch  # noqa: F401 (the port that these tests need)

from tiny_llm_course.commands import doctor
from tiny_llm_course.doctor import hpu_checklist as checklist
from tiny_llm_course.doctor import hpu_run
from tiny_llm_engine.machine.repo import ROOT, SOURCES

PATHS = os.pathsep.join([str(ROOT / "tests_refsol" / "imitation_gaudi"), str(SOURCES)])


def moment(graphs: int | None, free: float) -> dict:
    return {"graph_compilation": graphs, "cpu_fallback": 0, "free": int(free * 2**30), "total": 96 * 2**30}


MOMENTS = {"before the weights": moment(0, 95), "before the warm-up": moment(3, 90)}
MOMENTS["after the warm-up"] = moment(36, 89)
GOOD = {
    "hl-smi before": "| HL-SMI Version: hl-1.24.1-fw-62 | Driver Version: 1.24.1-482 |",
    "python packages": {"habana-torch-plugin": "1.24.1.482"},
    "driver packages": dict.fromkeys(checklist.DRIVER_PACKAGES, "1.24.1-482"),
    "parts": {
        "imports": {
            "loaded before": {"torch": False, "habana_frameworks": False},
            "detection": {"available": True, "lazy": False, "reason": "8 x GAUDI2"},
            "torch": "2.11.0",
        },
        "fused": {"errors": [["RMSNorm", 0.0312], ["RoPE", 0.0]]},
        "engine": {
            "is compiled": True,
            "shapes": 36,
            "seconds": 61.2,
            "moments": MOMENTS,
            "largest bias": {"queries": 8192, "keys": 131072, "bytes": 2**31, "calls": 2},
        },
        "serving": {"answers": [[7, 8], [9]], "after": moment(36, 89)},
        "cpu": {"answers": [[7, 8], [9]]},
    },
    "exit code": 0,
    "errors": [],
}
SERVING, ENGINE = ("parts", "serving", "after"), ("parts", "engine")
DETECTION = ("parts", "imports", "detection")
UNAVAILABLE = {"available": False, "lazy": False}
# What differs in the report: (where, what), the finding, and a part of its line and of its repair.
# fmt: off
FAILURES = {
    "no hl-smi": (("hl-smi before",), None, "hl-smi", "missing", "not here", "--runtime=habana"),
    "no plug-in": (("python packages",), {}, "packages", "missing", "no habana-torch-plugin", "container"),
    "two releases": (("driver packages", "habanalabs-graph"), "1.23.0-695", "packages", "missing",
        "habana-torch-plugin 1.24.1.482, but habanalabs-graph 1.23.0-695", "one Gaudi release"),
    "no driver packages": (("driver packages",), {}, "packages", "warn", "habanalabs-thunk", "apt list"),
    "a newer release": (("python packages",), {"habana-torch-plugin": "1.25.0.3"}, "release", "warn",
        "Gaudi software 1.25.0, PyTorch 2.11.0; the newest known here is 1.24.2 with PyTorch 2.13", "send the file"),
    "another image's torch": (("parts", "imports", "torch"), "2.13.0", "release", "warn",
        "PyTorch 2.13.0, whose images have 2.11", "one image"),
    "torch came first": (("parts", "imports", "loaded before", "torch"), True, "import order", "missing",
        "torch came before hpu.py", "PT_HPU_LAZY_MODE"),
    "no card": (DETECTION, {**UNAVAILABLE, "reason": "finds no card"}, "device", "missing", "no card", "--runtime"),
    "other torch": (DETECTION, {**UNAVAILABLE, "reason": "the plug-in does not load: …"}, "device", "missing",
        "does not load", "one Gaudi release"),
    "hidden": (DETECTION, {**UNAVAILABLE, "reason": "no habana_frameworks in this environment"}, "device", "missing",
        "no habana_frameworks", "--system-site-packages"),
    "a wrong operator": (("parts", "fused", "errors"), [["RoPE", 5.8]], "operators", "missing",
        "RoPE 5.8000", "report"),
    "an operator fails": (("parts", "fused", "errors"), [["uint4", "RuntimeError: no kernel"]], "operators",
        "missing", "uint4 fails (RuntimeError: no kernel)", "report"),
    "not compiled": ((*ENGINE, "is compiled"), False, "warm-up", "missing", "nothing was compiled", "unset"),
    "a warm cache": ((*ENGINE, "moments", "before the warm-up"), moment(36, 90), "warm-up", "warn",
        "no graph compiled", "PT_HPU_RECIPE_CACHE_CONFIG"),
    "a shape too few": ((*SERVING, "graph_compilation"), 38, "graphs", "missing", "2 graphs compiled", "shape"),
    "no counts": ((*SERVING, "graph_compilation"), None, "graphs", "warn", "counts no graphs", "Gaudi release"),
    "fallbacks": (SERVING, moment(36, 89) | {"cpu_fallback": 5, "operators": {"aten::topk": 5}}, "CPU fallbacks",
        "missing", "5, 5 of them while requests ran: {'aten::topk': 5}", "names the operators"),
    "no fallback counts": ((*SERVING, "cpu_fallback"), None, "CPU fallbacks", "warn", "counts none", "report"),
    "graphs of 10 GiB": ((*ENGINE, "moments", "after the warm-up", "free"), 80 * 2**30, "memory", "missing",
        "90.00 GiB free before the warm-up, 80.00 GiB after it; an engine leaves 8.10 GiB to graphs",
        "gpu_memory_utilization"),
    "other tokens": (("parts", "serving", "answers"), [[7, 8], [4]], "tokens", "missing",
        "1 of 2 answers differ from the CPU's: [1]", "look at the operators first"),
}
# fmt: on


def changed(where: tuple[str, ...], what) -> dict:
    report = deepcopy(GOOD)
    part = report
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = what
    return report


def test_a_good_report_has_no_other_finding():
    findings = checklist.judge(GOOD)
    assert [one.status for one in findings] == ["ok"] * len(checklist.JUDGES)
    lines = [one.detail for one in findings]
    assert lines[0] == "driver 1.24.1-482"
    assert "36 shapes, 33 graphs compiled, 61 s" in lines and "all 3 of 2 answers equal the CPU's" in lines
    assert "8192 x 131072, 2,048.0 MiB: 2 calls" in lines
    assert "8 x GAUDI2, torch 2.11.0, eager mode with torch.compile" in lines


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_is_found_alone(name):
    where, what, finding, status, detail, fix = FAILURES[name]
    found = [one for one in checklist.judge(changed(where, what)) if one.status != "ok"]
    assert finding in [one.name for one in found] and len(found) <= 1 + (where == ("python packages",))
    found = [one for one in found if one.name == finding]
    assert found[0].status == status and detail in found[0].detail and fix in found[0].fix


def test_fallbacks_before_the_requests_are_a_note():
    report = deepcopy(GOOD)
    parts = report["parts"]
    for place in (parts["engine"]["moments"]["after the warm-up"], parts["serving"]["after"]):
        place["cpu_fallback"] = 2
    (found,) = [one for one in checklist.judge(report) if one.status != "ok"]
    assert (found.name, found.status) == ("CPU fallbacks", "warn")


def test_a_run_that_crashes_leaves_what_came_before(monkeypatch):
    """The parts that were printed are judged; the last line of the errors is in the finding."""
    first = json.dumps({"part": "imports", **GOOD["parts"]["imports"]})
    half = first[: len(first) // 2]
    program = f"import os, sys; print({first!r}, {half!r}, sep=chr(10), flush=True);"
    program += "sys.stderr.write('a\\nSegmentation fault'); os._exit(9)"
    monkeypatch.setattr(checklist, "COMMAND", [sys.executable, "-S", "-c", program])
    report = {**GOOD, **checklist.run()}
    *_, device, end = checklist.judge(report)
    assert device.detail.startswith("8 x GAUDI2")
    assert end.detail == "ended with 9 after the part 'imports': Segmentation fault"


def test_the_file_names_no_home_and_no_secret(monkeypatch, tmp_path):
    monkeypatch.setattr(checklist.Path, "home", lambda: Path("/home/ada"))
    checklist.write({"environment": {"PT_X": "/home/ada/.cache"}}, [], tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == {"findings": [], "environment": {"PT_X": "~/.cache"}}
    matter = ["PT_HPU_LAZY_MODE", "VLLM_API_KEY", "HOME", "HABANA_VISIBLE_DEVICES"]
    assert [name for name in matter if checklist.matters(name)] == [matter[0], matter[3]]


@pytest.fixture
def kept(pytestconfig) -> str:
    """A cache folder that stays, for the kernel that the CPU compiles."""
    return str(pytestconfig.cache.mkdir("imitation-gaudi"))


def test_a_whole_run_in_eager_mode(monkeypatch, tmp_path, capsys, kept):
    """Beside the imitation all of it is right but the machine: no hl-smi, no driver, and a release of nobody's."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.setenv("XDG_CACHE_HOME", kept)
    monkeypatch.setenv("PATH", "")
    file = tmp_path / "report.json"
    assert doctor.main(["--hpu", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "failed: hl-smi, packages" and lines[1].startswith("FAILED  hl-smi ")
    report = json.loads(file.read_text())
    assert [one["name"] for one in report["findings"] if one["status"] != "ok"] == [
        *("hl-smi", "packages", "release")
    ]
    engine, serving = report["parts"]["engine"], report["parts"]["serving"]
    assert engine["largest bias"] == {"queries": 128, "keys": 512, "bytes": 2 * 128 * 512, "calls": 1}
    assert engine["shapes"] == 41 and [len(answer) for answer in serving["answers"]] == [hpu_run.ANSWER] * 4


def test_a_device_that_does_everything_wrong_in_lazy_mode(forks, kept):
    """Every call compiles, RMSNorm falls back, RoPE turns the other way, and torch was there first."""
    settings = {"PT_HPU_LAZY_MODE": "1", "IMITATION_GAUDI": "fork,recompiles,fallback,wrong-rope"}
    done = forks.run("tiny_llm_course.doctor.hpu_run", PYTHONPATH=PATHS, XDG_CACHE_HOME=kept, **settings)
    parts = [json.loads(line) for line in done.stdout.splitlines()]
    report = {**GOOD, "parts": {part.pop("part"): part for part in parts}}
    found = {one.name: one.detail for one in checklist.judge(report) if one.status == "missing"}
    assert list(found) == ["import order", "operators", "graphs", "CPU fallbacks", "tokens"], done.stderr
    assert "aten::rms" in found["CPU fallbacks"] and "4 of 4 answers" in found["tokens"]
