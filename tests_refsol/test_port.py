"""Which port a machine gets, and what it is told when one cannot be had."""

import pytest

from tiny_llm_kit.engine import port as ports
from tiny_llm_kit.engine.backends import installation


@pytest.fixture(autouse=True)
def current_glibc(monkeypatch):
    monkeypatch.setattr(ports.platform, "libc_ver", lambda: ("glibc", "2.35"))


@pytest.mark.parametrize(
    ("system", "machine", "installed", "port"),
    [
        ("Darwin", "arm64", ["mlx", "torch"], "mlx"),
        ("Darwin", "arm64", ["mlx"], "mlx"),
        ("Linux", "x86_64", ["mlx", "torch"], "torch"),
        ("Linux", "aarch64", ["mlx"], "mlx"),
        ("Windows", "AMD64", ["torch"], "torch"),
        ("Windows", "AMD64", [], "torch"),
    ],
)
def test_the_default_port_fits_the_machine(monkeypatch, system, machine, installed, port):
    monkeypatch.setattr(ports.platform, "system", lambda: system)
    monkeypatch.setattr(ports.platform, "machine", lambda: machine)
    monkeypatch.setattr(ports, "installed_backends", lambda: installed)
    assert ports.default_port() == port


@pytest.mark.parametrize(
    ("libc", "installed", "port"),
    [
        (("glibc", "2.34"), [], "torch"),
        (("glibc", "2.34"), ["mlx"], "mlx"),
        (("", ""), [], "torch"),
        (("glibc", "2.41"), [], "mlx"),
    ],
)
def test_an_older_glibc_has_no_mlx_unless_somebody_built_it(monkeypatch, libc, installed, port):
    monkeypatch.setattr(ports.platform, "system", lambda: "Linux")
    monkeypatch.setattr(ports.platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(ports, "installed_backends", lambda: installed)
    assert ports.default_port() == port
    is_old = port == "torch" or installed
    assert ("pdm install --without mlx" in installation.install_line("mlx")) == bool(is_old)


@pytest.mark.parametrize(
    ("system", "machine", "backend", "line"),
    [
        ("Linux", "x86_64", "torch", "run `pdm run setup-torch`"),
        ("Linux", "x86_64", "mlx", "run `pdm install`"),
        ("Windows", "AMD64", "mlx", "course port torch"),
        ("Darwin", "x86_64", "mlx", "Intel Macs are not supported"),
        ("Darwin", "x86_64", "torch", "Intel Macs are not supported"),
    ],
)
def test_a_missing_port_says_how_to_get_it(monkeypatch, system, machine, backend, line):
    monkeypatch.setattr(ports.platform, "system", lambda: system)
    monkeypatch.setattr(ports.platform, "machine", lambda: machine)
    monkeypatch.setattr(ports, "installed_backends", list)
    with pytest.raises(SystemExit, match=line):
        ports.require_backend(backend)
