"""Small model folders for the tests of loading: nothing here is trained, and nothing is downloaded."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8}
CONFIG |= {"num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 320}
CONFIG |= {"max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
CONFIG |= {"tie_word_embeddings": True}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER_CONFIG = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    """A byte-level BPE of 300 tokens, with added tokens of both kinds."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    options = {"vocab_size": 296, "special_tokens": special, "show_progress": False}
    trainer = trainers.BpeTrainer(**options, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = ["a queue of requests waits, 北京 😀 café; the next step serves it\n"] * 9
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("été à", special=False)])
    return tokenizer


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Two of the tensors of a model of this shape; the reader does not know which a model needs."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (320, 32), "model.norm.weight": (32,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path, bpe: Tokenizer, arrays: dict[str, np.ndarray]) -> Path:
    """A whole and correct model folder, for a test to break."""
    save_file(arrays, tmp_path / "model.safetensors")
    bpe.save(str(tmp_path / "tokenizer.json"))
    for name, data in (("config.json", CONFIG), ("tokenizer_config.json", TOKENIZER_CONFIG)):
        (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    return tmp_path


@pytest.fixture
def edit(folder: Path):
    """Changes fields of a JSON file of the folder; a field set to `...` is taken out."""

    def change(file: str, **fields) -> None:
        path = folder / file
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        data.update(fields)
        path.write_text(
            json.dumps({name: value for name, value in data.items() if value is not ...}), encoding="utf-8"
        )

    return change
