"""One port of one solution and the arrays of its backend: the object `b` of the day tests and of the screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .backend import load_backend
from .solution import resolve, resolve_serving
from .solution_types import Array, PortNames, ServingPackage

if TYPE_CHECKING:  # NumPy costs a tenth of a second, and `--help` needs none of it
    import numpy as np

    from ..chunked_prefill.model_runner import ModelRunner
    from ..packed_runner import PackedRunner

# On a Gaudi each shape is a program of its own.
GAUDI_SHAPES = {"prompt_bucket": 128, "pad_last": "chunk", "chunk_sizes": (128, 256, 512)}


class Port(PortNames):
    """The public names of a solution on one backend, and a few methods that convert arrays.

    `b.softmax`, `b.RoPE`, … are the solution's; what is defined here is given.

    Args:
        solution: "tiny_llm" (the learner's) or "tiny_llm_ref".
        backend: "mlx" or "torch".
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto", "float32", "bfloat16" or "float16": the type of the port's weights.
    """

    def __init__(self, solution: str, backend: str, device: str = "auto", dtype: str = "auto"):
        # The solution first: on a Gaudi the given hpu.py must set the environment before torch is imported.
        self.solution = resolve(solution, backend)
        self.backend_module = load_backend(backend)
        self.name = backend
        self.device = self.backend_module.pick_device(device)
        self.float_dtype = self.backend_module.default_dtype(self.device) if dtype == "auto" else dtype
        # With "auto", a faster product may round what a model has stored; an explicit float32 may not. Metal's
        # kernels round nothing.
        self.is_exact = dtype == "float32" and self.device != "gpu"

    if not TYPE_CHECKING:  # a name that the contract lacks is an error

        def __getattr__(self, name: str) -> object:
            if name == "solution":  # not yet set: __init__ failed
                raise AttributeError(name)
            try:
                return getattr(self.solution, name)
            except AttributeError:
                raise AttributeError(f"{self.solution.__name__} has no public name {name!r}") from None

    def __repr__(self) -> str:
        return f"Port({self.solution.__name__}, {self.device})"

    @property
    def serving(self) -> ServingPackage:
        """The policy of the same solution."""
        return resolve_serving(self.solution.__name__.partition(".")[0])

    def array(self, values: np.ndarray | Sequence, dtype: str | None = None) -> Array:
        """A NumPy array or a list as this backend's array on this port's device."""
        return self.backend_module.to_array(values, dtype, self.device)

    def numpy(self, array: Array) -> np.ndarray:
        if array is None:  # MLX's None would become an array of objects
            raise TypeError("an array is wanted, and this is a 'NoneType' object")
        return self.backend_module.to_numpy(array)

    def dtype(self, name: str) -> Any:
        """The backend's own object for "float32", "bfloat16" or "float16"."""
        return self.backend_module.DTYPES[name]

    def peak_bytes(self, run: Callable[[], Array]) -> int:
        """Peak bytes of memory that `run()` holds, with its result and without its inputs."""
        return self.backend_module.peak_bytes(run, self.device)

    def runner(self, model: Any, **options: Any) -> ModelRunner:
        """A `ModelRunner` for `Qwen3ModelWeek2` of this port, with these options."""
        from ..chunked_prefill.model_runner import ModelRunner

        shapes = GAUDI_SHAPES if self.device == "hpu" else {}
        of_solution = {"sampler": self.make_sampler, "create_batch_cache": self.create_batch_cache}
        return ModelRunner(model, self.backend_module, self.device, **{**of_solution, **shapes, **options})

    def packed_runner(
        self,
        model: Any,
        num_blocks: int,
        block_size: int = 128,
        *,
        kind: type[PackedRunner] | None = None,
        kv_cache_dtype: str = "auto",
        most_blocks: int | None = None,
        **options: Any,
    ) -> PackedRunner:
        """A runner for `Qwen3ModelWeek3` of this port.

        Args:
            block_size: tokens per block.
            kind: the class of the runner; `PackedRunner` when None.
            kv_cache_dtype: see `EngineOptions`.
            most_blocks: what the pools may grow to; `num_blocks` when None.
            options: of the class.
        """
        from ..backends.candidate_filter import CandidateFilter
        from ..backends.seeded_sampling import SeededSampler
        from ..packed_runner import PackedRunner

        module, serving = self.backend_module, self.serving
        candidates = CandidateFilter(self.sampler, module) if self.device == "cpu" else None
        of_solution = {
            "sampler": SeededSampler(self.sampler, module, self.device, candidates),
            "sampled": serving.Sampled,
            "flat_blocks": serving.flat_blocks,
            "create_kv_pools": partial(
                self.create_kv_pools, kv_cache_dtype=kv_cache_dtype, most_blocks=most_blocks
            ),
        }
        sizes = {"num_blocks": num_blocks, "block_size": block_size}
        options = {**of_solution, **sizes, **options}
        runner = (kind or PackedRunner)(model, module, self.device, **options)
        runner.most_blocks = most_blocks or num_blocks
        return runner

    def seed(self, number: int) -> None:
        self.backend_module.seed(number)
