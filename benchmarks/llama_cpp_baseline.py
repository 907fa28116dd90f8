"""llama.cpp as a baseline, through the C interface that `llama-cpp-python` binds. CPU only."""

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llama_cpp
import numpy as np

from tiny_llm_course.trace.workload import RequestSpec, Workload
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint

from .baselines import units
from .gguf_file import matrix_types, write_gguf
from .own_process import OwnProcess

FILE_TYPES = {"4bit": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "8bit": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
CALL_TOKENS = 2048  # the default of llama.cpp's server for `--batch-size`; it computes 512 of them at a time

LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR, which the binding's own logger hides, while it prints warnings
errors: list[str] = []  # what llama.cpp logged as such


@llama_cpp.llama_log_callback
def keep_errors(level: int, text: bytes, user_data: Any) -> None:
    if level == LOG_ERROR:
        errors.append(text.decode(errors="replace").strip())


llama_cpp.llama_log_set(keep_errors, ctypes.c_void_p(0))


def failed(what: str) -> ValueError:
    """Build the error for something that llama.cpp cannot do, with its reasons."""
    return ValueError(f"llama.cpp cannot {what}: {'; '.join(errors)}")


def generators(
    name: str, checkpoint: RandomCheckpoint, rows: int, room: int, threads: int, quantization: str | None
) -> dict[str, OwnProcess]:
    """llama.cpp in processes of their own that read the checkpoint's weights from a file.

    Args:
        checkpoint: whose weights are all drawn already.
        rows, room, threads: see `LlamaCppBatch`.
        quantization: "4bit" and "8bit" are Q4_0 and Q8_0, as llama.cpp's own quantiser makes them.

    Raises:
        ValueError: llama.cpp cannot run this model.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "plain.gguf")
        write_gguf(checkpoint, file)
        if quantization:
            file = quantized(file, FILE_TYPES[quantization], threads)
        return readers(name, file, None, rows, room, threads)


def readers(name: str, file: Path, _: Any, *limits: int) -> dict[str, OwnProcess]:
    """llama.cpp with each of its caches, in processes of their own; `limits` as `LlamaCppBatch` has them."""
    layers, head = matrix_types(file)
    built = units(llama_cpp.llama_print_system_info().decode())
    both = f"layers in {layers}, head in {head}, keys and values in F16; built with {built}"
    caches = (
        ("unified", f"one buffer for the keys and values of all requests; {both}"),
        ("per request", "a buffer for the keys and values of each request"),
    )
    return {
        f"llama.cpp, {cache}": OwnProcess(LlamaCppBatch, str(file), *limits, cache == "unified", notes=notes)
        for cache, notes in caches
    }


def quantized(file: Path, kind: int, threads: int) -> Path:
    """Quantise a file with llama.cpp's defaults, which keep more bits of the head, and so of a tied embedding."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = kind, threads, True
    target = file.with_name("quantized.gguf")
    if llama_cpp.llama_model_quantize(str(file).encode(), str(target).encode(), ctypes.byref(options)):
        raise failed("quantise these weights")
    return target


@dataclass
class RunningRequest:
    """A request that has a sequence of llama.cpp's cache."""

    tokens: Sequence[int]  # of the next call: its prompt, later its newest token
    position: int  # of the first of them
    left: int  # tokens that are still wanted

    def advance(self, token: int) -> None:
        """Count its tokens as cached, and take the next one."""
        self.position += len(self.tokens)
        self.tokens, self.left = (token,), self.left - 1


class LlamaCppBatch:
    """Continuous batching as llama.cpp's server does it: a call has a token of all that decode, and new prompts.

    Args:
        file: the weights.
        rows: requests that run at a time.
        room: tokens of the longest request.
        threads: how many threads compute each call.
        is_unified: whether all requests share one buffer of keys and values, where those of others are masked. With a
            buffer for each, only requests with neighbouring numbers share a product.

    Raises:
        ValueError: llama.cpp cannot load the weights, or run this many requests.
    """

    def __init__(self, file: str, rows: int, room: int, threads: int, is_unified: bool):
        self.rows, self.call_tokens = rows, max(CALL_TOKENS, rows + room)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE  # no mapping of a file that is deleted soon
        if not (model := llama_cpp.llama_model_load_from_file(file.encode(), options)):
            raise failed("load these weights")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._context = llama_cpp.llama_init_from_model(model, self._options(room, threads, is_unified))
        if not self._context:
            raise failed(f"run {rows} requests of {room} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(self.call_tokens, 0, 1)

    def _options(self, room: int, threads: int, is_unified: bool) -> Any:
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = self.rows * room, self.rows
        options.n_batch = self.call_tokens
        options.n_threads = options.n_threads_batch = threads
        options.kv_unified = is_unified
        return options

    def generate(self, workload: Workload) -> None:
        """Answer all requests, each with as many tokens as it asks for."""
        waiting, running = deque(workload.requests), {}
        while waiting or running:
            self._admit(waiting, running)
            for place, token in self._step(running).items():
                running[place].advance(token)
                if not running[place].left:
                    del running[place]
                    llama_cpp.llama_memory_seq_rm(self._memory, place, -1, -1)

    def _admit(self, waiting: deque[RequestSpec], running: dict[int, RunningRequest]) -> None:
        """Start requests while there are places, and room for their whole prompts in the next call."""
        tokens = len(running)
        for place in sorted(set(range(self.rows)) - set(running)):
            if not waiting or tokens + waiting[0].tokens > self.call_tokens:
                return
            spec = waiting.popleft()
            tokens += spec.tokens
            running[place] = RunningRequest(spec.prompt, 0, spec.answer)

    def _step(self, running: Mapping[int, RunningRequest]) -> dict[int, int]:
        """Run one call: the most probable next token of each request, by its place."""
        places = sorted(running)  # so that neighbours are found: see `is_unified`
        self._fill([(place, running[place]) for place in places])
        if status := llama_cpp.llama_decode(self._context, self._batch):
            raise failed(f"compute {self._batch.n_tokens} tokens (status {status})")
        logits = np.ctypeslib.as_array(
            llama_cpp.llama_get_logits(self._context), (len(places), self._vocabulary)
        )
        return dict(zip(places, logits.argmax(-1).tolist(), strict=True))

    def _fill(self, requests: Sequence[tuple[int, RunningRequest]]) -> None:
        """Write the tokens of a call; of each request only the last one gets logits."""
        batch, at = self._batch, 0
        for place, request in requests:
            for offset, token in enumerate(request.tokens):
                batch.token[at], batch.pos[at] = token, request.position + offset
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, place
                batch.logits[at] = offset == len(request.tokens) - 1
                at += 1
        batch.n_tokens = at
