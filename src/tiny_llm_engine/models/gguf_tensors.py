"""The weights of a GGUF file by Hugging Face name, as words, scales and biases, or as floats.

Q4_0, Q4_1 and Q8_0 have a float16 scale, and Q4_1 a minimum, for each 32 numbers of a row: the quantised weights of
Day 2.2 in another order, so that nothing is rounded. Llama's queries and keys are stored with the two halves of each
head interleaved.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from .config import ModelConfig
from .files import CheckpointError, shown
from .gguf_config import FREQUENCIES, GROUP_SIZE, KEPT_BITS, stays_quantized
from .gguf_file import GgufFile, GgufTensor
from .quantized_tensors import parts
from .safetensors_folder import TensorInfo

FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
ATTENTION = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
MLP = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}


@dataclass(frozen=True)
class Wanted:
    """A tensor that a model needs: its Hugging Face name, with "{}" for the expert in a stack, and its shape."""

    name: str
    shape: tuple[int, ...]


def wanted_tensors(config: ModelConfig) -> dict[str, Wanted]:
    """All tensors of a model, by their names in a file."""
    E, V = config.hidden_size, config.vocab_size
    found = {
        "token_embd.weight": Wanted("model.embed_tokens.weight", (V, E)),
        "output_norm.weight": Wanted("model.norm.weight", (E,)),
    }
    if not config.tie_word_embeddings:
        found["output.weight"] = Wanted("lm_head.weight", (V, E))
    for layer in range(config.num_hidden_layers):
        for name, (model_name, shape) in _of_layer(config, layer):
            found[f"blk.{layer}.{name}"] = Wanted(f"model.layers.{layer}.{model_name}", shape)
    return found


def _of_layer(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    E, D = config.hidden_size, config.head_dim
    query, kv = config.num_attention_heads * D, config.num_key_value_heads * D
    yield "attn_norm.weight", ("input_layernorm.weight", (E,))
    yield "ffn_norm.weight", ("post_attention_layernorm.weight", (E,))
    if config.head_norms:
        yield "attn_q_norm.weight", ("self_attn.q_norm.weight", (D,))
        yield "attn_k_norm.weight", ("self_attn.k_norm.weight", (D,))
    matrices = {"attn_q": (query, E), "attn_k": (kv, E), "attn_v": (kv, E), "attn_output": (E, query)}
    names = {name: f"self_attn.{ATTENTION[name]}" for name in matrices}
    if config.mixture is None or layer not in config.mixture.layers:
        F = config.intermediate_size
        matrices |= {"ffn_gate": (F, E), "ffn_up": (F, E), "ffn_down": (E, F)}
        names |= {name: f"mlp.{MLP[name]}" for name in MLP}
    else:
        yield from _of_mixture(config)
    for name, shape in matrices.items():
        yield f"{name}.weight", (f"{names[name]}.weight", shape)
        if names[name] in config.biases:
            yield f"{name}.bias", (f"{names[name]}.bias", shape[:1])


def _of_mixture(config: ModelConfig) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    assert config.mixture is not None
    E, X, F = config.hidden_size, config.mixture.num_experts, config.mixture.intermediate_size
    yield "ffn_gate_inp.weight", ("mlp.gate.weight", (X, E))
    for name, shape in {"ffn_gate": (F, E), "ffn_up": (F, E), "ffn_down": (E, F)}.items():
        yield f"{name}_exps.weight", (f"mlp.experts.{{}}.{MLP[name]}.weight", (X, *shape))


def weights_of(file: GgufFile, config: ModelConfig) -> dict[str, GgufTensor]:
    """The tensors of a file by Hugging Face name, in the order of its rows; a stack of experts is taken apart.

    Raises:
        CheckpointError: a tensor is missing, has another shape or a type that the library does not dequantise, or
            belongs to no model that the engine has.
    """
    wanted = wanted_tensors(config)
    for name in [name for name in file.tensors if name not in wanted and name != FREQUENCIES]:
        raise _refused(file, name, "is not of an architecture that this engine has; choose another model")
    found: dict[str, GgufTensor] = {}
    for name, (model_name, shape) in ((name, (each.name, each.shape)) for name, each in wanted.items()):
        tensor = file.tensors.get(name)
        if tensor is None:
            raise _refused(file, name, "is missing; download the file again")
        if tensor.shape != shape:
            problem = f"has shape {tensor.shape}, and the header asks for {shape}; choose another file of this model"
            raise _refused(file, name, problem)
        if "{}" in model_name:
            found |= {model_name.format(expert): _expert(tensor, expert) for expert in range(shape[0])}
        else:
            found[model_name] = tensor
    for tensor in {each.kind: each for each in found.values() if each.kind not in FLOATS}.values():
        # A row shows whether it can be read at all.
        replace(tensor, shape=(-1,), data=tensor.data[:1]).floats()
    return found


def _refused(file: GgufFile, name: str, problem: str) -> CheckpointError:
    path = file.tensors[name].file if name in file.tensors else file.path
    return CheckpointError(f"{path}: tensor {shown(name)} {problem}")


def _expert(stack: GgufTensor, expert: int) -> GgufTensor:
    return replace(stack, shape=stack.shape[1:], data=stack.data[expert])


def headers_of(weights: Mapping[str, GgufTensor]) -> dict[str, TensorInfo]:
    """The tensors that `numbers_of` makes, as headers of safetensors files would describe them."""
    found: dict[str, TensorInfo] = {}
    for name, tensor in weights.items():
        if not stays_quantized(name, tensor):
            is_float = tensor.kind in FLOATS
            kind, stored_as = (tensor.kind, "") if is_float else ("F32", tensor.kind)
            found[name] = TensorInfo(tensor.file, kind, tensor.shape, stored_as)
            continue
        rows, columns = tensor.shape
        words, *constants = parts(name)
        found[words] = TensorInfo(
            tensor.file, "U32", (rows, columns * KEPT_BITS[tensor.kind] // 32), tensor.kind
        )
        found |= {each: TensorInfo(tensor.file, "F16", (rows, columns // GROUP_SIZE)) for each in constants}
    return found


def numbers_of(tensor: GgufTensor, part: str, rows: np.ndarray | None) -> np.ndarray:
    """One of the arrays that a tensor becomes.

    Args:
        tensor: (O, I), or a vector.
        part: "weight" is the numbers, as words where they are quantised; "scales" or "biases".
        rows: their order; None is that of the file.

    Returns:
        Words in uint32, scales and biases in float16, (O, I / 32); or floats, bf16 as uint16.
    """
    if part == "floats":
        numbers = tensor.data.view(FLOATS[tensor.kind]) if tensor.kind in FLOATS else tensor.floats()
        return numbers if rows is None else numbers[rows]
    data = tensor.data if rows is None else tensor.data[rows]
    blocks = data.reshape(len(data), tensor.shape[1] // GROUP_SIZE, -1)
    if part == "weight":
        return _words(tensor.kind, blocks)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if part == "scales":
        return scale
    if tensor.kind == "Q4_1":
        return np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    # Their numbers have a sign, and ours none: q - 8 or q - 128 times the scale. A power of two is exact.
    return scale * np.float16(-8 if tensor.kind == "Q4_0" else -128)


def _words(kind: str, blocks: np.ndarray) -> np.ndarray:
    """The numbers of blocks (O, I / 32, bytes) in words (O, I · bits / 32), the first in the lowest bits."""
    if kind == "Q8_0":
        return (blocks[..., 2:] ^ 128).reshape(len(blocks), -1).view(np.uint32)
    halves = blocks[..., 4 if kind == "Q4_1" else 2 :]  # 16 bytes: the lower bits are the first 16 numbers
    numbers = np.concatenate([halves & 15, halves >> 4], axis=-1)
    return (numbers[..., ::2] | numbers[..., 1::2] << 4).reshape(len(blocks), -1).view(np.uint32)


def interleaved_rows(outputs: int, heads: int) -> np.ndarray:
    """Where each row of queries or keys is in a file of "llama", which has the pairs (i, i + D / 2) as neighbours."""
    return np.arange(outputs).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
