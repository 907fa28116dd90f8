"""Batch generation with vLLM's interface: `generate(prompts, sampling_params)`.

Knows texts, messages and token ids on one side, and the engine on the other. The `LLM` that users import is this one
with all that is put on its engine.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from os import PathLike
from typing import Any, TypeVar

from tiny_llm_engine.solutions.port import Port

from .admission import ServingState
from .engine_options import EngineLimits, PlainOptions
from .engine_request import EngineRequest
from .events import EventQueue
from .known_arguments import check_call
from .limits import Limits
from .llm_engine import LLMEngine
from .loading import Loading, read_network
from .machine.installation import backend_of_environment, default_port
from .machine.progress_bar import GenerationBar
from .models.files import shown
from .models.quantization import QUANTIZATIONS
from .outputs import RequestOutput
from .packed_runner import PackedRunner, PaddingWaste
from .solutions.solution_types import AnswerSequence, Event, Network, SamplingParams, ServingPackage
from .step_loop import StepLoop

Opened = TypeVar("Opened", bound="PlainLLM")
PLAIN = "generate continues texts as they are, and this is a chat model: chat(messages) applies its template"


class PlainLLM:
    """A model with Week 3's engine. Keeps its prefix cache from call to call.

    Several threads may share it. Their calls take turns: `generate`, `chat`, `stream`, `reset_prefix_cache` and `close`
    wait until the call before them has returned. A server runs requests of several threads together. A listener or
    callback of a call must not make another one on its thread: that raises a RuntimeError.

    Use it as a context manager, or call `close`: both give its memory back.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id.
        quantization: "4bit" or "8bit" quantises the layers' weights while loading.
        head_quantization: the same for the output head.
        backend: "mlx" or "torch"; "auto" reads the environment variable TINY_LLM_BACKEND, and is the machine's default
            without it: mlx on a Mac, torch elsewhere, if it is installed.
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        solution: whose code runs.
        options: of the engine, see `PlainOptions`.

    Raises:
        CheckpointError: the model's files are unusable, or not here.
        TypeError: there is no such option.
        ValueError: a value is out of range, or there is no such device.
    """

    _has_said = False  # that `chat` applies the template

    def __init__(
        self,
        model: str | PathLike[str] = "tiny-qwen3",
        *,
        quantization: str | None = None,
        head_quantization: str | None = None,
        backend: str = "auto",
        device: str = "auto",
        dtype: str = "auto",
        solution: str = "tiny_llm_ref",
        **options: Any,
    ):
        checked = PlainOptions(**options)
        check_quantization("quantization", quantization)
        check_quantization("head_quantization", head_quantization)
        port = Port(solution, chosen_backend(backend), device, dtype)
        plan = Loading(quantization, head_quantization, max_model_len=checked.max_model_len)
        self.engine = plain_engine(port, *read_network(port, model, "week3", plan), checked)

    def generate(
        self, prompts: Any, sampling_params: Any = None, use_tqdm: bool = True, **vllms: Any
    ) -> list[RequestOutput]:
        """Answer prompts, as many at a time as the engine runs.

        A request that cannot be served has the finish reason "error" and a line that says why; the others are served.

        Args:
            prompts: a text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these. A text is
                encoded as it is.
            sampling_params: `SamplingParams` of all prompts, or a list with one for each; greedy, and at most 16
                tokens, when None.
            use_tqdm: whether to draw a progress bar on a terminal.
            vllms: further arguments of vLLM's method, with values that change nothing: see `CALL_ARGUMENTS`.

        Returns:
            One result per prompt, in their order.

        Raises:
            ValueError: the numbers of prompts and parameters differ, or an argument of vLLM's is not supported.
            TypeError: there is no such argument.
            KeyboardInterrupt: Ctrl-C, after every request of this call has ended and its blocks are free.
            Whatever the model raises, likewise.
        """
        if vllms:
            check_call(vllms)
        with self.engine.turn():
            requests = self._requests(prompts, sampling_params)
            self._say_if_plain(requests)
            return self._served(requests, use_tqdm)

    def _requests(self, prompts: Any, sampling_params: Any) -> list[EngineRequest]:
        listed = as_list(prompts)
        params = self._params_of(sampling_params, len(listed))
        return [self._request(prompt, each) for prompt, each in zip(listed, params, strict=True)]

    def _say_if_plain(self, requests: Sequence[EngineRequest]) -> None:
        """Says once that a chat model continues a text, where a conversation may have been meant."""
        tokenizer = self.engine.tokenizer
        if self._has_said or not getattr(tokenizer, "has_chat_template", False):
            return
        plain = [each for each in requests if each.prompt is not None and each.error is None]
        if plain and not any(tokenizer.has_special(each.prompt_token_ids) for each in plain):
            self._has_said = True
            warnings.warn(PLAIN, stacklevel=3)

    def _served(self, requests: list[EngineRequest], use_tqdm: bool) -> list[RequestOutput]:
        with GenerationBar(requests) if use_tqdm else nullcontext() as on_step:
            self.engine.run(requests, on_step)
        return [request.output() for request in requests]

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: Any = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **vllms: Any,
    ) -> list[RequestOutput]:
        """Answer conversations, rendered by the model's chat template.

        Args:
            messages: one conversation, a list of `{"role": …, "content": …}`; or a list of conversations. They are
                read as the server reads them, see `plain_message`.
            sampling_params, use_tqdm, vllms: see `generate`.
            add_generation_prompt: whether the prompt ends where the assistant's turn begins.
            tools: that the template describes to the model; the text of an answer has its calls.
            chat_template_kwargs: further variables of the template, such as `enable_thinking`.

        Raises:
            CheckpointError: the model has no chat template, or it fails on these messages.
            ValueError: a message has no text.
        """
        render = self.engine.tokenizer.apply_chat_template
        names = {**(chat_template_kwargs or {}), **({"tools": tools} if tools else {})}
        prompts = [
            render(conversation, add_generation_prompt, **names)
            for conversation in conversations_of(messages)
        ]
        if vllms:
            check_call(vllms)
        with self.engine.turn():
            return self._served(self._requests(prompts, sampling_params), use_tqdm)

    def stream(self, prompt: Sequence[int], sampling_params: Any, on_text: Callable[[str], object]) -> str:
        """Answer one prompt and yield the text piece by piece.

        Args:
            prompt: token ids.
            on_text: called after each token with the text that it completes, which may be empty.

        Raises:
            ValueError: the prompt cannot be served.
        """
        with self.engine.turn():
            request = self.engine.request(None, prompt, sampling_params)
            [sequence], stream = request.sequences, _TextStream(on_text)
            self.engine.run([request], lambda: stream.emit(sequence))
        [answer] = request.output().outputs
        if answer.error is not None:
            raise ValueError(answer.error)
        return answer.text

    def get_default_sampling_params(self) -> Any:
        """The sampling parameters of a call that gives none: greedy."""
        return self.engine.names.SamplingParams()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.engine.tokenizer

    @property
    def padding_waste(self) -> PaddingWaste:
        """The padding that the model has computed so far; none without buckets."""
        return self.engine.runner.waste

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        with self.engine.turn():
            self.engine.reset_prefix_cache()

    def close(self) -> None:
        """Free the memory of weights and KV blocks, once no call is running. Closing twice does nothing."""
        with self.engine.turn():
            self.engine.close()

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _params_of(self, params: Any, count: int) -> list[Any]:
        """One value per prompt, with the default instead of None."""
        names = self.engine.names
        is_list = isinstance(params, Sequence) and not isinstance(params, str)
        listed = list(params) if is_list else [params] * count
        if wrong := [each for each in listed if not isinstance(each, names.SamplingParams | None)]:
            raise ValueError(
                f"sampling_params is {shown(wrong[0])}: give SamplingParams(max_tokens=…), or a list of these"
            )
        if len(listed) != count:
            raise ValueError(
                f"{len(listed)} sampling_params for {count} prompts: give one for all, or one each"
            )
        return [names.SamplingParams() if given is None else given for given in listed]

    def _request(self, prompt: Any, params: SamplingParams) -> EngineRequest:
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        text = text if isinstance(text, str) else None
        try:
            ids, error = self._ids(prompt), None
        except Exception as problem:  # tokenizers raise nothing narrower, and this prompt is one of many
            ids, error = [], f"the prompt is neither a text nor token ids: {problem}"
        return self.engine.request(text, ids, params, error)

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, Mapping):
            prompt = (
                prompt["prompt"] if prompt.get("prompt_token_ids") is None else prompt["prompt_token_ids"]
            )
        if isinstance(prompt, str):
            return self.engine.tokenizer.encode(prompt)
        return self.engine.names.plain_ids(prompt)


class _TextStream:
    """Passes the text of one sequence on, once per new token."""

    def __init__(self, on_text: Callable[[str], object]):
        self._on_text, self._tokens, self._characters = on_text, 0, 0

    def emit(self, sequence: AnswerSequence) -> None:
        """Emit the text since the last call, if there is a new token or text."""
        text, tokens = sequence.text, len(sequence.tokens)
        if tokens > self._tokens or len(text) > self._characters:
            self._on_text(text[self._characters :])
            self._tokens, self._characters = tokens, len(text)


def plain_engine(port: Port, network: Network, tokenizer: Any, options: PlainOptions) -> LLMEngine:
    """The engine of a model that is loaded, with nothing put on it.

    Raises:
        ValueError: the options contradict the model.
    """
    limits = EngineLimits.of(options, network.config)
    longest = -(-limits.max_model_len // options.block_size)
    num_blocks = options.num_blocks or options.max_num_seqs * longest
    runner = port.packed_runner(network, num_blocks, options.block_size)
    runner.max_model_len = limits.max_model_len
    loop = partial(plain_loop, port.serving, options, limits)
    return LLMEngine(port, tokenizer, options, limits, runner, loop)


def plain_loop(
    names: ServingPackage,
    options: PlainOptions,
    limits: EngineLimits,
    runner: PackedRunner,
    clock: Callable[[], float],
    on_event: Callable[[Event], object],
) -> StepLoop[AnswerSequence]:
    """A loop with empty blocks and an empty queue, whose steps `HybridScheduler` plans.

    Args:
        names: the module `serving` of the solution.
        clock: seconds.
    """
    allocator = names.BlockAllocator(
        runner.num_blocks, options.block_size, enable_prefix_caching=options.enable_prefix_caching
    )
    of_step = Limits(
        limits.max_num_batched_tokens,
        options.max_num_seqs,
        enable_chunked_prefill=limits.has_chunks,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
    )
    state = ServingState(allocator, of_step, events=EventQueue([on_event]))
    return StepLoop(runner, names.HybridScheduler(state), clock)


def chosen_backend(backend: str) -> str:
    """The port for a name, of which "auto" is the environment's or the machine's."""
    backend = backend_of_environment(backend)
    return default_port() if backend == "auto" else backend


def check_quantization(name: str, value: str | None) -> None:
    """Raise ValueError if an option is not a quantisation."""
    if value not in (None, *QUANTIZATIONS):
        raise ValueError(f"{name} is {value!r}: choose {' or '.join(QUANTIZATIONS)}, or None")


def conversations_of(messages: Any) -> Sequence[Any]:
    """A list of conversations: a list of messages is one."""
    is_list = isinstance(messages, Sequence) and not any(isinstance(each, str) for each in messages)
    if not is_list:
        raise ValueError(f'messages is {shown(messages)}: give a list of {{"role": "user", "content": …}}')
    is_single = not messages or isinstance(messages[0], Mapping)
    return [messages] if is_single else messages


def as_list(prompts: Any) -> list[Any]:
    """A list of prompts: a text, an object or a list of token ids is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not hasattr(prompts, "__iter__"):
        raise ValueError(f"prompts is {shown(prompts)}: give a text, token ids, or a list of these")
    listed = list(prompts)
    is_prompt = all(isinstance(part, int) or getattr(part, "shape", None) == () for part in listed)
    return [listed] if listed and is_prompt else listed
