"""`LLM` for learners: the engine's, on their port and as far as their solution is filled."""

from os import PathLike
from typing import Any

from ..engine.backends.installation import backend_of_environment
from ..engine.llm import LLM
from .address import Day
from .capabilities import check_filled, choose_backend, engine_options, network_options

SOLUTION = "tiny_llm"


class LearnerLLM(LLM):
    __doc__ = LLM.__doc__

    def __init__(self, model: str | PathLike[str] = "tiny-qwen3", *, backend: str = "auto", **options: Any):
        backend = choose_backend(SOLUTION, backend_of_environment(backend))
        if options.get("async_scheduling"):
            check_filled(SOLUTION, backend, Day(4, 4), "async_scheduling")
        filled = {"solution": SOLUTION, "load_options": network_options(SOLUTION, backend)}
        super().__init__(model, backend=backend, **{**filled, **engine_options(SOLUTION, backend), **options})
