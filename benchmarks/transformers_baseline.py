"""Hugging Face transformers as a baseline: on the torch port's own weights, or on those of a GGUF file, dequantised."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, GenerationConfig, StaticCache
from transformers.generation import ContinuousBatchingConfig

from tiny_llm_course.trace.workload import RequestSpec, Workload
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint
from tiny_llm_engine.solutions.port import Port

from .baselines import hub_shape
from .own_process import OwnProcess

PAGE, BATCH_TOKENS = 128, 512  # of continuous batching, as our engine has them


def callers(checkpoint: RandomCheckpoint) -> dict[str, "Transformers"]:
    """The model with each of its caches, for single calls."""
    model = shared_model(checkpoint, checkpoint.device)
    return {
        f"transformers {cache}": Transformers(checkpoint, cache, model) for cache in ("static", "dynamic")
    }


def generators(name: str, checkpoint: RandomCheckpoint, rows: int, room: int, *_: Any) -> dict[str, Any]:
    """`generate` with each of its caches, and continuous batching where it runs; threads are those of torch."""
    model = shared_model(checkpoint, checkpoint.device)
    found: dict[str, Any] = {
        f"transformers, {cache}": TransformersBatch(model, rows, cache) for cache in ("dynamic", "static")
    }
    # On a CPU it asks psutil how much memory there is, and has none to use without it.
    if checkpoint.device != "cpu" or find_spec("psutil") is not None:
        found["transformers, continuous"] = TransformersContinuous(checkpoint, rows, room)
    return found


def readers(name: str, file: Path, port: Port, rows: int, room: int, threads: int) -> dict[str, OwnProcess]:
    """`generate` on a file's weights, in the engine's type."""
    notes = f"`generate` on static batches, weights dequantised to {port.float_dtype}"
    return {
        name: OwnProcess(batches_of_file, file, port.device, port.float_dtype, rows, threads, notes=notes)
    }


def batches_of_file(file: Path, device: str, dtype: str, rows: int, threads: int) -> "TransformersBatch":
    """Make a `TransformersBatch` with weights of its own, for a process of its own.

    transformers' own reader gives the same model, but needs `accelerate`, which nothing else here does.
    """
    torch.set_num_threads(threads)
    with redirect_stderr(io.StringIO()):  # what our reader dequantises is in the notes
        checkpoint = load_checkpoint(file, "torch", device, dtype)
    return TransformersBatch(shared_model(checkpoint, device), rows, "dynamic")


@dataclass
class Transformers:
    """Their model with fused attention and one of its caches: its default, or the one for graphs."""

    checkpoint: RandomCheckpoint  # whose arrays it shares
    cache: str  # "dynamic" or "static"
    model: Any  # see `shared_model`

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> None:
        """Compute a prompt into a fresh cache, and chooses the next token."""
        self._next([tokens], self._new_cache(len(tokens) + 1))

    def _new_cache(self, length: int) -> DynamicCache | StaticCache:
        if self.cache == "dynamic":
            return DynamicCache(config=self.model.config)
        return StaticCache(config=self.model.config, max_cache_len=length)

    def _next(self, tokens: list[list[int]], cache: DynamicCache | StaticCache) -> list[int]:
        ids = torch.tensor(tokens, device=self.checkpoint.device)
        out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1).tolist()

    @torch.inference_mode()
    def fill(self, rows: int, context: int, steps: int) -> None:
        """Make a batch of rows that hold `context` random tokens, with room for `steps` more."""
        config = self.model.config
        self._past = self._new_cache(context + steps)
        dtype = self.checkpoint.backend_module.DTYPES[self.checkpoint.dtype]
        shape = (rows, config.num_key_value_heads, context, config.head_dim)
        for index in range(config.num_hidden_layers):
            key, value = (torch.randn(shape, dtype=dtype, device=self.checkpoint.device) for _ in "kv")
            self._past.update(key, value, index)
        self.rows, self.context, self.steps = rows, context, steps

    @torch.inference_mode()
    def decode(self) -> None:
        """Decode `steps` tokens per row, each read by the host; then the cache is as it was."""
        tokens = [[1]] * self.rows
        for _ in range(self.steps):
            tokens = [[token] for token in self._next(tokens, self._past)]
        for layer in self._past.layers:
            if self.cache == "static":
                layer.cumulative_length.fill_(self.context)
            else:
                layer.crop(-self.steps)


def shared_model(checkpoint: Checkpoint | RandomCheckpoint, device: str) -> Any:
    """Their model of this architecture on the checkpoint's own arrays: nothing is copied. RoPE is the plain one."""
    shape = hub_shape(checkpoint.config)
    rope = {"rope_type": "default", "rope_theta": shape.pop("rope_theta")}
    kind = getattr(transformers, checkpoint.config.architecture)
    theirs = kind.config_class(**shape, rope_parameters=rope, attn_implementation="sdpa", eos_token_id=None)
    with torch.device("meta"):
        model = kind(theirs)
    missing, unexpected = model.load_state_dict(checkpoint.weights, strict=False, assign=True)
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise ValueError(f"the weights of transformers have other names: {missing}, {unexpected}")
    model.tie_weights()
    # RoPE's frequencies are not weights: made on the meta device, they have no numbers yet.
    model.model.rotary_emb = type(model.model.rotary_emb)(theirs).to(device)
    return model.eval()


@dataclass
class TransformersBatch:
    """`generate` on static batches: requests in their order, padded on the left, until the longest answer is done."""

    model: Any  # see `shared_model`
    rows: int  # requests of a batch
    cache: str  # "dynamic" or "static"

    @torch.inference_mode()
    def generate(self, workload: Workload) -> None:
        """Answer all requests, each with as many tokens as it asks for, or more."""
        specs = workload.requests
        for start in range(0, len(specs), self.rows):
            self._batch(specs[start : start + self.rows])

    def _batch(self, specs: Sequence[RequestSpec]) -> None:
        width, answer = max(spec.tokens for spec in specs), max(spec.answer for spec in specs)
        ids = torch.tensor([[*[0] * (width - spec.tokens), *spec.prompt] for spec in specs])
        mask = torch.tensor([[0] * (width - spec.tokens) + [1] * spec.tokens for spec in specs])
        config = GenerationConfig(max_new_tokens=answer, do_sample=False, pad_token_id=0)
        if self.cache == "static":
            config.cache_implementation = "static"
        device = self.model.device
        self.model.generate(ids.to(device), attention_mask=mask.to(device), generation_config=config).tolist()


@dataclass
class TransformersContinuous:
    """Continuous batching of transformers, with its own defaults but for the number of requests."""

    # whose arrays it shares; its model is its own, for it changes the model's attention
    checkpoint: RandomCheckpoint
    rows: int  # requests that run at a time
    room: int  # tokens of the longest request

    def __post_init__(self):
        self.model = shared_model(self.checkpoint, self.checkpoint.device)

    def generate(self, workload: Workload) -> None:
        """Answer all requests, each with as many tokens as it asks for."""
        pages = self.rows * -(-self.room // PAGE)
        config = ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=pages, max_batch_tokens=BATCH_TOKENS, max_requests_per_batch=self.rows
        )
        wanted = {str(number): spec for number, spec in enumerate(workload.requests)}
        with self.model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=config,
            persistent_manager=True,  # its memory is allocated once, in the run that is not counted
        ) as manager:
            for name, spec in wanted.items():
                manager.add_request(list(spec.prompt), request_id=name, max_new_tokens=spec.answer)
            while wanted:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    self._check(result, wanted.pop(result.request_id))
                elif result is None and not manager.is_running():
                    raise ValueError("transformers' continuous batching ended before its requests did")

    @staticmethod
    def _check(result: Any, spec: RequestSpec) -> None:
        if len(result.generated_tokens) != spec.answer:
            raise ValueError(
                f"transformers' continuous batching gave {len(result.generated_tokens)} of {spec.answer} tokens: "
                f"{result.error}"
            )
