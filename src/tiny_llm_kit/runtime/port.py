"""One port of one solution: the object `b` of the day tests and of the screens."""

from collections.abc import Callable
from importlib import import_module

import numpy as np

from .model_runner import ModelRunner
from .solution import resolve


class Port:
    """The public names of a solution on one backend, and the few calls that bring arrays in and out.

    `b.softmax`, `b.RoPE`, … are the solution's; everything defined here is the kit's.

    Args:
        solution: "tiny_llm" (the learner's) or "tiny_llm_ref".
        backend: "mlx" or "torch".
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto", "float32", "bfloat16" or "float16": the type of the port's weights.
    """

    def __init__(self, solution: str, backend: str, device: str = "auto", dtype: str = "auto"):
        # The solution first: on a Gaudi its hpu.py must set the environment before torch is imported.
        self.solution = resolve(solution, backend)
        self.kit = import_module(f"tiny_llm_kit.runtime.backend_{backend}")
        self.name = backend
        self.device = self.kit.pick_device(device)
        self.float_dtype = self.kit.default_dtype(self.device) if dtype == "auto" else dtype

    def __getattr__(self, name: str):
        if name == "solution":  # not yet set: __init__ failed
            raise AttributeError(name)
        try:
            return getattr(self.solution, name)
        except AttributeError:
            raise AttributeError(f"{self.solution.__name__} has no public name {name!r}") from None

    def __repr__(self) -> str:
        return f"Port({self.solution.__name__}, {self.device})"

    def array(self, values, dtype: str | None = None):
        """A NumPy array or a list as this backend's array on this port's device."""
        return self.kit.to_array(values, dtype, self.device)

    def numpy(self, array) -> np.ndarray:
        return self.kit.to_numpy(array)

    def dtype(self, name: str):
        """The backend's own object for "float32", "bfloat16" or "float16"."""
        return self.kit.DTYPES[name]

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """The most memory in bytes that `run()` held at once beyond its inputs; `run` returns its result."""
        return self.kit.peak_bytes(run, self.device)

    def runner(self, model, **options) -> ModelRunner:
        """A model of this port as what the policy runs; options as `ModelRunner` has them."""
        shapes = {"prompt_bucket": 128, "chunk_sizes": (128, 256, 512)} if self.device == "hpu" else {}
        options = {"sampler": self.make_sampler, **shapes, **options}
        return ModelRunner(model, self.kit, self.device, **options)

    def seed(self, number: int) -> None:
        self.kit.seed(number)
