"""Commands that cannot measure what they are asked for say so before they begin, in one line with the reason."""

import pytest

from benchmarks import kv_pages, latency, serve, throughput
from benchmarks.serving import processes
from tiny_llm_engine.machine.installation import installed_backends

READS = "with the answer: the model reads at most 4,096"
PRESET = "--preset chunked-prefill"
LATENCY = (
    ("--phase decode --input-len 8 4097", f"4,101 tokens {READS}"),
    *((f"--phase {phase} --input-len 8 4097", f"4,097 tokens {READS}") for phase in ("prefill", "chunk")),
    ("--config gpt-5", "qwen3-0.6b"),
    *(
        ("--hpu-day --backend mlx", "measures the torch port")
        for name in installed_backends()
        if name == "mlx"
    ),
    ("--hpu-day --backend torch --input-len 4097", f"4,105 tokens {READS}"),
    *((f"--save {name}", f"argument --save: '{name}' is not a name") for name in ("../x", ".x", "a/b")),
    ("--save folder", "folder.json: cannot be written ("),
)
THROUGHPUT = (
    ("--input-len 4090 --output-len 99", f"4,189 tokens {READS}"),
    ("--input-len 99999999", f"100,000,031 tokens {READS}"),
    ("--layers 2", "--layers needs random weights"),
    ("--compare transformers --backend torch", "tiny-qwen3: a baseline reads a GGUF file"),
    ("--compare transformers --backend mlx --random-weights", "choose --backend torch"),
    ("--compare mlx-lm-own-blas --backend torch --random-weights", "needs the mlx port"),
    ("--compare mlx-lm", "--compare mlx-lm shares random weights"),
    ("--compare xllamacpp --random-weights", "reads the file of --model: leave random weights out"),
    *((f"--dataset no-file.{kind}", f"no-file.{kind}: cannot be read") for kind in ("txt", "json")),
    ("--dataset chat --random-weights", "--dataset chat: a text needs a tokenizer"),
    ("--dataset shared-prefix --input-len 32", "--input-len 32: shared-prefix needs more than the 32"),
    ("--dataset decode-heavy --num-prompts 8", "needs more than its 8 streams"),
    ("--dataset decode-heavy --compare transformers --random-weights", "arrive among our engine's steps"),
    ("--max-num-batched-tokens 3", "max_num_batched_tokens is 3"),
    ("--model no-such-model", "model 'no-such-model'"),
    *((f"{PRESET} {wrong}", "usage: ") for wrong in ("--steps 0", "--steps few", "--rounds 0")),
    *((f"{PRESET} {wrong}", "usage: ") for wrong in ("--config gpt-5", "--dataset random", "--preset x")),
    (f"{PRESET} --model no-such-model", "model 'no-such-model'"),
    (f"{PRESET} --long-tokens 5000", "the model reads at most 4,096"),
)
SERVE = (
    ("--capacity", "--goodput"),
    ("--base-url http://127.0.0.1:1 --compare unchunked", "--base-url"),
    ("--attainment 1.5 --goodput ttft:3", "--attainment"),
    *((f"--goodput {wrong}", "NAME:MILLISECONDS") for wrong in ("fast:3", "ttft", "ttft:0", "tbt:x")),
    ("--base-url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1/v1"),
    ("--percentile-metrics ttft,x", "choose from ttft,tpot,itl,e2el"),
    ("--metric-percentiles 50,101", "numbers from 0 to 100"),
    ("--header x", "NAME=VALUE"),
    ("--extra-body [1]", "no object in JSON"),
    ("--random-range-ratio 1", "from 0 to below 1"),
    ("--random-prefix-len 3 --dataset shared-prefix", "for --dataset random"),
    ("--save-result --request-rate 1 2", "one rate"),
    ("--layers 2", "--layers needs random weights"),
    ("--dataset decode-heavy", "arrive among our engine's steps; use bench-throughput"),
    ("--config tiny-qwen3 --compare transformers", "random weights are our server's alone"),
    ("--compare transformers", "pip install --no-deps accelerate"),
)
CASES = [
    *((latency, f"--config tiny-qwen3 --layers 1 {options}", says) for options, says in LATENCY),
    *((throughput, f"--model tiny-qwen3 --device cpu {options}", says) for options, says in THROUGHPUT),
    *((serve, options, says) for options, says in SERVE),
    (kv_pages, "--returning --model tiny-qwen3 --input-len 128", "give more than a block of 128 tokens"),
]


@pytest.mark.parametrize(
    ("module", "options", "says"), CASES, ids=lambda each: str(getattr(each, "__name__", each))
)
def test_what_cannot_be_measured_is_said(module, options, says, refused, results, monkeypatch):
    if {"mlx", "torch"}.difference(installed_backends()).intersection(options.split()):
        pytest.xfail("that port is missing")
    (results / "folder.json").mkdir()
    monkeypatch.setattr(processes, "find_spec", lambda name: None if name == "accelerate" else True)
    errors = refused(module.main, options.split())
    assert says in errors and (errors.count("\n") == 1 or errors.startswith("usage: "))
    assert [file.name for file in results.iterdir()] == ["folder.json"]
