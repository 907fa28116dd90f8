"""All families by configuration: logits of transformers' models, and of no wrong version of them."""

import io
import json
import runpy
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from support.close import assert_close
from tiny_llm_course.commands import main as command
from tiny_llm_engine.loading import Loading, load_checkpoint
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.terminal import TerminalSession
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.config import read_config
from tiny_llm_engine.models.families import FAMILIES
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.tokenizer import load_tokenizer

family = runpy.run_path(str(ROOT / "tests_refsol" / "model" / "family_cases.py"))
CASES, Case, DYNAMIC = family["CASES"], family["Case"], family["DYNAMIC"]
IDS = family["prompt"](family["PROMPT"])
# What float32 differs by is below 1e-5; whatever is computed otherwise is far above this.
TOLERANCE, WRONG = 1e-4, 1e-2


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of a case: transformers' model, and the folder that it wrote."""
    transformers.utils.logging.disable_progress_bar()  # a test that reads stderr may be the first to write a model
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = family["oracle"](CASES[name]), tmp_path_factory.mktemp(name)
            made[name][0].save_pretrained(made[name][1])
        return made[name]

    return get


def ours(b, folder):
    return b.Qwen3ModelWeek2(load_checkpoint(folder, b.name, b.device, "float32"), make_mlp=b.mlp_of)


def test_every_family_has_three_shapes_and_every_kind_of_rope():
    """Grouped and plain heads, heads that are not E / H, tied and untied, windows shorter than the prompt."""
    for name in ("Qwen3", "Qwen2", "Llama", "Mistral", "Mixtral", "Qwen3Moe"):
        cases = [case for case in CASES.values() if case.family == name]
        assert len(cases) >= 3, name
        assert {case.tied for case in cases} == {True, False}, name
        assert {case.heads[0] > case.heads[1] for case in cases} == {True, False}, name
        assert len({case.rope["rope_type"] for case in cases}) >= 3, name
    kinds = {case.rope["rope_type"] for case in CASES.values()}
    assert kinds == {"default", "linear", "dynamic", "llama3", "yarn"}
    windows = [case.fields["sliding_window"] for case in CASES.values() if case.fields.get("sliding_window")]
    assert len(windows) >= 5 and max(windows) < len(IDS)


@pytest.mark.parametrize("name", CASES)
def test_a_prompt_and_its_pieces_equal_transformers(b, saved, name):
    """Whole; and a piece without a past, one behind it, then token by token: each asks for another mask."""
    theirs, folder = saved(name)
    model, expected = ours(b, folder), family["logits"](theirs, IDS)
    assert 1 < np.abs(expected).max() < 10, "logits of another size would need another tolerance"
    for way in ("prefilled", "in_pieces"):
        actual = family[way](b, model, IDS)
        assert_close(actual, expected, atol=TOLERANCE, rtol=0, idea=f"{name}, {way}: logits differ")


# Every family, window and kind of heads. Shapes that differ from these in RoPE alone have the same batches.
BATCHED = ["qwen3-gqa-tied", "qwen3-window", "qwen3-types", "qwen3-moe-mha-window", "qwen3-moe-step"]
BATCHED += ["qwen2-mha", "qwen2-window", "llama2-mha", "llama-biases", "llama-yarn"]
BATCHED += ["mistral-window", "mistral-mqa-tied", "mistral-itself", "mixtral-window-tied"]


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("way", ["in_a_batch", "in_hybrid_batches"])
def test_batches_of_mixed_lengths_equal_transformers(b, s, saved, name, way):
    """More prompts than slots, so that rows of different lengths share steps and slots are used again; and Week 3's
    chunks with and without a past beside decodes, in pages, through every kind of head, RoPE and window.
    """
    theirs, folder = saved(name)
    kind = b.Qwen3ModelWeek2 if way == "in_a_batch" else b.Qwen3ModelWeek3
    model = kind(load_checkpoint(folder, b.name, b.device, "float32"), make_mlp=b.mlp_of)
    answers = family[way](b, s, model)
    assert [len(text) for text, _ in answers] == [n + family["ANSWER"] for n in family["PROMPTS"]]
    for text, found in answers:
        expected = family["logits"](theirs, text)[len(text) - len(found) - 1 : -1]
        assert_close(found, expected, atol=TOLERANCE, rtol=0, idea=f"{name}: a row {way} differs")


def test_a_window_far_behind_the_first_steps_of_the_cache(b, tmp_path):
    """The caches' memory grows in steps of 256 positions: the window moves across one, and leaves the first behind."""
    case = Case("Mistral", (4, 2, 10), fields={"sliding_window": 100})
    theirs = family["oracle"](case, longest=600)
    theirs.save_pretrained(tmp_path)
    ids = family["prompt"](420)
    actual = family["in_pieces"](b, ours(b, tmp_path), ids, pieces=(250, 5, 1, 1, 130, 31, 1, 1))
    assert_close(
        actual, family["logits"](theirs, ids), atol=TOLERANCE, rtol=0, idea="a window in a long cache"
    )


def test_a_padded_prompt_has_the_same_window(b, saved):
    """A graph compiler wants few shapes: the runner pads, and tokens behind the prompt must not be seen."""
    theirs, folder = saved("mistral-window")
    found = []
    runner = b.runner(
        ours(b, folder), prompt_bucket=16, on_logits=lambda rows, logits: found.append(logits[0])
    )
    cache = runner.create_kv_cache()
    token = runner.prefill(IDS, 0, cache, sample=True)
    runner.prefill([token], len(IDS), cache, sample=True)
    expected = family["logits"](theirs, [*IDS, token])[-2:]
    assert_close(found, expected, atol=TOLERANCE, rtol=0, idea="the padding of a prompt is seen")


def test_a_mask_of_the_caller_meets_the_window(b, saved):
    """A given array stays what it is in layers that see everything, and is narrowed in those that slide."""
    theirs, folder = saved("qwen3-types")
    model, L = ours(b, folder), len(IDS)
    mask = np.where(np.tri(L, dtype=bool), 0.0, -np.inf).astype(np.float32)
    actual = b.numpy(model(b.array([IDS]), 0, model.create_kv_cache(), mask=b.array(mask)))[0]
    assert_close(actual, family["logits"](theirs, IDS), atol=TOLERANCE, rtol=0, idea="an array as the mask")


def config_of(**fields):
    return lambda config: replace(config, **fields)


def rope_of(**fields):
    return lambda config: replace(config, rope_scaling=replace(config.rope_scaling, **fields))


def wider(config):
    return replace(config, sliding_window=config.sliding_window + 1)


def narrower(config):
    return replace(config, sliding_window=config.sliding_window - 1)


def other_layers(config):
    return replace(config, layer_types=config.layer_types[::-1])


WRONG_CONFIGURATIONS = {
    "a window of one more": ("mistral-window", wider),
    "a window of one less": ("mistral-window", narrower),
    "a window of one more, in some layers": ("qwen2-window", wider),
    "a window of one less, in some layers": ("qwen3-window", narrower),
    "no window": ("mistral-mqa-tied", config_of(layer_types=())),
    "no window, in some layers": ("qwen3-types", config_of(layer_types=())),
    "the other layers slide": ("qwen2-window", other_layers),
    "linear scaling ignored": ("qwen2-mha", config_of(rope_scaling=None)),
    "llama3 scaling ignored": ("llama3-gqa-tied", config_of(rope_scaling=None)),
    "yarn scaling ignored": ("mistral-no-window", config_of(rope_scaling=None)),
    "yarn's attention factor ignored": ("qwen3-mha-bias", rope_of(attention_factor=1.0)),
    "yarn's given attention factor ignored": ("llama-yarn-factor", rope_of(attention_factor=1.0)),
    "another theta": ("mistral-window", config_of(rope_theta=10000.0)),
}


@pytest.mark.parametrize(("name", "change"), WRONG_CONFIGURATIONS.values(), ids=WRONG_CONFIGURATIONS.keys())
def test_the_comparison_sees_a_wrong_configuration(b, saved, name, change):
    theirs, folder = saved(name)
    right = load_checkpoint(folder, b.name, b.device, "float32")
    wrong = b.Qwen3ModelWeek2(Checkpoint(change(right.config), right.weights), make_mlp=b.mlp_of)
    for way in ("prefilled", "in_pieces"):
        difference = np.abs(family[way](b, wrong, IDS) - family["logits"](theirs, IDS)).max()
        assert difference > WRONG, f"{way}: a wrong version differs by {difference:.1e} only"


ATTENTION, MLP = "self_attn.{}_proj.bias", "mlp.{}_proj.bias"
IGNORED = [("qwen2-gqa-tied", ATTENTION.format(part)) for part in "qkv"]
IGNORED += [(name, ATTENTION.format(part)) for name in ("qwen3-mha-bias", "llama-biases") for part in "qkvo"]
IGNORED += [("llama-biases", MLP.format(part)) for part in ("gate", "up", "down")]
IGNORED += [("qwen3-gqa-tied", f"self_attn.{part}_norm.weight") for part in "qk"]


@pytest.mark.parametrize(("name", "ending"), IGNORED)
def test_the_comparison_sees_an_ignored_weight(b, saved, name, ending):
    """One that is forgotten is one that does nothing: a bias of zeros, a norm of ones."""
    theirs, folder = saved(name)
    right = load_checkpoint(folder, b.name, b.device, "float32")
    ignored = [key for key in right.weights if key.endswith(ending)]
    nothing = {key: right.weights[key] * 0 + ("norm" in ending) for key in ignored}
    assert len(nothing) == 3
    wrong = b.Qwen3ModelWeek2(Checkpoint(right.config, {**right.weights, **nothing}), make_mlp=b.mlp_of)
    difference = np.abs(family["prefilled"](b, wrong, IDS) - family["logits"](theirs, IDS)).max()
    assert difference > WRONG, f"without {ending} logits differ by {difference:.1e} only"


def test_a_missing_bias_is_named(b, saved):
    right = load_checkpoint(saved("qwen2-mha")[1], b.name, b.device, "float32")
    name = "model.layers.1.self_attn.k_proj.bias"
    weights = {key: array for key, array in right.weights.items() if key != name}
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
        b.Qwen3ModelWeek2(Checkpoint(right.config, weights), make_mlp=b.mlp_of)


LENGTH = "original_max_position_embeddings"
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4}
ROPES = {
    "linear": [{"factor": 2.0}, {"factor": 3}],
    "llama3": [
        BANDS | {"factor": 8.0, LENGTH: 8192},
        BANDS | {"factor": 32.0, LENGTH: 512},
        {"factor": 2, "low_freq_factor": 2.5, "high_freq_factor": 3.5},
    ],
    "yarn": [
        {"factor": 4.0, LENGTH: 32768},
        {"factor": 16.0},
        {"factor": 1.0, "beta_fast": 8, "beta_slow": 0.5},
        {"factor": 4.0, "attention_factor": 0.7, "truncate": False, LENGTH: 300},
        {"factor": 40, "mscale": 1.0, "mscale_all_dim": 0.707, LENGTH: 4096},
        {"factor": 8.0, "mscale": 2.0, "beta_fast": 1.5, "beta_slow": 1.4, LENGTH: 99},
    ],
}


@pytest.mark.parametrize(("head_dim", "theta"), [(6, 500.0), (64, 10000), (128, 1e6)])
@pytest.mark.parametrize(("kind", "fields"), [(kind, f) for kind in ROPES for f in ROPES[kind]])
def test_frequencies_are_transformers(tmp_path, kind, fields, theta, head_dim):
    """Over each kind's fields, given and left out, for heads and bases of real models and of none."""
    rope = {"rope_type": kind, "rope_theta": theta} | fields
    sizes = {"hidden_size": head_dim * 2, "num_attention_heads": 2, "max_position_embeddings": 2048}
    theirs = transformers.LlamaConfig(**sizes, rope_parameters=dict(rope))
    theirs.architectures = ["LlamaForCausalLM"]
    theirs.save_pretrained(tmp_path)
    expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs)
    found = read_config(tmp_path).rope_scaling
    assert found.rope_type == kind
    # Two libraries' powers differ in the last bit of float32, and llama3's mixture subtracts nearly equal numbers.
    assert_close(found.frequencies, expected.numpy(), atol=0, rtol=2e-6, idea=f"frequencies of {kind}")
    assert found.attention_factor == pytest.approx(factor, rel=1e-12)


def test_dynamic_has_transformers_frequencies_at_each_length(tmp_path):
    """Plain up to the context of the file; a later position has those of the text that ends there."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
    theirs = transformers.LlamaConfig(**sizes, rope_parameters=dict(DYNAMIC))
    theirs.architectures = ["LlamaForCausalLM"]
    theirs.save_pretrained(tmp_path)
    angles = read_config(tmp_path).rope_scaling.angles(90)
    for position in (1, 63, 64, 89):
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, seq_len=position + 1)
        expected = position * frequencies.numpy()
        assert_close(angles[position], expected, atol=0, rtol=2e-6, idea=f"dynamic at position {position}")


def test_an_answer_beyond_the_context_of_pretraining_is_transformers(b, tmp_path):
    """Token by token, since transformers rotates a whole prompt by its length, and keys in a cache stay."""
    theirs = family["oracle"](Case("Llama", (4, 2, 8), DYNAMIC), longest=16)
    theirs.save_pretrained(tmp_path)
    pieces = (14, *[1] * (len(IDS) - 14))
    expected, past, start = [], None, 0
    for length in pieces:
        ids = torch.tensor([IDS[start : start + length]])
        found = theirs(ids, past_key_values=past, use_cache=True)
        past, start = found.past_key_values, start + length
        expected.append(found.logits[0].detach().numpy())
    actual = family["in_pieces"](b, ours(b, tmp_path), IDS, pieces=pieces)
    assert_close(actual, np.concatenate(expected), atol=TOLERANCE, rtol=0, idea="dynamic beyond its context")


CONTEXTS = {
    "default": ({"rope_type": "default"}, 100),
    "linear": ({"rope_type": "linear", "factor": 2.5}, 250),
    "dynamic": ({"rope_type": "dynamic", "factor": 4}, 400),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80}, 320),
    "yarn without its length": ({"rope_type": "yarn", "factor": 4.0}, 400),
    "llama3": ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}, 100),
}


@pytest.mark.parametrize(("rope", "context"), CONTEXTS.values(), ids=CONTEXTS.keys())
def test_a_scaled_rope_reads_as_many_tokens_as_in_vllm(tmp_path, rope, context):
    data = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 100, "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    assert read_config(tmp_path).max_position_embeddings == context


@pytest.mark.parametrize(
    ("loader", "rope", "context"), [("week1", {}, 2**24), ("week2", DYNAMIC, 16), ("week3", {}, 2**24)]
)
def test_rope_has_tables_for_the_tokens_that_are_read(b, tmp_path, loader, rope, context):
    """The config stays as it was read, also for what a scaled RoPE computes from its context."""
    family["oracle"](Case("Llama", (4, 2, 8), rope), longest=16).save_pretrained(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": context}
    (tmp_path / "config.json").write_text(json.dumps(data))
    where = b.name, b.device, "float32"
    checkpoint = load_checkpoint(tmp_path, *where, max_model_len=24)
    model = Loading().network(b, loader, checkpoint)
    tables = getattr(model, "rope", None) or model.layers[0].self_attn.rope
    assert tables.cos.shape[0] == 24 and model.config == read_config(tmp_path)
    if rope:
        whole = b.Qwen3ModelWeek2(load_checkpoint(tmp_path, *where)).rope
        np.testing.assert_array_equal(b.numpy(tables.cos), b.numpy(whole.cos)[:24])


# What a configuration class of transformers and ours have under one name.
SAME_FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
SAME_FIELDS += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
SAME_OF_A_MIXTURE = ("num_experts_per_tok", "norm_topk_prob", "num_experts", "intermediate_size")


@pytest.mark.parametrize("architecture", FAMILIES)
def test_fields_that_a_file_omits_are_those_of_transformers_class(tmp_path, architecture):
    theirs = getattr(transformers, architecture.replace("ForCausalLM", "Config"))()
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}), encoding="utf-8")
    found = read_config(tmp_path)
    for name in SAME_FIELDS:
        assert getattr(found, name) == getattr(theirs, name), name
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (found.head_dim, found.rope_theta) == (head_dim, theirs.rope_parameters["rope_theta"])
    assert found.windows == (getattr(theirs, "sliding_window", None),) * theirs.num_hidden_layers
    biases = getattr(theirs, "attention_bias", architecture.startswith("Qwen2"))
    assert (found.attention_bias, found.mlp_bias) == (biases, getattr(theirs, "mlp_bias", False))
    if found.mixture is None:
        return
    normed = getattr(theirs, "norm_topk_prob", True)
    width = getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)
    numbers = (theirs.num_experts_per_tok, normed, theirs.num_local_experts, width)
    assert tuple(getattr(found.mixture, name) for name in SAME_OF_A_MIXTURE) == numbers
    assert found.mixture.layers == tuple(range(theirs.num_hidden_layers))


SIZES = {"hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 64, "vocab_size": 80, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}}
NAMED = {"head_dim": 8, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}
NAMED["layer_types"] = ["full_attention", *["sliding_attention"] * 2, *["full_attention"] * 2]
RULES = {
    "Mistral says nothing": ("Mistral", {}),
    "Mistral says none": ("Mistral", {"sliding_window": None}),
    "Mistral with heads of its own": ("Mistral", {"head_dim": 20, "sliding_window": 9}),
    "Qwen2 says nothing": ("Qwen2", {}),
    "Qwen2 has a window and no switch": ("Qwen2", {"sliding_window": 7, "max_window_layers": 0}),
    "Qwen2 says off": ("Qwen2", {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 2}),
    "Qwen2 says on": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3}),
    "Qwen2 says on, for later layers": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7}),
    "Qwen2 says on alone": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 0}),
    "Qwen3 names layers": ("Qwen3", NAMED),
    "Llama of the first files": ("Llama", {"num_key_value_heads": ..., "rms_norm_eps": 1e-6}),
    "Llama with a null": ("Llama", {"num_key_value_heads": None, "head_dim": None}),
    "Qwen2 with a null": ("Qwen2", {"num_key_value_heads": None}),
    "the old spelling": ("Llama", LINEAR | {"rope_theta": 777.0}),
    "both spellings": ("Llama", LINEAR | {"rope_parameters": {"rope_theta": 9.0}}),
    "the length outside": ("Llama", {"rope_scaling": {"type": "yarn", "factor": 2.0}, LENGTH: 100}),
}


@pytest.mark.parametrize(("name", "fields"), RULES.values(), ids=RULES.keys())
def test_a_file_means_what_it_means_to_transformers(tmp_path, name, fields):
    """Files by hand, with fields left out: windows of layers, heads, theta, the kind of RoPE."""
    data = {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower()} | SIZES | fields
    text = json.dumps({key: value for key, value in data.items() if value is not ...})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    theirs, found = transformers.AutoConfig.from_pretrained(tmp_path), read_config(tmp_path)
    slides = getattr(theirs, "sliding_window", None)
    alike = ["sliding_attention" if slides else "full_attention"] * theirs.num_hidden_layers
    types = getattr(theirs, "layer_types", None) or alike
    assert found.windows == tuple(slides if kind == "sliding_attention" else None for kind in types)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (found.head_dim, found.num_key_value_heads) == (head_dim, theirs.num_key_value_heads)
    rope = theirs.rope_parameters
    assert found.rope_theta == rope["rope_theta"]
    assert (found.rope_scaling.rope_type if found.rope_scaling else "default") == rope["rope_type"]
    if found.rope_scaling:
        frequencies, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs)
        assert_close(found.rope_scaling.frequencies, frequencies.numpy(), rtol=5e-7, idea="frequencies")


# One of each family that Week 1 computes: groups and none, tied and not, with norms on heads and without.
PLAIN = {
    "Qwen3": Case("Qwen3", (6, 2, 10), tied=True),
    "Llama": Case("Llama", (6, 2, 6), tied=True, silent=True),
    "Llama, no groups": Case("Llama", (3, 3, 8)),
    "Mistral": Case("Mistral", (4, 1, 14), fields={"sliding_window": None}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_week_1_computes_a_plain_model_of_every_family(b, tmp_path, name):
    """Norms on heads that a family does not have change nothing."""
    theirs = family["oracle"](PLAIN[name])
    theirs.save_pretrained(tmp_path)
    model = b.Qwen3ModelWeek1(load_checkpoint(tmp_path, b.name, b.device, "float32"))
    actual, expected = b.numpy(model(b.array([IDS])))[0], family["logits"](theirs, IDS)
    assert_close(actual, expected, atol=TOLERANCE, rtol=0, idea=f"{name}: Week 1's model differs")


BEYOND_WEEK_1 = {
    "mistral-window": "sliding_window",
    "qwen2-gqa-tied": "biases",
    "qwen3-mha-bias": "biases, rope_type yarn",
    "llama-biases": "biases, rope_type linear",
    "mixtral-window-tied": "sliding_window, experts, rope_type linear",
    "qwen3-moe-gqa-tied": "experts",
}


@pytest.mark.parametrize(("name", "beyond"), BEYOND_WEEK_1.items())
def test_week_1_refuses_what_it_does_not_compute_in_one_line(b, saved, capsys, name, beyond):
    folder = saved(name)[1]
    small_tokenizer(folder)
    options = ["--solution", "ref", "--backend", b.name, "--device", "cpu", "--loader", "week1"]
    with pytest.raises(SystemExit) as end:
        command.main([*options, "--model", str(folder), "--prompt", "a"])
    line = f"Week 1's model does not compute {beyond}: use Week 2's model\n"
    assert (end.value.code, *capsys.readouterr()) == (2, "", line)


def small_tokenizer(folder) -> None:
    """A byte-level tokenizer of 60 tokens that begins every text, beside the weights."""
    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())[:58]]
    bpe = Tokenizer(models.BPE({word: id for id, word in enumerate(words)}, [], unk_token="!"))
    bpe.add_special_tokens(["<s>", "</s>"])
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    bpe.save(str(folder / "tokenizer.json"))
    template = "{{ bos_token }}{% for message in messages %}({{ message.content }}){% endfor %}"
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize("name", ["qwen2-window", "llama3-gqa-tied", "mistral-window"])
def test_main_answers_with_such_a_folder(b, saved, capsys, monkeypatch, name):
    """What `pdm run main` prints with Week 2's engine: the text that transformers' greedy tokens stand for."""
    theirs, folder = saved(name)
    small_tokenizer(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    tokenizer = load_tokenizer(folder)
    engine = TerminalSession(
        b, b.simple_generate_with_kv_cache, ours(b, folder), tokenizer, None, context=96, max_tokens=9
    )
    command.answer(engine, "A0:9")
    ids = tokenizer.encode("<s>(A0:9)")
    assert ids.count(0) == 1, "the template writes the beginning, and the tokenizer must not add another"
    for _ in range(9):
        ids.append(int(family["logits"](theirs, ids)[-1].argmax()))
    # 60 of the 61 rows have a token, so that random weights seldom end the text.
    expected = tokenizer.decode(ids[7:] if 1 not in ids[7:] else ids[7 : ids.index(1, 7)])
    assert capsys.readouterr().out.split("\n")[0] == expected
