"""`pdm run doctor` as a command: here, beside an imitation of a Gaudi, and where nothing is installed."""

import os
import subprocess
import sys

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT, SOURCES


def run_doctor(*python: str, **environment: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, *python, "-m", "tiny_llm_course.commands.doctor"]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_beside_the_imitation_of_a_gaudi():
    """Also a whole report of this machine, for a file: the line on a Gaudi is one of many."""
    imitation = ROOT / "tests_refsol" / "imitation_gaudi"
    done = run_doctor(PYTHONPATH=os.pathsep.join([str(imitation), str(SOURCES)]))
    assert done.stderr == "" and "\x1b" not in done.stdout
    assert [line.split("  ")[0] for line in done.stdout.splitlines()].count("ok") >= 5
    assert done.returncode == ("MISSING" in done.stdout)
    if "torch" in installed_backends():
        (line,) = [line for line in done.stdout.splitlines() if "Gaudi  " in line]
        assert line.startswith("ok") and "1 x imitation of a Gaudi, eager mode" in line
        assert "causal attention with a past 0.00" in line


def test_without_any_package_it_still_answers():
    done = run_doctor("-S")  # no site packages: nothing that PDM installed is there
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "MISSING packages" in done.stdout and "-> pdm install" in done.stdout
