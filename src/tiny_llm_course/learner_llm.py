"""`LLM` for learners: the engine's, on their port and as far as their solution is filled."""

from os import PathLike
from typing import Any

from tiny_llm_engine.machine.installation import backend_of_environment
from tiny_llm_extensions.llm import LLM

from .address import Day
from .capabilities import check_filled, choose_backend, engine_options, network_options

SOLUTION = "tiny_llm"
COLD = ("kv_cache_dtype", "kv_offloading_size", "kv_offloading_folder", "num_quantized_blocks")
# The days of options that are off unless given.
NEEDS = {"async_scheduling": Day(4, 4), "kv_transfer_config": Day(4, 6), **dict.fromkeys(COLD, Day(4, 5))}
WITHOUT_DAY = ("auto", "fp8_e4m3")


class LearnerLLM(LLM):
    __doc__ = LLM.__doc__

    def __init__(self, model: str | PathLike[str] = "tiny-qwen3", *, backend: str = "auto", **options: Any):
        backend = choose_backend(SOLUTION, backend_of_environment(backend))
        for option, day in NEEDS.items():
            if options.get(option) and options[option] not in WITHOUT_DAY:
                check_filled(SOLUTION, backend, day, option)
        filled = {"solution": SOLUTION, "load_options": network_options(SOLUTION, backend)}
        super().__init__(model, backend=backend, **{**filled, **engine_options(SOLUTION, backend), **options})
