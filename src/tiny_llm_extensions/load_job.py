"""What the message of a job asks for, loaded: its port, its network or a rank's part of it, its draft model."""

from dataclasses import replace
from typing import Any

from tiny_llm_engine.loading import Loading
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.hub import find_model
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.models.weights.random_weights import BlankAnswers, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.parallel.division import RankDivision

from .job import Job
from .loading import load_network, random_network
from .parallel.groups import Group
from .profiling.quantized_choice import ActivationChoice, activation_choice


def port_of(job: Job) -> Port:
    """The port that runs it.

    Raises:
        ValueError: this machine does not have the device.
    """
    return Port(job.solution, job.backend, job.device, job.dtype)


def config_of(job: Job) -> ModelConfig:
    """The whole model's configuration.

    Raises:
        CheckpointError: its file is unusable, or not here.
    """
    name, layers = job.random_weights.get("config"), job.random_weights.get("layers")
    config = shape(name) if name else find_model(job.model).config()
    return replace(config, num_hidden_layers=layers or config.num_hidden_layers)


def rounded_of(job: Job, port: Port) -> ActivationChoice | None:
    """What activations are rounded to; None if no weight is quantised.

    Raises:
        ValueError: they are to be rounded, and no weight is quantised, or the kernel does not run here.
    """
    options, stored = job.options, config_of(job).quantization
    if not (job.quantization or job.load_options.get("head_quantization") or stored):
        if options.activations not in (None, "float"):
            raise ValueError(
                f'activations is "{options.activations}", and no weight is quantised: quantise to 4bit or 8bit'
            )
        return None
    # Several ranks share the cores, so that what one of them measures says little.
    is_usual = options.num_ranks > 1 or options.cpu_products == "usual"
    is_exact = port.is_exact and stored is not None
    return activation_choice(port, options.activations or ("float" if is_usual or is_exact else None))


def loading_of(job: Job, port: Port, group: Group | None = None) -> Loading:
    """The plan of loading: of this rank's part of the model, or without a group of all of it."""
    options, division = job.options, None
    if group is not None:
        division = RankDivision(group, options.has_stages, options.enable_expert_parallel)
    return Loading(
        job.quantization,
        rounded=rounded_of(job, port),
        division=division,
        max_model_len=options.max_model_len,
        **job.load_options,
    )


def network_of(job: Job, port: Port, group: Group | None = None) -> tuple[Any, Any]:
    """This rank's part of the model, and the tokenizer; the whole model without a group.

    Raises:
        As `load_network`.
    """
    plan = loading_of(job, port, group)
    if not job.random_weights:
        return load_network(port, job.model, "week3", plan)
    network, _ = random_network(port, config_of(job), plan)
    return network, BlankAnswers(load_tokenizer(job.model))


def draft_network_of(job: Job, port: Port) -> Any:
    """The draft model of `speculative_config`, as it is stored; None without one.

    Raises:
        As `load_network`.
    """
    speculation = job.options.speculation
    if speculation is None or speculation.model is None:
        return None
    plan = {**job.load_options, "head_quantization": None, "max_model_len": job.options.max_model_len}
    return load_network(port, speculation.model, "week3", Loading(**plan))[0]
