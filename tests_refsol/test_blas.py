"""OpenBLAS under MLX on Linux: what `preload` does, and that it changes MLX and harms torch in neither order."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from tiny_llm_kit.repo import SOURCES
from tiny_llm_kit.runtime import blas
from tiny_llm_kit.runtime.port import installed_backends


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    return monkeypatch


def test_nothing_happens_off_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert blas.preload() == "not needed"


def test_the_variable_turns_it_off(on_linux):
    on_linux.setattr(ctypes, "CDLL", None)
    on_linux.setenv(blas.SWITCH, "0")
    assert blas.preload() == "off"


def test_after_mlx_it_is_too_late(on_linux):
    on_linux.setattr(ctypes, "CDLL", None)
    on_linux.setitem(sys.modules, "mlx.core", sys)
    assert blas.preload() == "too late"


def test_an_absent_library_is_no_error(on_linux):
    on_linux.setattr(blas, "LIBRARIES", ("libno-such-library.so.0",))
    assert blas.preload() == "absent"


def test_the_first_library_that_is_there_is_loaded_globally(on_linux):
    asked = []

    def load(name, mode):
        asked.append((name, mode))
        if name == "libopenblas.so.0":
            raise OSError("not found")

    on_linux.setattr(ctypes, "CDLL", load)
    assert blas.preload() == "loaded"
    assert asked == [(name, ctypes.RTLD_GLOBAL) for name in ("libopenblas.so.0", "libopenblasp.so.0")]


PROGRAM = """
import json, sys
import numpy as np
from tiny_llm_kit.runtime import blas
outcome = blas.preload() if sys.argv[1] == "mlx" else None
rng = np.random.default_rng(0)
x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((64, 300), (300, 200)))
report = {"outcome": outcome}
from importlib import import_module
kits = {name: import_module("tiny_llm_kit.runtime.backend_" + name) for name in sys.argv[1:]}
for name, kit in kits.items():
    product = kit.to_numpy(kit.to_array(x) @ kit.to_array(w))
    report[name] = product.tobytes().hex()
    report[name + " error"] = float(abs(product - x.astype(float) @ w).max())
print(json.dumps(report))
"""


def products(*backends: str, **environment: str) -> dict:
    """One product in a fresh process that imports the ports in this order."""
    env = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-c", PROGRAM, *backends]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


if "mlx" in installed_backends():

    def test_mlx_multiplies_with_it_when_it_is_loaded():
        """Two libraries add in different orders: the last bits tell which one was called."""
        with_it, without = products("mlx"), products("mlx", **{blas.SWITCH: "0"})
        assert without["outcome"] in ("off", "not needed")
        assert (with_it["mlx"] != without["mlx"]) == (with_it["outcome"] == "loaded")
        assert max(with_it["mlx error"], without["mlx error"]) < 1e-4


if len(installed_backends()) == 2:

    @pytest.mark.parametrize("order", [("mlx", "torch"), ("torch", "mlx")], ids="-".join)
    def test_both_libraries_work_in_one_process(order):
        report = products(*order)
        assert max(report["mlx error"], report["torch error"]) < 1e-4
