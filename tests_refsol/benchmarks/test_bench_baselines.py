"""Baselines: what each is asked for, on stand-ins for its packages, and a process that has its own libraries."""

import ctypes
import importlib
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from gguf import GGUFReader

from benchmarks import baselines, throughput
from benchmarks.baselines import BASELINES, hub_shape, module_of
from benchmarks.own_process import OwnProcess
from tiny_llm_course.trace.workload import SHORT, RequestSpec, Workload
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine import blas
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.loading import random_network

VOCABULARY = 50


def workload(*sizes: tuple[int, int], **options) -> Workload:
    """Requests of (tokens of a prompt, tokens of its answer)."""
    specs = (RequestSpec(SHORT, n, answer, prompt=tuple(range(answer, n + answer))) for n, answer in sizes)
    return Workload("", "", tuple(specs), **options)


class QuantizeOptions(ctypes.Structure):
    _fields_ = (("ftype", ctypes.c_int), ("nthread", ctypes.c_int), ("allow_requantize", ctypes.c_bool))


class LlamaCpp(MagicMock):
    """The C interface of llama.cpp. The next token depends on all tokens of a sequence and their order."""

    def start(self) -> None:
        self.cache, self.ended, self.calls = {}, [], []
        self.LLAMA_FTYPE_MOSTLY_Q4_0, self.LLAMA_FTYPE_MOSTLY_Q8_0 = 2, 7
        self.status, self.quantized = 0, None
        self.llama_log_callback = lambda function: function
        self.llama_model_quantize_default_params = QuantizeOptions
        self.llama_vocab_n_tokens.return_value = VOCABULARY
        self.llama_print_system_info.return_value = b"CPU : AVX2 = 1 | AVX512 = 0 | OPENMP = 1 | "
        self.llama_memory_seq_rm = lambda memory, place, *all_of_it: self.ended.append(self.cache.pop(place))
        self.llama_get_logits = lambda context: self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self.llama_model_quantize.side_effect = self.quantize
        self.llama_batch_init, self.llama_decode = self.batch, self.decode

    def quantize(self, source, target, options) -> int:
        shutil.copy(source.decode(), target.decode())
        self.quantized = options._obj.ftype, options._obj.nthread, options._obj.allow_requantize
        return self.status

    def batch(self, tokens, *_) -> SimpleNamespace:
        fields = {name: [None] * tokens for name in ("token", "pos", "n_seq_id", "logits")}
        return SimpleNamespace(**fields, n_tokens=0, seq_id=[[None] for _ in range(tokens)])

    def decode(self, context, batch) -> int:
        rows, places = [], [batch.seq_id[at][0] for at in range(batch.n_tokens)]
        assert places == sorted(places), "only neighbours in this order share a product"
        for at, place in enumerate(places):
            past = self.cache.setdefault(place, [])
            assert batch.n_seq_id[at] == 1 and batch.pos[at] == len(past)
            past.append(batch.token[at])
            assert batch.logits[at] == (place not in places[at + 1 :]), "logits of the last token alone"
            if batch.logits[at]:
                rows.append(np.eye(VOCABULARY, dtype=np.float32)[next_token(past)])
        self.calls.append(batch.n_tokens)
        self.logits = np.concatenate(rows)
        return self.status


def next_token(past: list[int]) -> int:
    return int(sum((place + 1) * token for place, token in enumerate(past)) * 7 + len(past)) % VOCABULARY


@pytest.fixture
def packages(monkeypatch) -> SimpleNamespace:
    """Stand-ins for packages that are not installed here, while the files that import them are loaded anew."""
    found = SimpleNamespace(llama_cpp=LlamaCpp(), xllamacpp=MagicMock(), mlx_lm=MagicMock())
    found.llama_cpp.start()
    modules = vars(found) | {f"mlx_lm.models{name}": found.mlx_lm for name in ("", ".cache", ".qwen3")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    yield found
    for name in ("llama_cpp_baseline", "xllamacpp_baseline", "mlx_lm_baseline"):
        sys.modules.pop(f"benchmarks.{name}", None)


# ---- a process of its own


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Runs a line of Python there: imports cannot be faked in it, so it imports a module of the test's folder."""
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import os\n\ndef generate(workload):\n    return eval(workload.says)\n"
    (tmp_path / "a_baseline.py").write_text(code, encoding="utf-8")
    made = OwnProcess(importlib.import_module, "a_baseline", environment={blas.SWITCH: "0"}, notes="alone")
    return lambda line: made.generate(Workload("", line, ()))


def test_a_process_of_its_own_has_its_variables_and_outlives_its_workloads(process):
    assert process(f"os.environ[{blas.SWITCH!r}]") == "0" and blas.SWITCH not in os.environ
    assert process("os.getpid()") == process("os.getpid()") != os.getpid()
    with pytest.raises(ValueError, match="a baseline's own process: ZeroDivisionError: division by zero"):
        process("1 / 0")
    with pytest.raises(ValueError, match="a baseline's own process: ValueError: invalid literal"):
        OwnProcess(int, "no number")


@pytest.mark.parametrize("line", ["os._exit(1)", "os.kill(os.getpid(), 15)"])
def test_a_process_that_dies_is_one_line(process, line):
    end = " by SIGTERM" if "kill" in line else ""
    with pytest.raises(ValueError, match=f"a baseline's own process: it ended{end}$"):
        process(line)


# ---- which baseline is made, and where


@pytest.mark.parametrize("missing", ["mlx_lm", "llama_cpp", ""])
def test_where_a_baseline_cannot_run_is_one_line_with_its_remedy(missing, monkeypatch):
    name, says = {
        "mlx_lm": ("mlx-lm", "mlx-lm: not installed; .*install --no-deps mlx-lm`"),
        "llama_cpp": ("llama.cpp", "not installed; run `python -m pip install llama-cpp-python gguf`"),
        "": ("llama.cpp", r"--compare llama\.cpp runs on one device alone: add --device cpu"),
    }[missing]
    monkeypatch.setattr(baselines, "find_spec", lambda module: None if module == missing else module)
    with pytest.raises(ValueError, match=says):
        module_of(name, SimpleNamespace(name=BASELINES[name].backend, device="cpu" if missing else "cuda"))


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_can_be_made(name, packages):
    needed = BASELINES[name]
    if needed.backend not in (None, *installed_backends()):
        pytest.xfail("that port is missing")
    module = module_of(name, SimpleNamespace(name=needed.backend, device="cpu"))
    makes = [hasattr(module, kind) for kind in ("generators", "readers", "callers")]
    assert makes == [bool(needed.backend), needed.reads_gguf, needed.device is None]


def test_a_baseline_gets_the_limits_of_the_plan(monkeypatch):
    asked, backend = {}, installed_backends()[-1]
    module = SimpleNamespace(generators=lambda name, checkpoint, *limits: asked.update({name: limits}) or {})
    monkeypatch.setattr(throughput, "module_of", lambda name, port: module)
    sizes = "--num-prompts 1 --input-len 7 --output-len 2 --max-num-seqs 3 --threads 1 --rounds 1"
    throughput.main(f"--config tiny-qwen3 --layers 1 {sizes} --compare llama.cpp --backend {backend}".split())
    assert asked == {"llama.cpp": (3, 10, 1, None)}, "rows, room, threads and quantization"


# ---- transformers and mlx-lm


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
    batches.generate(workload((2, 5), (2, 3), (2, 4)))


@pytest.mark.port("mlx")
def test_mlx_lm_is_asked_for_the_same_prompts_and_answers_on_the_same_weights(packages):
    import mlx.core as mx

    from benchmarks.mlx_lm_baseline import MlxLmBatch, own_mlx_lm

    port, package = Port("tiny_llm_ref", "mlx", "cpu", "float32"), packages.mlx_lm
    checkpoint = RandomCheckpoint(shape("tiny-qwen3", 1), port.backend_module, "float32", "cpu")
    weights = {"embed_tokens": {"weight": mx.zeros((8, 4))}, "norm": {"weight": mx.zeros(4)}}
    model = package.Model.return_value
    model.parameters.return_value = {"model": weights}
    for is_shared in (True, False):
        own = checkpoint.config, "float32", "cpu", 2
        batches = MlxLmBatch(checkpoint, 2) if is_shared else own_mlx_lm(*own)
        batches.generate(workload((2, 5), (1, 3)))
        loaded = model.load_weights.call_args
        [_, _, prompts], options = package.batch_generate.call_args
        assert prompts == [[5, 6], [3]] and options["max_tokens"] == [5, 3]
        assert (options["completion_batch_size"], options["prefill_batch_size"]) == (2, 2)
        table, norm = (dict(loaded.args[0])[f"model.{name}.weight"] for name in weights)
        assert (table is checkpoint.weights["model.embed_tokens.weight"]) == is_shared
        assert norm.tolist() == [1.0] * 4 and loaded.kwargs["strict"]


# ---- llama.cpp, through its C interface and as a server


def llama_batch(rows: int, room: int):
    from benchmarks.llama_cpp_baseline import LlamaCppBatch

    return LlamaCppBatch("weights.gguf", rows, room, 3, is_unified=False)


def computed(past: list[int], answer: int) -> list[int]:
    """The tokens that a request leaves in the cache: its prompt and its answer, of which the last is never computed."""
    return past if answer == 1 else computed([*past, next_token(past)], answer - 1)


def test_llama_cpp_computes_exactly_the_tokens_of_the_workload_and_fills_free_places(packages):
    """With two places the second request ends at once, and the others take over in turns."""
    llama_cpp, running, sizes = packages.llama_cpp, llama_batch(2, 9), ((5, 3), (7, 1), (4, 4), (6, 2))
    options = llama_cpp.llama_init_from_model.call_args.args[1]
    assert (options.n_seq_max, options.n_threads, options.n_threads_batch) == (2, 3, 3)
    assert options.n_ctx >= 2 * 9 and not options.kv_unified
    for _ in range(2):  # nothing is left of the first run in the second
        llama_cpp.ended, llama_cpp.calls = [], []
        running.generate(workload(*sizes))
        assert llama_cpp.calls == [5 + 7, 1 + 4, 1 + 1, 6 + 1, 1 + 1]
        texts = [computed([*range(answer, tokens + answer)], answer) for tokens, answer in sizes]
        assert sorted(llama_cpp.ended) == sorted(texts)
        assert llama_cpp.cache == {}


def test_a_prompt_that_does_not_fit_into_a_call_waits_for_the_next(packages, monkeypatch):
    assert llama_batch(3, 8).call_tokens == 2048
    monkeypatch.setattr("benchmarks.llama_cpp_baseline.CALL_TOKENS", 1)
    llama_batch(3, 8).generate(workload((7, 2), (4, 2), (7, 1)))
    assert packages.llama_cpp.calls == [7 + 4, 1 + 1 + 7]


def test_what_llama_cpp_cannot_do_is_one_line_with_its_reason(packages):
    llama_cpp, running = packages.llama_cpp, llama_batch(2, 9)
    for level, text in ((3, b"a warning\n"), (4, b"too long\n")):
        llama_cpp.llama_log_set.call_args.args[0](level, text, None)
    llama_cpp.status = -3
    with pytest.raises(ValueError, match=r"^llama.cpp cannot compute 12 tokens \(status -3\): too long$"):
        running.generate(workload((5, 3), (7, 1)))
    makers = llama_cpp.llama_init_from_model, llama_cpp.llama_model_load_from_file
    for make, says in zip(makers, ("run 2 requests of 9 tokens", "load these weights"), strict=True):
        make.return_value = None
        with pytest.raises(ValueError, match=f"cannot {says}: too long"):
            llama_batch(2, 9)


def ask(monkeypatch, quantization: str | None, **changes) -> dict[str, SimpleNamespace]:
    """What is asked of the other processes, and the weights that they read: the file is gone later."""
    module = module_of("llama.cpp", SimpleNamespace(name="torch", device="cpu"))
    port = Port("tiny_llm_ref", "torch", "cpu", "bfloat16")
    _, checkpoint = random_network(port, replace(shape("tiny-qwen3", 1), **changes))

    def start(make, file, *arguments, notes):
        read = load_checkpoint(file, "torch", "cpu", "bfloat16")
        assert make is module.LlamaCppBatch and hub_shape(read.config) == hub_shape(checkpoint.config)
        assert all((read.weights[name] == array).all() for name, array in checkpoint.weights.items())
        vectors = {each.tensor_type.name for each in GGUFReader(file).tensors if len(each.shape) == 1}
        assert vectors == {"F32"}, "llama.cpp reads no other norms"
        return SimpleNamespace(file=Path(file), arguments=arguments, notes=notes)

    monkeypatch.setattr(module, "OwnProcess", start)
    return module.generators("llama.cpp", checkpoint, 2, 9, 3, quantization)


@pytest.mark.port("torch")
@pytest.mark.parametrize("quantization", [None, "4bit", "8bit"])
def test_llama_cpps_own_quantiser_makes_the_file_of_its_processes(packages, monkeypatch, quantization):
    """From one with the shape and every weight; here it only copies it."""
    llama_cpp, found = packages.llama_cpp, ask(monkeypatch, quantization)
    kinds = {"4bit": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "8bit": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
    assert llama_cpp.quantized == ((kinds[quantization], 3, True) if quantization else None)
    assert list(found) == ["llama.cpp, unified", "llama.cpp, per request"]
    for each, is_unified in zip(found.values(), (True, False), strict=True):
        assert each.file.stem == ("quantized" if quantization else "plain") and not each.file.exists()
        assert each.arguments == (2, 9, 3, is_unified), "rows, room and threads"
    notes = found["llama.cpp, unified"].notes
    assert notes.endswith("; layers in BF16, head in BF16, keys and values in F16; built with AVX2, OPENMP")


@pytest.mark.port("torch")
def test_weights_that_llama_cpp_does_not_take_are_one_line(packages, monkeypatch):
    with pytest.raises(ValueError, match="writes Qwen3 models, not LlamaForCausalLM"):
        ask(monkeypatch, None, architecture="LlamaForCausalLM")
    packages.llama_cpp.status = 1
    with pytest.raises(ValueError, match="cannot quantise these weights"):
        ask(monkeypatch, "4bit")


def test_llama_cpps_server_is_asked_for_greedy_answers_of_these_lengths(packages):
    """Here answers have two tokens less than asked, if they may end; half of four drafts are right."""
    asked = []

    def answer(body):
        asked.append(body)
        count = body["max_tokens"] - (0 if body.get("ignore_eos") else 2)
        top = [{"id": number, "logprob": -float(number)} for number in (3, 1, 0, 2)]
        usage, timings = {"completion_tokens": count}, {"draft_n": 4, "draft_n_accepted": 2}
        choices = [{"logprobs": {"content": [{"top_logprobs": top}]}}]
        return {"choices": choices, "usage": usage, "timings": timings}

    packages.xllamacpp.Server.return_value.handle_completions = answer
    module = module_of("xllamacpp", SimpleNamespace(name="mlx", device="cpu"))
    server = module.Server("model.gguf", 2, 50, 3, True)
    options = packages.xllamacpp.CommonParams.return_value
    assert (options.model.path, options.n_parallel, options.n_ctx) == ("model.gguf", 2, 100)
    assert options.cpuparams.n_threads == options.cpuparams_batch.n_threads == 3
    found = server.generate(workload((2, 7), (2, 9)))
    assert found == {"output_tokens": 16, "draft_tokens": 8, "accepted_tokens": 4}
    assert sorted((body["max_tokens"], body["prompt"]) for body in asked) == [(7, [7, 8]), (9, [9, 10])]
    assert all(body["temperature"] == 0 and not body["cache_prompt"] for body in asked)
    assert server.generate(workload((2, 7), (2, 9), ends=True))["output_tokens"] == 12
    assert server.log_probabilities([4, 4]).tolist() == [0, -1, -2, -3]
