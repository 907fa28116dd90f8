"""Random weights as a GGUF file, the format of llama.cpp. Needs the package `gguf`."""

from pathlib import Path

import gguf

from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint

TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}


def write_gguf(checkpoint: RandomCheckpoint, file: Path) -> None:
    """Write a Qwen3 model: matrices in the checkpoint's type, norms in float32, no vocabulary.

    Args:
        checkpoint: whose weights are all drawn already.

    Raises:
        ValueError: the model is not a Qwen3.
    """
    config = checkpoint.config
    if config.architecture != "Qwen3ForCausalLM":
        raise ValueError(
            f"--compare llama.cpp writes Qwen3 models, not {config.architecture}: add --config NAME"
        )
    writer = gguf.GGUFWriter(file, "qwen3")
    _add_shape(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for name, array in checkpoint.weights.items():
        numbers = checkpoint.backend_module.to_numpy(array).astype("float32")
        kind = TYPES["float32" if numbers.ndim == 1 else checkpoint.dtype]
        data = gguf.quants.quantize(numbers, kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")


def matrix_types(file: Path) -> tuple[str, str]:
    """The types in which a file holds the matrices of the layers, and the output head; a tied head is the embedding."""
    found = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}
    return found["blk.0.ffn_up.weight"], found.get("output.weight", found["token_embd.weight"])
