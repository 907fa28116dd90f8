"""Which port a machine gets, and what it is told when one cannot be had."""

import pytest

from tiny_llm_kit import repo


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
    monkeypatch.setattr(repo.platform, "system", lambda: system)
    monkeypatch.setattr(repo.platform, "machine", lambda: machine)
    monkeypatch.setattr(repo, "installed_backends", lambda: installed)
    assert repo.default_port() == port


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
    monkeypatch.setattr(repo.platform, "system", lambda: system)
    monkeypatch.setattr(repo.platform, "machine", lambda: machine)
    monkeypatch.setattr(repo, "installed_backends", list)
    with pytest.raises(SystemExit, match=line):
        repo.require_backend(backend)
