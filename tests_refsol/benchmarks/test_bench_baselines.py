"""Baselines of the throughput benchmark: what they are asked for, and a process that has its own libraries."""

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from benchmarks import baselines
from benchmarks.own_process import OwnProcess
from tiny_llm_kit.engine.backends import blas
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.trace.workload import SHORT, RequestSpec, Workload

WORKLOAD = Workload("", "", tuple(RequestSpec(SHORT, 2, n, prompt=(n, 7)) for n in (5, 3, 4)), batch_size=2)

# A baseline as a module: what it is asked and where it runs goes to a file.
BASELINE = """
import os
import signal
from pathlib import Path

def generate(workload):
    answers = [spec.answer for spec in workload.requests]
    if answers == [0]:
        raise RuntimeError("no tokens")
    if answers == [1]:
        os._exit(1)
    if answers == [2]:
        os.kill(os.getpid(), signal.SIGTERM)
    Path("seen").write_text(f"{answers} {os.environ['TINY_LLM_OPENBLAS']} {os.getpid()}")
"""


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    """A started process: imports cannot be faked in it, so it imports a module of the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_baseline.py").write_text(BASELINE, encoding="utf-8")
    return OwnProcess(importlib.import_module, "a_baseline", environment={blas.SWITCH: "0"}, notes="alone")


def asking(*answers: int) -> Workload:
    return Workload("", "", tuple(RequestSpec(SHORT, 2, answer) for answer in answers))


def test_a_process_of_its_own_has_its_variables_and_outlives_its_workloads(baseline, tmp_path):
    seen = []
    for answers in ((5, 3), (4,)):
        baseline.generate(asking(*answers))
        seen.append((tmp_path / "seen").read_text(encoding="utf-8").rsplit(" ", 2))
    assert [text for text, *_ in seen] == ["[5, 3]", "[4]"]
    assert {switch for _, switch, _ in seen} == {"0"} and blas.SWITCH not in os.environ
    [process] = {int(number) for *_, number in seen}
    assert process != os.getpid()
    with pytest.raises(ValueError, match="a baseline's own process: RuntimeError: no tokens"):
        baseline.generate(asking(0))


@pytest.mark.parametrize(("answer", "end"), [(1, "it ended"), (2, "it ended by SIGTERM")])
def test_a_process_that_dies_is_one_line(baseline, answer, end):
    with pytest.raises(ValueError, match=f"a baseline's own process: {end}$"):
        baseline.generate(asking(answer))


def test_a_baseline_that_cannot_be_made_is_one_line():
    with pytest.raises(ValueError, match="a baseline's own process: ValueError: invalid literal"):
        OwnProcess(int, "no number", environment={})


@pytest.mark.parametrize("name", ["mlx-lm", "mlx-lm-own-blas"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(name, monkeypatch):
    monkeypatch.setattr(baselines, "find_spec", lambda module: {}[module] if module != "mlx_lm" else None)
    with pytest.raises(ValueError, match=f"--compare {name}: not installed; .*install --no-deps mlx-lm`"):
        baselines.module_of(name, SimpleNamespace(name="mlx"))


@pytest.mark.port("torch")
def test_transformers_answers_with_the_weights_of_a_file(tmp_path, monkeypatch):
    """Here in this process."""
    from benchmarks import transformers_baseline as theirs
    from tests_refsol.model.family_cases import CASES, logits, oracle
    from tests_refsol.model.gguf_cases import write_gguf

    monkeypatch.setattr(theirs, "OwnProcess", lambda make, *asked, notes: (make(*asked), asked[1:], notes))
    model, port = oracle(CASES["llama2-mha"]), SimpleNamespace(device="cpu", float_dtype="float32")
    model.save_pretrained(tmp_path)
    file = write_gguf(tmp_path, tmp_path / "model.gguf")
    found = theirs.readers("transformers", file, port, 2, 9, theirs.torch.get_num_threads())
    batches, asked, notes = found["transformers"]
    assert asked[:3] == ("cpu", "float32", 2) and "dequantised to float32" in notes
    np.testing.assert_allclose(logits(batches.model, [5, 7, 60]), logits(model, [5, 7, 60]), atol=1e-4)
    assert batches.model.generation_config.eos_token_id is None, "no token ends an answer"
    batches.generate(WORKLOAD)


@pytest.fixture
def mlx_lm(monkeypatch):
    """A stand-in for the package, which is not installed where the tests run: records what it is asked."""
    import mlx.core as mx  # the port of the one test that uses this

    modules = {name: ModuleType(name) for name in ("mlx_lm", "mlx_lm.models.cache", "mlx_lm.models.qwen3")}
    package, cache, qwen3 = modules.values()
    asked = []

    class Model:
        def __init__(self, args):
            self.args = args

        def parameters(self):
            return {"model": {"norm": {"weight": mx.zeros(4)}, "embed_tokens": {"weight": mx.zeros((8, 4))}}}

        def load_weights(self, weights, strict):
            self.weights, self.strict = dict(weights), strict

    package.batch_generate = lambda model, tokenizer, prompts, **options: asked.append(
        (model, prompts, options)
    )
    cache.make_prompt_cache, qwen3.Model, qwen3.ModelArgs = None, Model, lambda **fields: fields
    for name, module in {**modules, "mlx_lm.models": ModuleType("mlx_lm.models")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "benchmarks.mlx_lm_baseline", raising=False)
    yield asked
    sys.modules.pop("benchmarks.mlx_lm_baseline", None)


@pytest.mark.port("mlx")
def test_mlx_lm_is_asked_for_the_same_prompts_and_answers_on_the_same_weights(mlx_lm):
    from benchmarks.mlx_lm_baseline import MlxLmBatch, own_mlx_lm
    from tiny_llm_kit.engine.weights.random_weights import RandomCheckpoint, shape

    port = Port("tiny_llm_ref", "mlx", "cpu", "float32")
    checkpoint = RandomCheckpoint(shape("tiny-qwen3", 1), port.backend_module, "float32", "cpu")
    table = checkpoint.weight("model.embed_tokens.weight", 8, 4)
    shared, own = MlxLmBatch(checkpoint, 2), own_mlx_lm(checkpoint.config, "float32", "cpu", 2)
    for each in (shared, own):
        each.generate(WORKLOAD)
        model, prompts, options = mlx_lm.pop()
        assert prompts == [[5, 7], [3, 7], [4, 7]] and options["max_tokens"] == [5, 3, 4]
        assert (options["completion_batch_size"], options["prefill_batch_size"]) == (2, 2)
        assert model.strict and set(model.weights) == {"model.norm.weight", "model.embed_tokens.weight"}
        assert (model.weights["model.embed_tokens.weight"] is table) == (each is shared)
        assert model.weights["model.norm.weight"].tolist() == [1.0] * 4
