"""llama.cpp as a baseline: what it is asked for, on stand-ins for its packages, which need a compiler to install."""

import ast
import ctypes
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from benchmarks import baselines, throughput
from benchmarks.baselines import BASELINES, module_of
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.engine.weights.random_weights import RandomCheckpoint, shape
from tiny_llm_kit.trace.workload import SHORT, RequestSpec, Workload

VOCABULARY = 50
# Tokens of a prompt and of its answer: with two places the second ends at once, and the others take over in turns.
SIZES = ((5, 3), (7, 1), (4, 4), (6, 2))


class QuantizeOptions(ctypes.Structure):
    _fields_ = (("ftype", ctypes.c_int), ("nthread", ctypes.c_int), ("allow_requantize", ctypes.c_bool))


class LlamaCpp(ModuleType):
    """A stand-in for the C interface. The next token depends on all tokens of a sequence and their order."""

    LLAMA_FTYPE_MOSTLY_Q4_0, LLAMA_FTYPE_MOSTLY_Q8_0, LLAMA_LOAD_MODE_NONE = 2, 7, 0

    def __init__(self):
        super().__init__("llama_cpp")
        self.cache, self.ended, self.calls, self.quantizations, self.rows_of_logits = {}, [], [], [], 0
        self.model, self.context, self.status = "model", "context", 0
        self.llama_model_default_params = self.llama_context_default_params = SimpleNamespace
        self.llama_model_quantize_default_params = QuantizeOptions
        self.llama_backend_init = lambda: None
        self.llama_log_callback = lambda function: function
        self.llama_log_set = lambda log, data: setattr(self, "log", log)
        self.llama_model_get_vocab = self.llama_get_memory = lambda owner: owner
        self.llama_vocab_n_tokens = lambda vocabulary: VOCABULARY
        self.llama_print_system_info = lambda: b"CPU : AVX2 = 1 | AVX512 = 0 | OPENMP = 1 | "

    def llama_model_load_from_file(self, file, options):
        self.file, self.load_mode = file, options.load_mode
        return self.model

    def llama_init_from_model(self, model, options):
        self.options = options
        return self.context

    def llama_model_quantize(self, source, target, options):
        assert Path(source.decode()).exists()
        Path(target.decode()).touch()
        given = options._obj
        self.quantizations.append((given.ftype, given.nthread, given.allow_requantize))
        return self.status

    def llama_batch_init(self, tokens, embeddings, sequences):
        assert (embeddings, sequences) == (0, 1)
        fields = {name: [None] * tokens for name in ("token", "pos", "n_seq_id", "logits")}
        return SimpleNamespace(**fields, n_tokens=0, seq_id=[[None] for _ in range(tokens)])

    def llama_memory_seq_rm(self, memory, place, start, end):
        assert (start, end) == (-1, -1)
        self.ended.append(self.cache.pop(place))

    def llama_decode(self, context, batch):
        rows, places = [], [batch.seq_id[at][0] for at in range(batch.n_tokens)]
        assert places == sorted(places), "only neighbours in this order share a product"
        for at in range(batch.n_tokens):
            past = self.cache.setdefault(places[at], [])
            assert batch.n_seq_id[at] == 1 and batch.pos[at] == len(past)
            past.append(batch.token[at])
            if batch.logits[at]:
                rows.append(np.eye(VOCABULARY, dtype=np.float32)[next_token(past)])
        self.calls.append(batch.n_tokens)
        self.rows_of_logits += len(rows)
        self.logits = np.concatenate(rows)
        return self.status

    def llama_get_logits(self, context):
        return self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def next_token(past: list[int]) -> int:
    return int(sum((place + 1) * token for place, token in enumerate(past)) * 7 + len(past)) % VOCABULARY


class Gguf(ModuleType):
    """A stand-in for the package that writes the file; keeps what it is given."""

    GGMLQuantizationType = Enum("GGMLQuantizationType", "F32 F16 BF16 Q4_0 Q6_K")
    MODEL_ARCH = SimpleNamespace(QWEN3="qwen3")
    quants = SimpleNamespace(quantize=lambda numbers, kind: (numbers, kind))

    def __init__(self):
        super().__init__("gguf")
        self.tensors, self.fields = {}, {}

    @staticmethod
    def get_tensor_name_map(arch, layers):
        return SimpleNamespace(get_name=lambda name, try_suffixes: name.replace("model.", "gguf."))

    def GGUFWriter(self, file, arch):
        assert arch == "qwen3"
        Path(file).touch()
        return Writer(self)

    def GGUFReader(self, file):
        kinds = self.GGMLQuantizationType
        types = (kinds.Q4_0, kinds.Q6_K) if "quantized" in file.name else (kinds.BF16, kinds.BF16)
        names = ("blk.0.ffn_up.weight", "token_embd.weight")
        return SimpleNamespace(
            tensors=[SimpleNamespace(name=n, tensor_type=t) for n, t in zip(names, types, strict=True)]
        )


class Writer:
    def __init__(self, kept):
        self._kept = kept

    def add_tensor(self, name, data, raw_dtype):
        self._kept.tensors[name] = (*data, raw_dtype)

    def __getattr__(self, name):
        return lambda *values: self._kept.fields.update({name: values})


@pytest.fixture
def packages(monkeypatch):
    """(llama_cpp, gguf): the stand-ins, while the files that import them are loaded anew."""
    found = LlamaCpp(), Gguf()
    ours = [f"benchmarks.{name}" for name in ("llama_cpp_baseline", "gguf_file")]
    for module in found:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    yield found
    for name in ours:
        sys.modules.pop(name, None)


@pytest.fixture
def llama_cpp(packages):
    return packages[0]


def batch(rows: int = 2, room: int = 9):
    from benchmarks.llama_cpp_baseline import LlamaCppBatch

    return LlamaCppBatch("weights.gguf", rows, room, 3, is_unified=False)


def workload(*sizes: tuple[int, int]) -> Workload:
    specs = (
        RequestSpec(SHORT, tokens, answer, prompt=tuple(range(answer, tokens + answer)))
        for tokens, answer in sizes
    )
    return Workload("", "", tuple(specs))


def computed(spec: RequestSpec) -> list[int]:
    """The tokens that a request leaves in the cache: its prompt and its answer, of which the last is never computed."""
    past = list(spec.prompt)
    for _ in range(spec.answer - 1):
        past.append(next_token(past))
    return past


def test_it_computes_exactly_the_tokens_of_the_workload_and_fills_free_places(llama_cpp):
    asked, running = workload(*SIZES), batch()
    for _ in range(2):  # nothing is left of the first run in the second
        llama_cpp.ended.clear(), llama_cpp.calls.clear()
        llama_cpp.rows_of_logits = 0
        running.generate(asked)
        assert llama_cpp.calls == [5 + 7, 1 + 4, 1 + 1, 6 + 1, 1 + 1]
        assert sorted(llama_cpp.ended) == sorted(computed(spec) for spec in asked.requests)
        assert llama_cpp.rows_of_logits == sum(answer for _, answer in SIZES)
        assert llama_cpp.cache == {}


def test_a_prompt_that_does_not_fit_into_a_call_waits_for_the_next(llama_cpp, monkeypatch):
    running = batch(rows=3, room=8)
    assert running.call_tokens == 2048
    monkeypatch.setattr("benchmarks.llama_cpp_baseline.CALL_TOKENS", 1)
    running = batch(rows=3, room=8)
    running.generate(workload((7, 2), (4, 2), (7, 1)))
    assert llama_cpp.calls == [7 + 4, 1 + 1 + 7]


def test_all_requests_run_at_a_time_with_these_threads(llama_cpp):
    batch(rows=2, room=9)
    options = llama_cpp.options
    assert (options.n_seq_max, options.n_threads, options.n_threads_batch) == (2, 3, 3)
    assert options.n_ctx >= 2 * 9 and not options.kv_unified and llama_cpp.file == b"weights.gguf"


def test_what_llama_cpp_cannot_do_is_one_line_with_its_reason(llama_cpp):
    running = batch()
    llama_cpp.log(3, b"a warning\n", None), llama_cpp.log(4, b"too long\n", None)
    llama_cpp.status = -3
    with pytest.raises(ValueError, match=r"^llama.cpp cannot compute 12 tokens \(status -3\): too long$"):
        running.generate(workload(*SIZES))
    for pointer, says in (("context", "run 2 requests of 9 tokens"), ("model", "load these weights")):
        setattr(llama_cpp, pointer, None)
        with pytest.raises(ValueError, match=f"cannot {says}: too long"):
            batch()


# ---- the file, and the process that reads it


@pytest.fixture
def started(packages, monkeypatch):
    """What is asked of the other process; the file has to be there while it starts, and is gone later."""
    import benchmarks.llama_cpp_baseline as module

    def start(make, file, *arguments, notes):
        assert make is module.LlamaCppBatch and Path(file).exists()
        return SimpleNamespace(file=Path(file), arguments=arguments, notes=notes)

    monkeypatch.setattr(module, "OwnProcess", start)


def checkpoint(**changes) -> RandomCheckpoint:
    """Two weights in bf16, a matrix and a norm."""
    port = Port("tiny_llm_ref", "torch", "cpu", "bfloat16")
    made = RandomCheckpoint(
        replace(shape("tiny-qwen3", 1), **changes), port.backend_module, "bfloat16", "cpu"
    )
    made.weight("model.embed_tokens.weight", 8, 4), made.weight("model.norm.weight", 4)
    return made


def ask(quantization: str | None = None, device: str = "cpu", **changes) -> dict[str, SimpleNamespace]:
    port = SimpleNamespace(name="torch", device=device)
    return module_of("llama.cpp", port).generators("llama.cpp", checkpoint(**changes), 2, 9, 3, quantization)


@pytest.mark.port("torch")
@pytest.mark.parametrize(
    ("quantization", "kinds", "says"),
    [
        (None, [], "layers in BF16, head in BF16"),
        ("4bit", [LlamaCpp.LLAMA_FTYPE_MOSTLY_Q4_0], "layers in Q4_0, head in Q6_K"),
        ("8bit", [LlamaCpp.LLAMA_FTYPE_MOSTLY_Q8_0], "layers in Q4_0, head in Q6_K"),
    ],
)
def test_its_own_quantiser_makes_the_file_that_its_process_reads(
    llama_cpp, started, quantization, kinds, says
):
    found = ask(quantization)
    assert llama_cpp.quantizations == [(kind, 3, True) for kind in kinds]
    assert list(found) == ["llama.cpp, unified", "llama.cpp, per request"]
    for each, is_unified in zip(found.values(), (True, False), strict=True):
        assert each.file.stem == ("quantized" if quantization else "plain") and not each.file.exists()
        assert each.arguments == (2, 9, 3, is_unified), "rows, room and threads"
    notes = found["llama.cpp, unified"].notes
    assert notes.endswith(f"; {says}, keys and values in F16; built with AVX2, OPENMP")


@pytest.mark.port("torch")
def test_weights_that_it_cannot_quantise_are_one_line(llama_cpp, started):
    llama_cpp.status = 1
    with pytest.raises(ValueError, match="cannot quantise these weights"):
        ask("4bit")


@pytest.mark.port("torch")
def test_the_file_has_the_shape_and_every_weight_in_its_type(packages, started):
    gguf = packages[1]
    ask()
    kinds = gguf.GGMLQuantizationType
    [(table, *table_kinds), (norm, *norm_kinds)] = (
        gguf.tensors[f"gguf.{name}.weight"] for name in ("embed_tokens", "norm")
    )
    assert table.shape == (8, 4) and table.dtype == np.float32 and 0 < abs(table).max() < 0.2
    assert norm.tolist() == [1.0] * 4
    assert (table_kinds, norm_kinds) == ([kinds.BF16] * 2, [kinds.F32] * 2)
    config = shape("tiny-qwen3", 1)
    expected = {
        "block_count": 1,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "key_length": config.head_dim,
        "value_length": config.head_dim,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": config.rope_theta,
        "vocab_size": config.vocab_size,
        "tokenizer_model": "none",
    }
    assert {name: gguf.fields[f"add_{name}"] for name in expected} == {
        name: (value,) for name, value in expected.items()
    }
    assert "write_tensors_to_file" in gguf.fields


@pytest.mark.port("torch")
def test_where_it_cannot_run_is_one_line(packages, started, monkeypatch):
    with pytest.raises(ValueError, match=r"--compare llama\.cpp runs on one device alone: add --device cpu"):
        ask(device="cuda")
    with pytest.raises(ValueError, match="writes Qwen3 models, not LlamaForCausalLM"):
        ask(architecture="LlamaForCausalLM")
    for missing in ("llama_cpp", "gguf"):
        monkeypatch.setattr(
            baselines, "find_spec", lambda name, missing=missing: None if name == missing else name
        )
        with pytest.raises(
            ValueError, match="not installed; run `python -m pip install llama-cpp-python gguf`"
        ):
            ask()


def test_a_baseline_gets_the_limits_of_the_plan(monkeypatch):
    asked = {}
    llm = SimpleNamespace(engine=SimpleNamespace(network=None))
    monkeypatch.setattr(throughput.LLM, "of", lambda *arguments, **options: llm)
    module = SimpleNamespace(generators=lambda name, checkpoint, *limits: asked.update({name: limits}) or {})
    monkeypatch.setattr(throughput, "module_of", lambda name, port: module)
    plan = throughput.ThroughputPlan(
        max_num_seqs=2, threads=3, quantization="4bit", compare=("llama.cpp",), random_weights=True
    )
    monkeypatch.setattr(throughput, "model_of", lambda port, job: (None, None))
    options = SimpleNamespace(num_ranks=1, speculation=None)
    job = SimpleNamespace(options=options, engine_options={})
    assert list(throughput.engines(plan, None, job, 9, None)) == ["tiny-llm"]
    assert asked == {"llama.cpp": (2, 9, 3, "4bit")}, "rows, room, threads and quantization"


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_can_be_made(name):
    """By the file's text, because its packages may be missing."""
    file = Path(baselines.__file__).with_name(f"{BASELINES[name].file}.py")
    made = {
        node.name
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    needed = BASELINES[name]
    assert ("generators" in made, "readers" in made) == (bool(needed.backend), needed.reads_gguf)
    assert ("callers" in made) == (needed.device is None), "llama.cpp has workloads alone"
