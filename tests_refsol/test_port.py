"""Which port a machine gets, and what it is told when one cannot be had."""

import pytest

from tiny_llm_kit.runtime import port as ports


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
