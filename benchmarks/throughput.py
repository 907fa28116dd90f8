"""`pdm run bench-throughput`: requests and tokens per second of a workload, compared with baselines.

Our engine answers all requests as `LLM.generate` does. `--preset chunked-prefill` measures the workloads of Day 2.7
instead, with chunks of several sizes; `--preset chunked-prefill --help` has its options. `--preset guide` is a run of
vLLM's guide for Gaudi at a 64th of its size. `--preset speed` and `--preset drafts` measure a real model beside
llama.cpp.
"""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import ends_at_a_blank, network_options
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_course.trace.workload import Workload
from tiny_llm_engine.backends.samples import in_turns
from tiny_llm_engine.machine.terminal import command
from tiny_llm_engine.models.quantization import QUANTIZATIONS
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import DTYPES, model_argument
from tiny_llm_extensions.job import Job
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.load_job import config_of, draft_network_of, loading_of, network_of, rounded_of
from tiny_llm_extensions.loading import random_network

from . import chunked_prefill, real_model
from .baselines import BASELINES, Generates, file_of, module_of
from .command import RunProgress, carry_out, port_of
from .datasets import BY_STEPS, DATASETS, DatasetSize, dataset
from .engine_load import figures_of_run
from .engine_plan import VARIANTS, EnginePlan
from .options import bench_parser, check_context, count, flag, option, plain, plan_of
from .real_text import TEXTS
from .report import OURS

COMPARED = [*VARIANTS, *BASELINES]
CONTINUOUS = "transformers, continuous"
NO_PSUTIL = "transformers continuous batching: on a CPU it needs psutil; install it beside torch"
PRESETS = ("chunked-prefill", "guide", *real_model.PRESETS)
# The run of the guide to chunked prefill on Gaudi with an eighth of its requests, each of an eighth of the length: a
# 64th of its tokens. So are its limits, and every ratio of one number to another is the guide's.
GUIDE = {
    "num_prompts": 128,
    "input_len": 1024,
    "output_len": 128,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "enforce_eager": True,
    "compare": ("unchunked",),
}


@dataclass(frozen=True)
class ThroughputPlan(EnginePlan):
    """Options of the command. They have the names of vLLM's benchmark_throughput.py where they mean the same."""

    model: str = option(
        "tiny-qwen3", "a shipped name, a folder, a GGUF file or a hub id", type=model_argument
    )
    trust_remote_code: bool = flag("accepted; no remote code is ever run")
    num_prompts: int = count(16, "requests")
    dataset: str = option("random", f"{', '.join([*DATASETS, *TEXTS])}, or a file", metavar="NAME")
    quantization: str | None = option(None, choices=sorted(QUANTIZATIONS))
    head_quantization: str | None = option(None, "of the output head alone", choices=sorted(QUANTIZATIONS))
    compare: tuple[str, ...] = option(
        (), f"in turns: {', '.join(COMPARED)}", choices=COMPARED, nargs="+", metavar="WHAT"
    )
    dtype: str = option("auto", choices=DTYPES)
    threads: int = count(os.cpu_count() or 1)
    rounds: int = count(3, "runs of each, taken in turns, after one that is not counted")

    def __post_init__(self):
        if not (baselines := [f"--compare {name}" for name in self.compare if name in BASELINES]):
            return
        if self.dataset in BY_STEPS:
            raise ValueError(
                f"{baselines[0]}: prompts of --dataset {self.dataset} arrive among our engine's steps; "
                f"compare it with {', '.join(VARIANTS)}"
            )
        for name in BASELINES.keys() & self.compare:
            if self.has_random_weights and not BASELINES[name].backend:
                raise ValueError(f"--compare {name} reads the file of --model: leave random weights out")
            if not self.has_random_weights and not BASELINES[name].reads_gguf:
                raise ValueError(
                    f"--compare {name} shares random weights: add --random-weights, or --config NAME"
                )


@dataclass
class OurGenerator:
    """Our engine, run as `LLM.generate` runs it.

    Args:
        threads: how many threads this process computes with.
    """

    llm: LLM
    threads: int

    @property
    def notes(self) -> str:
        """The products of bf16 matrices that the engine has chosen, if it had a choice."""
        found = self.llm.engine.products
        return f"bf16 products: {found}" if found else ""

    def generate(self, workload: Workload) -> dict[str, Any]:
        """Answer all requests: latencies and counts."""
        self.llm.engine.port.backend_module.set_threads(self.threads)
        return figures_of_run(self.llm.engine, workload)


def measure(
    plan: ThroughputPlan, port: Port, loading: Mapping[str, Any], report: RunProgress
) -> dict[str, Any]:
    """Time every engine in every round, with our own figures. Each round has new prompts; the first does not count.

    Raises:
        ValueError: the plan contradicts itself, or a baseline cannot run here.
    """
    before = provenance(port.device)
    port.backend_module.set_threads(plan.threads)
    job = job_of(plan, port, loading)
    tokenizer: Any = EndlessTokenizer() if plan.has_random_weights else load_tokenizer(plan.model)
    config = config_of(job)
    longest, vocabulary = config.max_position_embeddings, config.vocab_size
    check_context(plan.input_len + plan.output_len, longest)
    size = DatasetSize(plan.num_prompts, plan.input_len, plan.output_len, vocabulary)
    short = DatasetSize(1, min(plan.input_len, 32), min(plan.output_len, 32), vocabulary)
    workloads = [
        dataset(plan.dataset, size, plan.seed + number, plan.max_num_seqs, tokenizer)
        for number in range(plan.rounds + 1)
    ]
    room = max(each.max_seq_len for each in workloads)
    check_context(room - 1, longest)
    options = plan.engine_options() | {"max_model_len": min(room, longest)}
    job = replace(job, engine_options=options)
    cast = engines(plan, port, job, room, tokenizer)

    def run(name: str, number: int) -> dict[str, Any]:
        report(f"{name}, run {number} of {plan.rounds}", len(cast) * len(workloads))
        # Threads that have slept may wake up on one core: the first prompt takes 30 ms longer. This one is not counted.
        cast[name].generate(dataset("random", short, plan.seed, 1, tokenizer))
        return timed(cast[name], workloads[number])

    runs = in_turns({name: partial(run, name) for name in cast}, range(len(workloads)))
    cast[OURS].llm.engine.extensions["ranks"].close()
    return {
        "kind": "throughput",
        "backend": port.name,
        "plan": plain(plan) | {"dtype": port.float_dtype},
        "provenance": before,
        "dataset": workloads[-1].says,
        "notes": [f"{name}: {each.notes}" for name, each in cast.items() if getattr(each, "notes", "")]
        + activations_of(plan, job, port),
        "left_out": [NO_PSUTIL] if "transformers, dynamic" in cast and CONTINUOUS not in cast else [],
        "budget": cast[OURS].llm.engine.max_num_batched_tokens,
        "runs": {name: kept[1:] for name, kept in runs.items()},
    }


def step_of(plan: ThroughputPlan, port: Port, loading: Mapping[str, Any]) -> dict[str, Any]:
    """What a step of one request reads at least, and where its time goes."""
    options = plan.engine_options() | {"max_num_seqs": 1, "max_model_len": 128}
    with LLM.of_job(replace(job_of(plan, port, loading), engine_options=options)) as llm:
        return {"limits": real_model.limits(plan.model, port), "profile": real_model.profile(llm)}


def timed(engine: Generates, workload: Workload) -> dict[str, Any]:
    """Time one run: its seconds, its requests, and the engine's own figures if it has any."""
    start = time.perf_counter()
    figures = engine.generate(workload) or {}
    return {
        "seconds": time.perf_counter() - start,
        "requests": len(workload.requests),
        "prompt_tokens": sum(spec.tokens for spec in workload.requests),
        "output_tokens": sum(spec.answer for spec in workload.requests),
        **figures,
    }


def job_of(plan: ThroughputPlan, port: Port, loading: Mapping[str, Any]) -> Job:
    """What each rank of our engine loads."""
    solution = port.solution.__name__.partition(".")[0]
    where = solution, port.name, port.device, plan.dtype, plan.model, plan.quantization
    head = {"head_quantization": plan.head_quantization}
    if plan.has_random_weights:
        return Job(*where, head, random_weights={"config": plan.config, "layers": plan.layers})
    return Job(*where, {**loading, **head})


def activations_of(plan: ThroughputPlan, job: Job, port: Port) -> list[str]:
    """A note on the activations that our engine multiplies by quantised weights, for each number of bits."""
    rounded = rounded_of(job, port)
    if rounded is None:
        return []
    bits = dict.fromkeys(QUANTIZATIONS[each] for each in (plan.quantization, plan.head_quantization) if each)
    if (stored := config_of(job).quantization) is not None:
        bits |= dict.fromkeys(sorted(stored.all_bits))
    return [f"{OURS}: {each} bits with {rounded.rounds(each) or 'float'} activations" for each in bits]


def model_of(port: Port, job: Job) -> tuple[Any, RandomCheckpoint | None]:
    """The whole network in this process, and its checkpoint if the weights are random."""
    if job.random_weights:
        return random_network(port, config_of(job), loading_of(job, port))
    return network_of(job, port)[0], None


def engines(plan: ThroughputPlan, port: Port, job: Job, room: int, tokenizer: Any) -> dict[str, Any]:
    """Our engine first, then what it is compared with, on the same weights; `room` is that of the longest request.

    Raises:
        ValueError: a variant of our engine would have several ranks too.
    """
    size, options = job.options.num_ranks, job.engine_options
    divided = [name for name in plan.compare if name in VARIANTS and name != "single"]
    if size > 1 and divided:
        raise ValueError(
            f"--compare {divided[0]}: with several ranks, compare with single, or with a baseline"
        )
    found: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    limits = plan.max_num_seqs, room, plan.threads
    if size > 1:
        found[OURS] = OurGenerator(LLM.of_job(job, tokenizer), max(1, plan.threads // size))
    if size > 1 and not plan.compare:
        return found
    network, checkpoint = model_of(port, job)
    if size == 1:
        draft = {"draft_network": draft_network_of(job, port)}
        found[OURS] = OurGenerator(LLM.of(port, network, tokenizer, **options, **draft), plan.threads)
        network = found[OURS].llm.engine.network  # whose weights are packed already, if it was compiled
    for name in plan.compare:
        if name in VARIANTS:
            llm = LLM.of(port, network, tokenizer, **{**options, **VARIANTS[name]}, **draft)
            found[f"{OURS} {name}"] = OurGenerator(llm, plan.threads)
        elif plan.has_random_weights:
            found |= module_of(name, port).generators(name, checkpoint, *limits, plan.quantization)
        else:
            file = file_of(plan.model)
            found |= module_of(name, port, shares_weights=False).readers(name, file, port, *limits)
    return found


def parser(argv: list[str] | None) -> argparse.ArgumentParser:
    """The options of the command, or of the preset that is asked for."""
    chooser = argparse.ArgumentParser(prog="pdm run bench-throughput", add_help=False, allow_abbrev=False)
    chooser.add_argument("--preset", choices=PRESETS, help="measure these workloads instead")
    preset = chooser.parse_known_args(argv)[0].preset
    if preset == "chunked-prefill":
        return bench_parser("throughput", chunked_prefill.__doc__, chunked_prefill.SweepPlan, chooser)
    found = bench_parser("throughput", __doc__, ThroughputPlan, chooser)
    if preset == "guide":
        found.set_defaults(**GUIDE)
    if preset in real_model.PRESETS:
        found.set_defaults(**real_model.PRESETS[preset][1])
    return found


@command
def main(argv: list[str] | None = None) -> None:
    options = parser(argv).parse_args(argv)
    if options.preset == "chunked-prefill":
        chunked_prefill.run(options, argv)
        return
    if options.trust_remote_code:
        print("--trust-remote-code: accepted, and no remote code is ever run")

    def run(report: RunProgress) -> dict[str, Any]:
        port, plan = port_of(options), plan_of(ThroughputPlan, options)
        loading = network_options(options.solution, port.name)
        if options.preset not in real_model.PRESETS:
            return measure(plan, port, loading, report)
        found = real_model.measure(options.preset, plan, lambda case: measure(case, port, loading, report))
        return found | (step_of(plan, port, loading) if options.preset == "speed" else {})

    with ends_at_a_blank(needs=Day(3, 3)):
        carry_out("throughput", options, argv, run)


if __name__ == "__main__":
    main()
