"""The weights of a GGUF file by Hugging Face name, as words, scales and biases, or as floats.

Q4_0, Q4_1 and Q8_0 have a float16 scale, and Q4_1 a minimum, for each 32 numbers of a row: the quantised weights of
Day 2.2 in another order, so that nothing is rounded. Llama's queries and keys are stored with the two halves of each
head interleaved.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.files import CheckpointError, shown
from tiny_llm_engine.models.quantized_tensors import parts
from tiny_llm_engine.models.safetensors_folder import TensorInfo
from tiny_llm_engine.models.weight_shapes import weight_shapes

from .gguf_config import FREQUENCIES, GROUP_SIZE, KEPT_BITS, stays_quantized
from .gguf_file import GgufFile, GgufTensor

FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
# The parts of a model by Hugging Face's names, without the layer, and by llama.cpp's.
NAMES = {
    "model.embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "model.norm": "output_norm",
    "lm_head": "output",
}
# A file has a stack for each matrix of an expert, where the model has one for gate and up.
STACKS = {"mlp.experts.gate_up_proj": ("gate", "up"), "mlp.experts.down_proj": ("down",)}
PLACE = re.compile(r"(?:model\.layers\.(\d+)\.)?(.+?)(\.weight|\.bias)?")


@dataclass(frozen=True)
class Wanted:
    """A tensor that a model needs: its Hugging Face name, with "{}" for the expert in a stack, and its shape."""

    name: str
    shape: tuple[int, ...]


def wanted_tensors(config: ModelConfig) -> dict[str, Wanted]:
    """All tensors of a model, by their names in a file."""
    found = {}
    for name, shape in weight_shapes(config).items():
        place = PLACE.fullmatch(name)
        assert place is not None, "every weight has a name of this form"
        layer, part, kind = place.groups("")
        block = f"blk.{layer}." if layer else ""
        if part not in STACKS:
            found[f"{block}{NAMES[part]}{kind}"] = Wanted(name, shape)
            continue
        (experts, rows, columns), matrices = shape, STACKS[part]
        for each in matrices:
            model_name = f"model.layers.{layer}.mlp.experts.{{}}.{each}_proj.weight"
            wanted = Wanted(model_name, (experts, rows // len(matrices), columns))
            found[f"{block}ffn_{each}_exps.weight"] = wanted
    return found


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
    for name, each in wanted.items():
        tensor, shape = file.tensors.get(name), each.shape
        if tensor is None:
            raise _refused(file, name, "is missing; download the file again")
        if tensor.shape != shape:
            problem = f"has shape {tensor.shape}, and the header asks for {shape}; choose another file of this model"
            raise _refused(file, name, problem)
        if "{}" in each.name:
            found |= {
                each.name.format(expert): replace(tensor, shape=shape[1:], data=tensor.data[expert])
                for expert in range(shape[0])
            }
        else:
            found[each.name] = tensor
    for tensor in {each.kind: each for each in found.values() if each.kind not in FLOATS}.values():
        # A row shows whether it can be read at all.
        replace(tensor, shape=(-1,), data=tensor.data[:1]).floats()
    return found


def _refused(file: GgufFile, name: str, problem: str) -> CheckpointError:
    path = file.tensors[name].file if name in file.tensors else file.path
    return CheckpointError(f"{path}: tensor {shown(name)} {problem}")


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
