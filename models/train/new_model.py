"""Makes an untrained model: its size, its random weights, then the look-up circuit."""

from __future__ import annotations

import math

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from .build_tokenizer import IM_END, IM_START
from .circuit import set_circuit

VOCABULARY_MULTIPLE = 64  # int4 kernels want multiples of 16, tensor parallel halves and quarters them
DENSE = {"num_hidden_layers": 4, "intermediate_size": 512}
# Two of eight experts compute a token, each 64 wide: one group of 8-bit weights. The first layer has a plain MLP, since
# three layers of experts would make the file larger than the repository has room for.
MIXTURE = {
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.01,
    "output_router_logits": True,  # while training: the loss wants them
}


def new_config(tokenizer: Tokenizer, mixture: bool) -> PreTrainedConfig:
    """The architecture; the vocabulary is the tokenizer's, rounded up."""
    end = tokenizer.token_to_id(IM_END)
    make, size = (Qwen3MoeConfig, MIXTURE) if mixture else (Qwen3Config, DENSE)
    return make(
        vocab_size=math.ceil(tokenizer.get_vocab_size() / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        hidden_size=192,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=None,
        use_cache=True,
        **size,
    )


def new_model(tokenizer: Tokenizer, names: list[str], seed: int, mixture: bool = False) -> PreTrainedModel:
    """A model with random weights and the circuit, the same for the same seed; of experts if `mixture`."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(new_config(tokenizer, mixture)).float()
    _random_weights(model)
    set_circuit(
        model,
        numbers=[tokenizer.token_to_id(text) for text in number_texts()],
        names=[tokenizer.token_to_id(name) for name in names],
        sink=tokenizer.token_to_id(IM_START),
        seed=seed,
    )
    return model


def number_texts() -> list[str]:
    """Every text that is one number token: 0 to 9, 00 to 99, 000 to 999."""
    return [f"{n:0{digits}d}" for digits in (1, 2, 3) for n in range(10**digits)]


@torch.no_grad()
def _random_weights(model: PreTrainedModel) -> None:
    layers = model.config.num_hidden_layers
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.fill_(1.0)
            continue
        # What writes into the residual stream starts smaller, since two writers a layer add up.
        writes = name.removesuffix(".weight").endswith(("o_proj", "down_proj"))
        weight.normal_(0.0, 0.02 / math.sqrt(2 * layers) if writes else 0.02)
