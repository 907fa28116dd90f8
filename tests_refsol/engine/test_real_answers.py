"""SmolLM2, a model that others trained: greedy answers in float32 are those of transformers, token by token.

`make_smollm2_goldens.py` made the answers, from the same file.
"""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from safetensors.numpy import save_file

from support.goldens import FOLDER
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_ref import SamplingParams

pytestmark = pytest.mark.tool("smollm2")

GOLDENS = json.loads((FOLDER / "smollm2.json").read_text(encoding="utf-8"))
ANSWERS = GOLDENS["answers"]
# Prompts of about 50 tokens in chunks of at most 32, behind a shared system prompt, and too few blocks for three.
ROOM = {"max_model_len": 192, "num_blocks": 40}
TIGHT = {"max_num_batched_tokens": 32, "max_num_seqs": 3, "block_size": 16}
TIGHT |= {"num_blocks": 11, "max_model_len": 176}
# By the kernels that an engine chooses: a step of decodes is one call, whose tokens may be those of the step before.
AHEAD = TIGHT | {"dtype": "auto", "activations": "int16", "async_scheduling": True}
# Answers the prompts of its standard input.
PROGRAM = """
import json, sys
from tiny_llm_ref import LLM, SamplingParams

prompts, options = json.load(sys.stdin)
with LLM("smollm2", **options) as llm:
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
print(json.dumps([output.outputs[0].token_ids for output in outputs]))
"""


def where(b) -> dict:
    """The options of an engine that rounds nothing."""
    return {"backend": b.name, "device": b.device, "dtype": "float32", "activations": "float"}


def check(llm: LLM, count: int, tokens: int) -> list:
    """Ask the first `count` questions, and compare prompts and answers; returns the outputs."""
    system = {"role": "system", "content": GOLDENS["system"]}
    messages = [[system, {"role": "user", "content": each["question"]}] for each in ANSWERS[:count]]
    outputs = llm.chat(messages, SamplingParams(max_tokens=tokens, ignore_eos=True), use_tqdm=False)
    for output, expected in zip(outputs, ANSWERS, strict=False):
        assert output.prompt_token_ids == expected["prompt"], f"{expected['question']}: another prompt"
        found = output.outputs[0].token_ids
        assert found == expected["tokens"][:tokens], f"{expected['question']}: {output.outputs[0].text!r}"
    return outputs


def test_answers_are_transformers_with_chunks_shared_prefixes_and_preemptions(b):
    exact = Port("tiny_llm_ref", b.name, b.device, "float32")  # "auto" may round
    with LLM.of(exact, *load_network(exact, "smollm2", "week3"), **TIGHT) as llm:
        outputs = check(llm, 3, 24)
    assert any(output.num_cached_tokens for output in outputs), "no prefix was shared"
    assert sum(output.metrics.num_preemptions for output in outputs), "nothing was preempted"


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, TIGHT, AHEAD, {"speculative_config": {"method": "ngram"}}], ids=str)
def test_twenty_answers_are_transformers(b, options):
    with LLM("smollm2", **{**where(b), **ROOM, **options}) as llm:
        check(llm, 20, 64)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"tensor_parallel_size": 3}, {"pipeline_parallel_size": 2}], ids=str)
def test_twenty_answers_of_ranks_are_transformers(b, options):
    """In a process of their own: MLX makes one group of ranks per process."""
    asked = [each["prompt"] for each in ANSWERS], {**where(b), **ROOM, **options}
    done = subprocess.check_output([sys.executable, "-c", PROGRAM], input=json.dumps(asked), text=True)
    assert json.loads(done) == [each["tokens"] for each in ANSWERS]


@pytest.mark.long
def test_a_folder_with_the_same_weights_gives_the_same_answers(b, tmp_path):
    """The file's weights, dequantised and saved as most models are."""
    stored = load_checkpoint("smollm2", b.name, b.device, "float32")
    save_file(
        {name: b.numpy(array) for name, array in stored.weights.items()}, tmp_path / "model.safetensors"
    )
    config = {**asdict(stored.config), "architectures": [stored.config.architecture], "quantization": None}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(load_tokenizer("smollm2").to_json(), encoding="utf-8")
    network, _ = load_network(b, tmp_path, "week3")
    with LLM.of(b, network, load_tokenizer("smollm2"), **ROOM) as llm:
        check(llm, 20, 64)
