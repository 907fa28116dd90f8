"""`pdm run bench-kv`: decode steps of one model over keys and values kept in each way, at several lengths.

What the pages hold does not change the time of a step, so contexts of thousands of tokens need no prompt. `--returning`
measures a conversation that goes on instead; `--returning --help` has its options.
"""

import argparse
from dataclasses import dataclass
from typing import Any

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import ends_at_a_blank
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_engine.backends.samples import interleave
from tiny_llm_engine.machine.terminal import command
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.engine_options import KV_CACHE_DTYPES
from tiny_llm_extensions.profiling.kv_budget import kv_bytes_per_token

from . import returning
from .command import RunProgress, carry_out, port_of
from .model_calls import ModelPlan, Week3Calls
from .options import bench_parser, check_context, count, counts, option, plain, plan_of


@dataclass(frozen=True)
class KvPlan(ModelPlan):
    """Options of the command."""

    kv_cache_dtype: tuple[str, ...] = option(
        KV_CACHE_DTYPES, "ways to keep keys and values", choices=KV_CACHE_DTYPES, nargs="+"
    )
    batch_size: tuple[int, ...] = counts((1, 16), "requests of a step")
    input_len: tuple[int, ...] = counts((128, 1024, 4096, 8000), "tokens that each has before a step")
    output_len: int = count(8, "steps of one sample")
    rounds: int = count(5, "samples of each way, taken in turns")


def measure(plan: KvPlan, port: Port, report: RunProgress) -> dict[str, Any]:
    """Time every case, the ways to keep pages in turns.

    Raises:
        ValueError: a request is longer than what the model reads.
    """
    before, network = provenance(port.device), plan.network(port)
    longest, rows = max(plan.input_len) + plan.output_len, max(plan.batch_size)
    check_context(longest, network.config.max_position_embeddings)
    kinds = {
        kind: Week3Calls(port, network, True, rows, longest, kv_cache_dtype=kind)
        for kind in plan.kv_cache_dtype
    }
    port.backend_module.set_threads(plan.threads)
    cases = []
    for size in plan.batch_size:
        for context in plan.input_len:
            report(f"{size} × {context:,}", len(plan.batch_size) * len(plan.input_len))
            for calls in kinds.values():
                calls.fill(size, context, plan.output_len)
            taken = interleave({kind: calls.decode for kind, calls in kinds.items()}, plan.rounds)
            seconds = {kind: [each / plan.output_len for each in of_kind] for kind, of_kind in taken.items()}
            cases.append({"rows": size, "context": context, "seconds": seconds})
    what = network.config, port.float_dtype, len(network.layers)
    return {
        "kind": "kv",
        "backend": port.name,
        "plan": plain(plan) | {"dtype": port.float_dtype},
        "provenance": before,
        "token_bytes": {kind: kv_bytes_per_token(*what, kind) for kind in kinds},
        "cases": cases,
    }


def parser(argv: list[str] | None) -> argparse.ArgumentParser:
    """The options of what is measured."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--returning", action="store_true", help="measure a conversation that goes on")
    if chooser.parse_known_args(argv)[0].returning:
        return bench_parser("kv", returning.__doc__, returning.ReturningPlan, chooser)
    return bench_parser("kv", __doc__, KvPlan, chooser)


@command
def main(argv: list[str] | None = None) -> None:
    options = parser(argv).parse_args(argv)

    def run(report: RunProgress) -> dict[str, Any]:
        if options.returning:
            return returning.measure(plan_of(returning.ReturningPlan, options), port_of(options), report)
        return measure(plan_of(KvPlan, options), port_of(options), report)

    with ends_at_a_blank(needs=Day(4, 5) if options.returning else Day(3, 3)):
        carry_out("kv", options, argv, run)


if __name__ == "__main__":
    main()
