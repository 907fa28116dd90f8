"""The matrix of options: rows of options of an engine that cover all pairs, and the check of one row.

A pair that the engine refuses when it is made is left out: a new option or refusal enters by itself. Libraries were
tried on 2,036 such pairs: allpairspy 2.5.1 leaves out 442 of them, because its filter sees partial rows only, and
covertable 3.2.0 takes 20 seconds where `covering_rows` takes one.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests_refsol.long.engine_soak import ended, first_difference
from tests_refsol.long.harness import margin
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.hub import find_model
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.cold_blocks.moves import BlockCosts
from tiny_llm_extensions.drafts import speculation
from tiny_llm_extensions.drafts.row_costs import DecodeCost, RowCosts
from tiny_llm_extensions.engine_options import KV_CACHE_DTYPES, EngineOptions, limits_of
from tiny_llm_extensions.graphs.step_shapes import StepShapes
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.open_engine import NO_PROMPT_ROWS
from tiny_llm_extensions.planning import Planning
from tiny_llm_ref import SamplingParams, serving
from tiny_llm_ref.serving import StructuredOutputsParams
from tiny_llm_ref.serving.buckets.bucket_sizes import STRATEGIES

MODEL, LONGEST = "tiny-qwen3", 112  # tokens of a prompt and its answer
HEAD = "You are a helpful assistant who answers questions about serving language models, in few words. " * 2
FILLERS = ["block " * 60, "token " * 60]  # take a small pool
QUESTIONS = ["Hello! Hello! Hello! Hello! Hello!", HEAD + "What is a KV cache?", HEAD + "What is a token?"]
KEYS = StructuredOutputsParams(choice=["a key", "a kettle", "keys"])
# What a request asks beside three plain ones: its prompt, then its sampling parameters.
ASKS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "nothing": [],
    "draws": [
        (QUESTIONS[0], {"temperature": 0.9, "top_p": 0.9, "seed": 3}),
        (QUESTIONS[2], {"temperature": 1.2, "top_k": 20, "min_p": 0.01, "seed": 4, "sample_index": 2}),
    ],
    "n": [(QUESTIONS[1], {"n": 3, "temperature": 0.9, "seed": 5})],
    "penalties": [
        (QUESTIONS[0], {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2}),
        (QUESTIONS[2], {"logit_bias": {300: 5.0, 301: -9.0}, "min_tokens": 6, "ignore_eos": True}),
    ],
    "scores": [
        (QUESTIONS[0], {"logprobs": 3, "temperature": 0.7, "seed": 6}),
        (QUESTIONS[1], {"prompt_logprobs": 2, "logprobs": 1}),
    ],
    "stops": [
        (QUESTIONS[0], {"stop": ["e", "\n"], "min_tokens": 2, "include_stop_str_in_output": True}),
        (QUESTIONS[1], {"stop_token_ids": [*range(300, 600)], "skip_special_tokens": False}),
    ],
    "forms": [
        (QUESTIONS[0], {"structured_outputs": StructuredOutputsParams(regex="[a-f]{4}[0-9]{3}")}),
        (QUESTIONS[1], {"structured_outputs": KEYS, "temperature": 1.0, "seed": 7, "n": 2}),
    ],
}
ASKS["all"] = [each[-1] for each in ASKS.values() if each]
# The levels of each option, the usual one first; names with a blank between them are set together.
QUANTIZED = (None, None, None), ("4bit", None, "float"), ("8bit", "8bit", "float"), (None, "4bit", "int16")
CHUNKS = (True, 0, None), (True, 0, 40), (True, 7, None), (False, 0, None)
FOLDERS = (None, 16.0), ("a folder", 16.0), ("a folder", 0.0004)
POLICIES = ("hybrid", None), ("separate", None), *((name, None) for name in serving.POLICIES)
LEVELS: dict[str, Sequence[Any]] = {
    "dtype": ["float32", "bfloat16"],
    "quantization head_quantization activations": [*QUANTIZED, ("8bit", None, "int8")],
    "load_options cpu_products": [({}, "usual"), ({}, "measured"), ({"attention": "simple"}, "usual")],
    "num_blocks block_size": [(120, 8), (16, 8), (5, 32)],
    "max_num_seqs": [3, 8],
    "enable_chunked_prefill long_prefill_token_threshold max_num_batched_tokens": CHUNKS,
    "kv_cache_dtype": KV_CACHE_DTYPES,
    "kv_offloading_size": [0.0, 0.0006],
    "kv_offloading_folder kv_offloading_folder_size": FOLDERS,
    "num_quantized_blocks": [0, 5],
    "scheduling_policy": ["fcfs", "priority"],
    "policy latency_target": POLICIES,
    "enforce_eager": [True, False],
    "bucketing_strategy": [None, *STRATEGIES],
    "tensor_parallel_size": [1, 2],
    "pipeline_parallel_size": [1, 2],
    "max_model_len": [LONGEST],
    "speculative_config": [None, {"method": "ngram"}, {"model": MODEL, "num_speculative_tokens": 3}],
}
NO_EFFECT = {
    "backend": "each row runs on each port",
    "model": "the rows are of one model",
    "device": "of the machine",
    "solution": "the reference",
    "options": "these",
    "gpu_memory_utilization": "the rows give num_blocks",
    "max_step_seconds": "of servers",
    "seed": "each request that draws has one",
    "kv_transfer_config": "for two engines, in kv_transfer/test_engines.py",
    "enable_expert_parallel": "for mixtures, in test_ranks.py",
}
# What options are checked with: no model runs.
PORT = Port("tiny_llm_ref", installed_backends()[0], "cpu")
LINE = SimpleNamespace(a=1.0, b=0.0)
PROFILE = serving.StepProfile(LINE, LINE)
CONFIG = find_model(MODEL).config()
named = {*" ".join(LEVELS).split(), *NO_EFFECT}
switches = [each for each in fields(EngineOptions) if isinstance(each.default, bool)]
LEVELS |= {each.name: [each.default, not each.default] for each in switches if each.name not in named}
LEVELS |= {"asks": [*ASKS], "event": ["", "abort", "interrupt", "call", "copy", "restart", "reset"]}
# The levels that round nothing, or as the plain engine does.
EXACT_LEVELS = {"dtype": [0], "quantization head_quantization activations": [0, 1, 2]}
EXACT_LEVELS |= {"kv_cache_dtype": [0], "num_quantized_blocks": [0]}
RANKS = "tensor_parallel_size", "pipeline_parallel_size"
# How much log-probabilities may differ, see `bound_of`. The most that was seen of rounded numbers was 1.63, where two
# tokens changed places: bf16 with 8-bit weights, activations and keys. Of others it was 0.0004.
EXACT, ROUNDED = 1e-3, 2.5
SAME = "backend", "dtype", "quantization", "head_quantization", "activations", "kv_cache_dtype"
SCORES = {"logprobs", "prompt_logprobs"}
FREE = RowCosts({1: DecodeCost(1.0, 0.0)})
STEPS = 3000
EVENT = "the round with "

Ask = tuple[str, dict[str, Any]]

NUMBERS = {name: [*range(len(each))] for name, each in LEVELS.items()}
Row = dict[str, int]  # the number of a level by the name of its option
Level = tuple[str, int]
Pair = frozenset[Level]


class Injected(Exception):
    """What a failing call raises."""


def options_of(row: Mapping[str, int]) -> dict[str, Any]:
    """The options, with "asks" and "event"; those that a row leaves out are the usual ones."""
    found: dict[str, Any] = {}
    for names, levels in LEVELS.items():
        level = levels[row.get(names, 0)]
        found |= zip(names.split(), level, strict=True) if " " in names else [(names, level)]
    return found


def refusal(row: Mapping[str, int]) -> str | None:
    """Why the engine refuses a row when it is made, in one line; None if it does not. Nothing is loaded."""
    options = options_of(row)
    given = {each.name: options[each.name] for each in fields(EngineOptions) if each.name in options}
    stages = 1 + (options["async_scheduling"] or options["pipeline_parallel_size"] > 1)
    runner = SimpleNamespace(num_blocks=options["num_blocks"], max_model_len=LONGEST, num_stages=stages)
    profile = PROFILE if options["policy"] == "slack" else None
    try:
        engine = EngineOptions(**given)
        limits = limits_of(engine, serving, CONFIG)
        runner.buckets = StepShapes(PORT, serving, engine, limits, engine.num_blocks).buckets
        Planning(serving, engine, limits, profile, None).loop(runner, time.perf_counter, id)
    except ValueError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


@cache
def rows() -> list[Row]:
    """All rows: first those whose answers are the same to the token, then what they have not covered."""
    left = dict.fromkeys(pair for pair in pairs_of(NUMBERS) if pair not in refused_pairs())
    exact = [*covering_rows(NUMBERS | EXACT_LEVELS, refused_pairs(), left)]
    return [*exact, *covering_rows(NUMBERS, refused_pairs(), left)]


@cache
def refused_pairs() -> Set[Pair]:
    """The pairs that the engine refuses when it is made."""
    return {pair for pair in pairs_of(NUMBERS) if refusal(dict(pair))}


def pairs_of(levels: Mapping[str, Sequence[int]]) -> list[Pair]:
    """All pairs of levels of different options."""
    numbered = [[(name, number) for number in numbers] for name, numbers in levels.items()]
    return [frozenset(pair) for two in combinations(numbered, 2) for pair in product(*two)]


def covering_rows(
    levels: Mapping[str, Sequence[int]], refused: Set[Pair], left: dict[Pair, None]
) -> Iterator[Row]:
    """Rows that together have each pair of these levels that is left, and no refused one. A pair leaves with its row.

    The first level of each option goes with all others.
    """
    for pair in pairs_of(levels):
        if pair not in left:
            continue
        row = dict(sorted(pair))
        while len(row) < len(levels):

            def gain(level: Level, row: Row = row) -> int:
                mine = [frozenset([level, other]) for other in row.items()]
                return -1 if any(each in refused for each in mine) else sum(each in left for each in mine)

            row |= [max(((name, n) for name in levels if name not in row for n in levels[name]), key=gain)]
        for each in combinations(row.items(), 2):
            left.pop(frozenset(each), None)
        yield row


def requests_of(asks: str) -> list[Ask]:
    """What a row asks, by three plain requests and those of `asks`."""
    return [(text, {}) for text in QUESTIONS] + ASKS[asks]


def served(llm: LLM, asked: Sequence[Ask], event: str = "", **more: Any) -> list[Any]:
    """The results of requests, some of which the event may end.

    Args:
        event: "abort" ends every third request after some steps, "interrupt" all of them; "call" lets a call of the
            model fail, and "copy" one of a block into the pool.
        more: sampling parameters for all of them.
    """
    engine = llm.engine
    encode, failing = llm.get_tokenizer().encode, iter([False, False, event == "call"])
    params = [SamplingParams(**{"max_tokens": 10, **each, **more}) for _, each in asked]
    requests = [
        engine.request(None, encode(text), each, priority=("batch", "interactive")[number % 2])
        for number, ((text, _), each) in enumerate(zip(asked, params, strict=True))
    ]

    def may_fail(*arguments: Any, launch=engine.runner.sampler.launch) -> Any:
        if next(failing, False):
            raise Injected
        return launch(*arguments)

    def fail() -> None:
        raise Injected

    for request in requests:
        engine.add(request)
    with patch.object(engine.runner.sampler, "launch", may_fail), failing_copy(engine, event == "copy"):
        for step in range(STEPS):
            if not engine.has_work_remaining():
                break
            if event == "abort" and step == 4:
                for request in requests[::3]:
                    request.abort()
            with suppress(Injected):
                engine.run([], fail) if event == "interrupt" and step == 4 else engine.step()
    engine.collect_results()
    assert not engine.has_work_remaining() and not engine.num_open, "requests are still open"
    assert engine.allocator.num_free == engine.allocator.num_blocks, "blocks were not freed"
    assert engine.loop.calls.is_idle and not any(map(len, engine.loop.waiting.holds))
    return [request.output() for request in requests]


def failing_copy(engine: Any, fails: bool) -> Any:
    """The next copy of a block back into the pool fails, if there is one."""
    if not fails or engine.extensions.get("cold") is None:
        return nullcontext()
    kind, failing = type(engine.extensions.get("cold").pages), iter([True])
    whole = kind.restore

    def restore(*arguments: Any) -> Any:
        if next(failing, False):
            raise Injected
        return whole(*arguments)

    return patch.object(kind, "restore", restore)


@cache
def plain(asks: str, weights: str) -> list[Any]:
    """The results of an engine that serves one request after the other, with nothing that the options add."""
    usual = {"cpu_products": "usual", "enforce_eager": True, "enable_prefix_caching": False}
    room = {"max_num_seqs": 1, "num_blocks": 40, "block_size": 32, "max_model_len": LONGEST}
    with LLM(MODEL, device="cpu", **usual, **room, **json.loads(weights)) as llm:
        asked = requests_of(asks)
        least = [(text, {**each, "logprobs": max(2, each.get("logprobs") or 0)}) for text, each in asked]
        return served(llm, least)


def check(backend: str, row: Mapping[str, int]) -> None:
    """Serves a row's requests twice, and a third time between them if something fails then.

    Raises:
        AssertionError: an answer is not that of the plain engine, or something is left.
    """
    options = {**options_of(row), "backend": backend, "device": "cpu"}
    asks, event, bound = options.pop("asks"), options.pop("event"), bound_of(options)
    weights = {name: options[name] for name in SAME}
    if options["num_quantized_blocks"]:
        weights["kv_cache_dtype"] = "auto"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        asked, expected = requests_of(asks), plain(asks, json.dumps(weights))
        if options["kv_offloading_folder"]:
            options["kv_offloading_folder"] = folder
        if not options["enforce_eager"]:
            opened.enter_context(quick_compiler(options["backend"]))
        opened.enter_context(patch.object(BlockCosts, "observe", lambda *costs: None))  # copies cost nothing
        opened.enter_context(
            patch.object(speculation, "measured_row_costs", lambda *_: FREE)
        )  # nor do drafts
        llm = opened.enter_context(LLM(MODEL, **options))
        compare(asked, served(llm, asked), expected, bound, "the first round")
        served(llm, [(text, {}) for text in FILLERS])
        if event in ("abort", "interrupt", "call", "copy"):
            compare(asked, served(llm, asked, event), expected, bound, EVENT + event)
            served(llm, [(text, {}) for text in FILLERS])
        if event == "reset":
            llm.reset_prefix_cache()
        if event == "restart" and not any(row.get(name) for name in RANKS):  # MLX: one group for each process
            llm.close()
            llm = opened.enter_context(LLM(MODEL, **options))
        compare(asked[::-1], served(llm, asked[::-1]), expected[::-1], bound, "the last round")


@contextmanager
def quick_compiler(backend: str) -> Iterator[None]:
    """torch's parts are traced and run as they are; so no compiler for C++ is needed."""
    if backend != "torch":
        yield
        return
    import torch

    torch._dynamo.reset()
    compiled, graphs = torch.compile, import_module("tiny_llm_extensions.graphs.torch.graphs")
    with (
        patch.object(torch, "compile", lambda part, **options: compiled(part, backend="eager")),
        patch.object(graphs, "cannot_compile", lambda device: None),
    ):
        yield


def bound_of(options: Mapping[str, Any]) -> float:
    """How much log-probabilities may differ: nothing is rounded in another order, or keys, weights or sums are."""
    is_exact = options["dtype"] == "float32" and options["kv_cache_dtype"] == "auto"
    is_exact &= not options["num_quantized_blocks"] and options["activations"] in (None, "float")
    return EXACT if is_exact else ROUNDED


def compare(
    asked: Sequence[Ask], found: Sequence[Any], expected: Sequence[Any], bound: float, when: str
) -> None:
    """Each answer is the expected one: to the token, or within a bound up to a token that is nearly as probable."""
    for (text, params), one, other in zip(asked, found, expected, strict=True):
        for mine, right in zip(one.outputs, other.outputs, strict=True):
            if mine.error == NO_PROMPT_ROWS or (mine.finish_reason in ("abort", "error") and EVENT in when):
                continue
            what = f"{when}: {text!r}, {params}: {mine} instead of {right}"
            place = first_difference(mine.token_ids, right.token_ids)
            if place is None and (bound == EXACT or len(mine.token_ids) == len(right.token_ids)):
                assert (ended(mine), mine.text) == (ended(right), right.text), what
            else:
                place = len(mine.token_ids) if place is None else place
                can_tell = params.keys() <= SCORES and place < len(right.token_ids)
                assert bound > EXACT and not (can_tell and margin(right, place) >= bound), what
            near = [*zip((mine.logprobs or [])[:place], right.logprobs, strict=False)]
            near += zip((one.prompt_logprobs or [])[1:], (other.prompt_logprobs or [])[1:], strict=True)
            both = [(a[token], b[token]) for a, b in near for token in a.keys() & b.keys()]
            gaps = [abs(a.logprob - b.logprob) for a, b in both]
            assert max(gaps, default=0.0) < bound, what


if __name__ == "__main__":
    check(*json.loads(sys.argv[1]))
