"""The `LLM` that users import: it opens an engine with all that is put on it.

A solution's package exports it: `from tiny_llm_ref import LLM, SamplingParams`.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from os import PathLike
from typing import Any

from tiny_llm_engine.llm import PlainLLM, check_quantization, chosen_backend
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Network

from .cold_blocks.cold_store import model_name, weights_name
from .engine_options import EngineOptions, check_policy, options_on
from .job import Job
from .load_job import config_of, draft_network_of, network_of, port_of
from .open_engine import open_engine
from .parallel.rank_parts import check_ranks
from .parallel.start import ranks_of
from .vllm_arguments import plain_dtype, without_vllms


class LLM(PlainLLM):
    """A model with Week 3's engine. Keeps its prefix cache from call to call.

    Several threads may share it. Their calls take turns: `generate`, `chat`, `stream`, `reset_prefix_cache` and `close`
    wait until the call before them has returned. A server runs requests of several threads together. A listener or
    callback of a call must not make another one on its thread: that raises a RuntimeError.

    Use it as a context manager, or call `close`: both give its memory back.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id.
        quantization: "4bit" or "8bit" quantises the layers' weights while loading.
        head_quantization: "4bit" or "8bit" quantises the output head while loading, which is the largest matrix of a
            small model. The embedding stays as it is. Of the shipped model's logits after 12 prompts, whose standard
            deviation was 2.26, the largest error was 0.10 in 8 bits and 1.10 in 4, and the most probable token was the
            same for 12 and for 9 of them.
        backend: "mlx" or "torch"; "auto" reads the environment variable TINY_LLM_BACKEND, and is the machine's default
            without it: mlx on a Mac, torch elsewhere, if it is installed.
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        solution: whose code runs.
        load_options: further fields of `Loading`.
        options: of the engine, see `EngineOptions`. Arguments of vLLM's that change nothing here are taken too, with a
            warning that names them; see `vllm_arguments`.

    Raises:
        CheckpointError: the model's files are unusable, or not here.
        RankError: with several ranks, one cannot start.
        TypeError: there is no such option.
        ValueError: a value is out of range, there is no such device, or no KV block fits; or an argument of vLLM's
            would change something that this engine does not have.
    """

    def __init__(
        self,
        model: str | PathLike[str] = "tiny-qwen3",
        *,
        quantization: str | None = None,
        head_quantization: str | None = None,
        backend: str = "auto",
        device: str = "auto",
        dtype: str = "auto",
        solution: str = "tiny_llm_ref",
        load_options: Mapping[str, Any] | None = None,
        **options: Any,
    ):
        # Checked before anything is loaded.
        options = without_vllms(model, options)
        checked = asdict(EngineOptions(**options))
        check_quantization("quantization", quantization)
        check_quantization("head_quantization", head_quantization)
        given = {**(load_options or {}), "head_quantization": head_quantization}
        where = solution, chosen_backend(backend), device, plain_dtype(dtype)
        chosen = {name: checked[name] for name in options}
        self.engine = open_job(Job(*where, str(model), quantization, given, chosen))

    @classmethod
    def of_job(cls, job: Job, tokenizer: Any = None) -> "LLM":
        """The `LLM` of a job, for example with random weights.

        Args:
            tokenizer: instead of the model's.

        Raises:
            As `LLM`.
        """
        made = cls.__new__(cls)
        made.engine = open_job(job, tokenizer)
        return made

    @classmethod
    def of(
        cls,
        port: Port,
        network: Network,
        tokenizer: Any,
        *,
        draft_network: Network | None = None,
        **options: Any,
    ) -> "LLM":
        """An `LLM` of a model that is loaded already, as is the draft model of `speculative_config`, if any."""
        made = cls.__new__(cls)
        checked = options_on(port.device, options)
        made.engine = open_engine(port, network, tokenizer, checked, draft_network=draft_network)
        return made


def open_job(job: Job, tokenizer: Any = None) -> LLMEngine:
    """The engine of a job, with the other ranks that it asks for.

    Args:
        tokenizer: instead of the model's.

    Raises:
        RankError: a rank cannot start.
        As `LLM`.
    """
    port = port_of(job)
    job = replace(job, device=port.device)  # "auto" is chosen now, and the default of an option depends on it
    options = job.options
    check_policy(port.serving, options.policy)
    if options.num_ranks > 1:  # checked before any process is started
        config = config_of(job)
        check_ranks(port.serving, config, options.tensor_parallel_size, options.enable_expert_parallel)
        port.serving.stage_layers(config.num_hidden_layers, options.pipeline_parallel_size, 0)
    ranks = ranks_of(port, job)
    try:
        network, models_own = network_of(job, port, ranks.group)
        draft = draft_network_of(job, port)
        name = model_name(job) if options.kv_offloading_folder else None
        weights = weights_name(job) if options.kv_transfer_config is not None else None
        parts = {"ranks": ranks, "draft_network": draft, "model": name, "weights": weights}
        return open_engine(port, network, tokenizer or models_own, options, **parts)
    except BaseException:
        ranks.close()
        raise
