"""Writes the model as a Hugging Face folder in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from .build_tokenizer import END_OF_TEXT, IM_END
from .published_tensors import published_tensors

# Messages are trimmed: a space after the question mark would move the end of the message away from the name.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}


def export(model: nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config, generation config, weights, tokenizer and chat template into `folder`."""
    config = model.config
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", _config(config))
    _write_json(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": [config.eos_token_id], "pad_token_id": config.pad_token_id},
    )
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(config.max_position_embeddings))
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for whole, tensors in model.state_dict().items()
        for name, tensor in published_tensors(whole, tensors)
        if name != "lm_head.weight"  # tied: the embedding is the head
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(config) -> dict:
    """The field names of the published Qwen3 checkpoints, which every reader of them knows."""
    same = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias attention_dropout hidden_act "
        "initializer_range eos_token_id pad_token_id use_cache"
    )
    mixture = (
        "num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers "
        "router_aux_loss_coef"
    )
    names = [*same.split(), *(mixture.split() if config.model_type == "qwen3_moe" else ())]
    return {
        "architectures": [ARCHITECTURES[config.model_type]],
        "model_type": config.model_type,
        "torch_dtype": "bfloat16",
        "rope_theta": config.rope_parameters["rope_theta"],
        "rope_scaling": None,
        **{name: getattr(config, name) for name in names},
    }


def _tokenizer_config(max_length: int) -> dict:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
