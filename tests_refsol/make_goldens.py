"""Makes `tests/goldens/` again: `pdm run python tests_refsol/make_goldens.py`.

transformers computes, in float32 on the CPU and with its plain ("eager") attention; the weights are random.
"""

import json
import platform
import sys
from dataclasses import asdict
from datetime import date

import numpy as np
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from tiny_llm_course.grading.small_models import CASES, SmallModel, random_weights
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.config import ModelConfig

sys.path.insert(0, str(ROOT / "tests"))
from support.goldens import FOLDER, MIXTURES, SmallMixture, random_inputs, random_mixture

COMMAND = "pdm run python tests_refsol/make_goldens.py"


def oracle(case: SmallModel) -> transformers.Qwen3ForCausalLM:
    """transformers' Qwen3 with the weights of a case."""
    weights = {name: torch.from_numpy(weight) for name, weight in random_weights(case).items()}
    if case.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = transformers.Qwen3ForCausalLM(_their_config(case.config)).eval()
    model.load_state_dict(weights)
    return model


def _their_config(config: ModelConfig) -> transformers.Qwen3Config:
    fields = _fields(config)
    theta = fields.pop("rope_theta")
    for ours_alone in ("architecture", "dtype", "quantization"):
        fields.pop(ours_alone)
    rope = {"rope_type": "default", "rope_theta": theta}
    return transformers.Qwen3Config(**fields, rope_parameters=rope, attn_implementation="eager")


def _fields(config: ModelConfig) -> dict:
    """The fields of plain Qwen3, without those that other families have."""
    others = ("attention_bias", "mlp_bias", "sliding_window", "layer_types", "rope_scaling", "mixture")
    return {name: value for name, value in asdict(config).items() if name not in (*others, "max_model_len")}


@torch.no_grad()
def compute(case: SmallModel) -> dict[str, np.ndarray]:
    """The arrays that `golden` describes."""
    model, (inputs, stream) = oracle(case), random_inputs(case)
    x, ids = torch.from_numpy(stream), torch.from_numpy(inputs)
    positions = torch.arange(case.tokens)[None]
    # Written as -inf above the diagonal; nothing of ours makes it.
    mask = torch.full((case.tokens, case.tokens), -torch.inf).triu(1)[None, None]
    layer, rotations = model.model.layers[0], model.model.rotary_emb(x, positions)
    attention, _ = layer.self_attn(x, position_embeddings=rotations, attention_mask=mask)
    block = layer(x, position_embeddings=rotations, attention_mask=mask)
    results = {"x": x, "attention": attention, "block": block, "logits": model(ids).logits}
    return {"inputs": inputs} | {name: array.numpy() for name, array in results.items()}


@torch.no_grad()
def compute_mixture(case: SmallMixture) -> dict[str, np.ndarray]:
    """The arrays that `golden_mixture` describes."""
    arrays = {name: torch.from_numpy(array) for name, array in random_mixture(case).items()}
    block = _their_mixture(case).eval()
    names = {"gate.weight": "router", "experts.gate_up_proj": "gate_up", "experts.down_proj": "down"}
    block.load_state_dict({theirs: arrays[ours] for theirs, ours in names.items()})
    _, weights, experts = block.gate(arrays["x"])
    results = {"experts": experts, "weights": weights, "y": block(arrays["x"][None])[0]}
    return {name: array.numpy() for name, array in results.items()}


def _their_mixture(case: SmallMixture) -> torch.nn.Module:
    """transformers' layer of a family; the families name the same sizes differently."""
    shared = {"hidden_size": case.hidden_size, "num_experts_per_tok": case.k}
    shared["experts_implementation"] = "eager"
    if case.family == "Mixtral":
        config = transformers.MixtralConfig(
            **shared, num_local_experts=case.num_experts, intermediate_size=case.intermediate_size
        )
        return MixtralSparseMoeBlock(config)
    sizes = {"num_experts": case.num_experts, "moe_intermediate_size": case.intermediate_size}
    config = transformers.Qwen3MoeConfig(**shared, **sizes, norm_topk_prob=case.renormalise)
    return Qwen3MoeSparseMoeBlock(config)


def provenance() -> dict:
    """Who computed the goldens, when, and from what."""
    where = {"dtype": "float32", "device": "cpu", "machine": platform.machine()}
    libraries = {"transformers": transformers, "torch": torch, "numpy": np}
    return {
        "command": COMMAND,
        "date": date.today().isoformat(),
        **where,
        "versions": {name: library.__version__ for name, library in libraries.items()},
        "cases": {name: asdict(case) | {"config": _fields(case.config)} for name, case in CASES.items()},
        "mixtures": {name: asdict(case) for name, case in MIXTURES.items()},
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        np.savez_compressed(FOLDER / f"{name}.npz", **compute(case))
    for name, mixture in MIXTURES.items():
        np.savez_compressed(FOLDER / f"{name}.npz", **compute_mixture(mixture))
    (FOLDER / "provenance.json").write_text(json.dumps(provenance(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
