"""A real model beside llama.cpp: what the wheel `xllamacpp` is asked for, on a stand-in, and the presets' tables."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import baselines, real_model, throughput
from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.trace.workload import SHORT, RequestSpec, Workload

GGUF = "model.gguf"


class Xllamacpp(ModuleType):
    """A stand-in: answers have two tokens less than asked, if they may end; half of four drafts are right."""

    def __init__(self):
        super().__init__("xllamacpp")
        self.asked, self.options = [], None
        self.common_speculative_type = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE="ngram")
        self.get_system_info = lambda: "CPU : AVX2 = 1 | AVX512 = 0 | "

    def CommonParams(self):
        parts = ("model", "cpuparams", "cpuparams_batch", "speculative")
        made = SimpleNamespace(**{name: SimpleNamespace() for name in parts})
        made.speculative.ngram_simple = SimpleNamespace()
        return made

    def Server(self, options):
        self.options = options
        return self

    def handle_completions(self, asked):
        self.asked.append(asked)
        count = asked["max_tokens"] - (0 if asked.get("ignore_eos") else 2)
        top = [{"id": number, "logprob": -float(number)} for number in (3, 1, 0, 2)]
        choice = {"logprobs": {"content": [{"top_logprobs": top}]}}
        drafts = {"draft_n": 4, "draft_n_accepted": 2}
        return {"choices": [choice], "usage": {"completion_tokens": count}, "timings": drafts}


@pytest.fixture
def package(monkeypatch):
    found = Xllamacpp()
    monkeypatch.setitem(sys.modules, "xllamacpp", found)
    monkeypatch.delitem(sys.modules, "benchmarks.xllamacpp_baseline", raising=False)
    monkeypatch.setattr(baselines, "find_spec", lambda module: module)
    yield found
    sys.modules.pop("benchmarks.xllamacpp_baseline", None)


def module():
    return baselines.module_of("xllamacpp", SimpleNamespace(name="mlx", device="cpu"))


def test_the_server_is_asked_for_greedy_answers_of_these_lengths(package):
    server = module().Server(GGUF, 2, 50, 3, True)
    options = package.options
    assert (options.model.path, options.n_parallel, options.n_ctx) == (GGUF, 2, 100)
    assert options.cpuparams.n_threads == options.cpuparams_batch.n_threads == 3
    assert options.speculative.types == ["ngram"]
    assert vars(options.speculative.ngram_simple) == {"size_n": 4, "size_m": 8}
    specs = tuple(RequestSpec(SHORT, 2, answer, prompt=(5, answer)) for answer in (7, 9))
    found = server.generate(Workload("", "", specs))
    assert found == {"output_tokens": 16, "draft_tokens": 8, "accepted_tokens": 4}
    assert sorted((each["prompt"], each["max_tokens"]) for each in package.asked) == [
        ([5, 7], 7),
        ([5, 9], 9),
    ]
    assert all(each["temperature"] == 0 and not each["cache_prompt"] for each in package.asked)
    assert server.generate(Workload("", "", specs, ends=True))["output_tokens"] == 12
    assert server.log_probabilities([4, 4]).tolist() == [0, -1, -2, -3]


def test_a_file_is_needed_and_no_random_weights(package):
    with pytest.raises(ValueError, match="tiny-qwen3: a baseline reads a GGUF file"):
        baselines.file_of("tiny-qwen3")
    with pytest.raises(ValueError, match="reads the file of --model: leave random weights out"):
        throughput.ThroughputPlan(compare=("xllamacpp",), random_weights=True)
    with pytest.raises(ValueError, match="--compare mlx-lm shares random weights"):
        throughput.ThroughputPlan(compare=("xllamacpp", "mlx-lm"))
    assert throughput.ThroughputPlan(compare=("xllamacpp",)).model == "tiny-qwen3"


def shown(preset, runs, **more):
    """What a preset prints, if every case had these runs."""
    plan = throughput.ThroughputPlan(**real_model.PRESETS[preset][1], threads=2)
    machine = {"system": "Linux", "processor": "a processor", "cores": 2}
    one = {
        "backend": "torch",
        "provenance": {"device": "cpu", "machine": machine, "versions": {}, "date": "today"},
        "notes": [],
    }
    plans = []

    def measure_one(case):
        plans.append(case)
        return one | {"runs": runs, "plan": {"dtype": "float32"}}

    found, console = real_model.measure(preset, plan, measure_one), Console(file=io.StringIO(), width=90)
    real_model.show(console, found | more)
    return plans, " ".join(console.file.getvalue().split())


RUN = {"requests": 1, "prompt_tokens": 32, "output_tokens": 64, "seconds": 2.0}


def test_speed_has_five_cases_a_ratio_and_a_step():
    names = "xllamacpp", "llama.cpp, unified", "transformers"
    runs = {"tiny-llm": [RUN]} | {
        name: [RUN | {"seconds": s}] for name, s in zip(names, (1.0, 4.0, 8.0), strict=True)
    }
    limits = {"file_bytes": 10**8, "bytes_per_second": 10**10}
    line = {"function": "a.py multiply", "calls": 120, "ms": 12.5}
    plans, text = shown("speed", runs, limits=limits, profile=[line])
    sizes = [(plan.num_prompts, plan.max_num_seqs, plan.input_len, plan.output_len) for plan in plans]
    assert sizes == [(1, 1, 32, 64), (4, 4, 32, 64), (16, 16, 32, 64), (1, 1, 128, 1), (1, 1, 1024, 1)]
    assert "smollm2, float32, torch on Linux" in text and "1 × 32 + 64 32.0 64.0 16.0 8.0" in text
    assert "tiny-llm is the fastest baseline 1 × 32 + 64 0.50 × xllamacpp" in text
    assert "tiny-llm: 32 % of that" in text and "a.py multiply 12.50 120.0" in text


def test_a_prompt_is_counted_by_its_own_tokens():
    assert real_model.speed([RUN | {"output_tokens": 1}]) == 16 and real_model.speed([RUN]) == 32


def test_drafts_have_twelve_cases_and_their_acceptance():
    ours = RUN | {"calls": 17, "drafts": 4, "draft_tokens": 8, "accepted_tokens": 6}
    theirs = RUN | {"draft_tokens": 5, "accepted_tokens": 1}
    plans, text = shown("drafts", {"tiny-llm": [ours], "xllamacpp-drafts": [theirs]})
    assert len(plans) == 12 and {plan.dataset for plan in plans} == {"copying", "code", "chat", "translation"}
    assert "copying, 1: tiny-llm: 8 drafts in 4 decodes, 75 % of them accepted, 1.5 per decode" in text
    assert "copying, 1: xllamacpp-drafts: 5 drafts, 20 % of them accepted" in text


def test_a_profile_is_of_the_steps_of_one_request(b):
    with LLM(
        backend=b.name, device="cpu", dtype="float32", num_blocks=2, max_model_len=128, max_num_seqs=1
    ) as llm:
        found = real_model.profile(llm)
    assert len(found) == real_model.LINES and found == sorted(found, key=lambda line: -line["ms"])
