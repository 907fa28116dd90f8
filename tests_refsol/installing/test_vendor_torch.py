"""A vendor's torch, as in Intel's container, survives `pdm install` and `setup-torch`.

The vendor's torch is a stand-in of a few bytes, in the site packages of a Python installation that is made of links
to this one; the project's environment sees it by system site packages. PDM is the real one. The real lock file is
resolved (a dry run names what it would install), and a small project is installed for real.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tiny_llm_engine.machine.repo import ROOT

VENDORS = "2.11.0+gitabc1234"


@pytest.fixture(scope="module")
def pdm() -> str:
    found = shutil.which("pdm")
    if found is None:
        pytest.fail('pdm is not on the PATH; run these tests by `pdm run`, or `pip install "pdm[locked]"`')
    return found


@pytest.fixture(scope="module")
def container(tmp_path_factory, write_wheel) -> Path:
    """A Python installation that has a vendor's torch: its own program and site packages, the rest as links."""
    root = tmp_path_factory.mktemp("container")
    library = Path(sysconfig.get_path("stdlib"))
    (root / "bin").mkdir()
    (root / "lib" / library.name).mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), root / "bin" / library.name)
    for source, target in [(library.parent, root / "lib"), (library, root / "lib" / library.name)]:
        for entry in source.iterdir():
            if entry.name not in ("site-packages", "dist-packages", library.name):
                (target / entry.name).symlink_to(entry)
    python = root / "bin" / library.name
    unpack = "import sys, sysconfig, zipfile as z; z.ZipFile(sys.argv[1]).extractall(sysconfig.get_path('purelib'))"
    subprocess.run([python, "-c", unpack, write_wheel(root, "torch", VENDORS)], check=True)
    return python


@pytest.fixture
def project(container, tmp_path) -> Path:
    """A project whose environment was made as the book says for a Gaudi, before `pdm install`."""
    options = ["--system-site-packages", "--without-pip"]
    subprocess.run([container, "-m", "venv", *options, tmp_path / ".venv"], check=True)
    assert torch_of(tmp_path)[0] == VENDORS
    return tmp_path


def torch_of(project: Path) -> tuple[str, str, str]:
    """The torch that the environment imports: version, file, and a digest of every file around it."""
    program = "import torch; print(torch.__version__, torch.__file__)"
    command = [project / ".venv" / "bin" / "python", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=project)
    version, file = done.stdout.split()
    files = sorted(
        path for path in Path(file).parents[1].rglob("*") if path.suffix != ".pyc" and path.is_file()
    )
    digest = hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files))
    return version, file, digest.hexdigest()


def pdm_install(pdm: str, project: Path, environment: dict[str, str], *options: str) -> str:
    command = [pdm, "install", *options]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small_project(project: Path, *wheels: Path) -> None:
    needs = ", ".join(f'"{wheel.name.partition("-")[0]} @ {wheel.as_uri()}"' for wheel in wheels)
    text = f'[project]\nname = "small"\nversion = "0"\nrequires-python = ">=3.10"\ndependencies = [{needs}]\n'
    text += "[tool.pdm]\ndistribution = false\n"
    (project / "pyproject.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("lock", ["pdm.lock", "pdm.authors.lock"])
def test_a_lock_file_knows_no_torch_and_no_vendors_package(lock):
    names = re.findall(r'^name = "(.+)"$', (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE)
    assert "numpy" in names
    assert not [name for name in names if name == "torch" or name.startswith(("torch-", "habana"))]


def test_pdm_would_install_the_lock_file_without_a_torch(pdm, project, quiet_environment):
    for name in ("pyproject.toml", "pdm.lock"):
        shutil.copy(ROOT / name, project)
    plan = pdm_install(pdm, project, quiet_environment(), "--no-self", "--dry-run")
    names = re.findall(r"^\s*- (\S+) \S+$", plan, re.MULTILINE)
    assert "numpy" in names and "torch" not in names


def test_pdm_install_leaves_the_vendors_torch(pdm, project, quiet_environment, write_wheel):
    before = torch_of(project)
    small_project(project, write_wheel(project / "wheels", "leaflet", "1.0"))
    pdm_install(pdm, project, quiet_environment())
    program = "import leaflet; print(leaflet.__file__)"
    python = project / ".venv" / "bin" / "python"
    installed = subprocess.run([python, "-c", program], capture_output=True, text=True).stdout
    assert installed.startswith(str(project)), "pdm installed into another environment"
    assert torch_of(project) == before


def test_a_locked_torch_would_hide_it(pdm, project, quiet_environment, write_wheel):
    """Why torch may not be a dependency: the same steps, with one."""
    small_project(project, write_wheel(project / "wheels", "torch", "2.13.0"))
    pdm_install(pdm, project, quiet_environment())
    assert torch_of(project)[0] == "2.13.0"


def test_setup_torch_leaves_it_even_where_an_index_has_the_pinned_one(project, setup_torch, write_wheel):
    before = torch_of(project)
    write_wheel(project / "wheels", "torch", "2.13.0+cpu")
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project / "wheels")}
    done = setup_torch(project / ".venv" / "bin" / "python", **settings)
    assert done.returncode == 0, done.stderr
    line = f"setup-torch: torch {VENDORS} is the vendor's build for Gaudi: it is never touched\n"
    assert done.stdout == line
    assert torch_of(project) == before
