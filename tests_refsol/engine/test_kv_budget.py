"""How many blocks the pool gets: devices that know their memory are stand-ins here, and no such device was used."""

from importlib import import_module
from types import SimpleNamespace

import pytest

from tiny_llm_engine.machine import ram as machine
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.weights.random_weights import QWEN3_06B
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.profiling import kv_budget
from tiny_llm_extensions.profiling.kv_budget import blocks_that_fit, kv_bytes_per_token

GIB = 2**30
MIB = 2**20


def stand_in(free: int, total: int) -> SimpleNamespace:
    """A backend whose device has so many bytes."""
    return SimpleNamespace(device_memory=lambda device: (free, total))


def on_a_device(
    utilization: float, free: int = 70 * GIB, peak: int = 5 * GIB, device: str = "cuda", **options
) -> int:
    return blocks_that_fit(
        stand_in(free, 80 * GIB), device, 16 * MIB, 10, utilization, lambda: peak, **options
    )


@pytest.mark.parametrize(("utilization", "left"), [(0.9, 57), (0.5, 25), (1.0, 65)])
def test_a_device_gives_its_share_less_what_is_used_and_what_a_step_needs(utilization, left):
    """80 GiB, 10 of them in use, a step of 5: the pad block comes out of the rest, and `most` does not count."""
    assert on_a_device(utilization) == left * 64 - 1


@pytest.mark.parametrize(("utilization", "left"), [(0.9, 52.65), (1.0, 58.5)])
def test_an_hpu_gives_its_share_of_what_the_profile_leaves_less_a_reserve_for_graphs(utilization, left):
    """70 GiB free less 5 of a step, as vLLM's plug-in computes it; a tenth is for graphs, unless there are none."""
    assert on_a_device(utilization, device="hpu", graph_share=0.1) == int(left * 64) - 1
    assert on_a_device(utilization, device="hpu") == int(65 * utilization * 64) - 1


def test_an_hpu_that_keeps_memory_after_the_profile_has_less_left():
    left = iter([(70 * GIB, 80 * GIB), (50 * GIB, 80 * GIB)])
    backend_module = SimpleNamespace(device_memory=lambda device: next(left))
    assert blocks_that_fit(backend_module, "hpu", 16 * MIB, 10, 1.0, lambda: 5 * GIB) == 50 * 64 - 1


@pytest.mark.parametrize("options", [{"free": 20 * GIB}, {"peak": 70 * GIB}])
def test_a_device_without_room_is_one_line_with_the_knobs(options):
    with pytest.raises(
        ValueError, match=r"0 MiB are left .* raise gpu_memory_utilization, lower max_num_batched"
    ):
        on_a_device(0.7, **options)


def on_a_cpu(monkeypatch, ram: int, most: int) -> int:
    def never() -> int:
        raise AssertionError("a CPU needs no profiling run")

    monkeypatch.setattr(kv_budget, "free_ram", lambda: ram)
    backend_module = SimpleNamespace(device_memory=lambda device: None)
    return blocks_that_fit(backend_module, "cpu", 16 * MIB, most, 0.9, never)


def test_a_cpu_gives_a_quarter_of_its_free_ram_and_no_more_than_is_of_use(monkeypatch):
    assert on_a_cpu(monkeypatch, 8 * GIB, 1000) == 127
    assert on_a_cpu(monkeypatch, 8 * GIB, 50) == 50
    with pytest.raises(ValueError, match="give num_blocks"):
        on_a_cpu(monkeypatch, 100 * MIB, 50)


@pytest.mark.parametrize("port", installed_backends())
def test_no_port_knows_the_memory_of_a_cpu(port):
    backend_module = __import__(f"tiny_llm_engine.backends.backend_{port}", fromlist=["device_memory"])
    assert backend_module.device_memory("cpu") is None


@pytest.mark.port("torch")
def test_torch_asks_the_device_that_it_is_given(monkeypatch):
    from tiny_llm_engine.backends import backend_torch

    hpu = SimpleNamespace(mem_get_info=lambda: (3, 5))
    monkeypatch.setattr(backend_torch.torch, "hpu", hpu, raising=False)
    assert backend_torch.device_memory("hpu") == (3, 5)


@pytest.mark.port("mlx")
def test_metal_has_what_it_recommends_less_what_is_in_use(monkeypatch):
    from tiny_llm_engine.backends import backend_mlx

    found = {"max_recommended_working_set_size": 5 * GIB}
    monkeypatch.setattr(backend_mlx.mx, "device_info", lambda: found)
    monkeypatch.setattr(backend_mlx.mx, "get_active_memory", lambda: GIB)
    assert backend_mlx.device_memory("gpu") == (4 * GIB, 5 * GIB)


def test_a_token_of_the_06b_shape_in_bf16_keeps_112_kib():
    assert kv_bytes_per_token(QWEN3_06B, "bfloat16") == 2 * 28 * 8 * 128 * 2 == 112 * 1024


def test_free_ram_is_what_linux_or_the_container_says(monkeypatch, tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable:     700 kB\n", encoding="utf-8")
    assert machine._mem_available(meminfo) == 700 * 1024
    assert machine._mem_available(tmp_path / "none") is None
    assert machine._cgroup_room(tmp_path) is None
    (tmp_path / "memory.current").write_text("40\n", encoding="utf-8")
    for limit, room in (("max\n", None), ("100\n", 60), ("30\n", 0)):
        (tmp_path / "memory.max").write_text(limit, encoding="utf-8")
        assert machine._cgroup_room(tmp_path) == room
    monkeypatch.setattr(machine, "_cgroup_room", lambda folder: 60)
    monkeypatch.setattr(machine, "_mem_available", lambda file: 50)
    assert machine.free_ram() == 50


TORCH, MLX = pytest.mark.port("torch"), pytest.mark.port("mlx")


@pytest.mark.parametrize(
    ("port", "device", "library", "call", "called"),
    [
        pytest.param("torch", "cuda", "torch.cuda", "empty_cache", ["collect", "empty_cache"], marks=TORCH),
        pytest.param("torch", "cpu", "torch.cuda", "empty_cache", [], marks=TORCH),
        pytest.param("mlx", "gpu", "mlx.core", "clear_cache", ["collect", "clear_cache"], marks=MLX),
        pytest.param("mlx", "cpu", "mlx.core", "clear_cache", [], marks=MLX),
    ],
)
def test_an_accelerator_gets_back_what_closed_engines_held(monkeypatch, port, device, library, call, called):
    """On CUDA the second `LLM` of a process found no memory: the first one's goes with a collection."""
    calls = []
    backend = import_module(f"tiny_llm_engine.backends.backend_{port}")
    monkeypatch.setattr(backend, "gc", SimpleNamespace(collect=lambda: calls.append("collect")))
    monkeypatch.setattr(import_module(library), call, lambda: calls.append(call))
    backend.release_memory(device)
    assert calls == called


@TORCH
def test_memory_is_released_before_an_engine_measures_and_when_it_closes(monkeypatch):
    from tiny_llm_engine.backends import backend_torch

    released = []
    monkeypatch.setattr(backend_torch, "release_memory", released.append)
    llm = LLM("tiny-qwen3", backend="torch", device="cpu", num_blocks=4)
    assert released == ["cpu"]
    llm.close()
    llm.close()
    assert released == ["cpu", "cpu"]
