"""The options of the server."""

from dataclasses import dataclass, field

from tiny_llm_engine.models.files import Json

from .finite_schema import MOST_TOKENS, UNASKED
from .tool_calls import FORMATS

BODY_BYTES, TOKEN_BYTES = 2**20, 32  # of a request: always, and for each token of the context


@dataclass(frozen=True)
class ServerOptions:
    """The options of the server; those of the engine are `EngineOptions`.

    Args:
        model_name: what clients call the model.
        solution: whose `EngineLoop` runs.
        max_queue: answers that wait, beyond `max_num_seqs` that run; more are refused with 429.
        api_key: clients must send it; None lets everybody in. Better in the environment, as TINY_LLM_API_KEY.
        request_timeout: seconds until a request is given up.
        drain_timeout: seconds that open requests have to end, once the server stops.
        max_body_bytes: bytes of a request; None is 1 MiB, and 32 for each token of the context.
        max_request_logprobs: log-probabilities that the answers to a request may have, each token's own and those of
            the most probable ones, some 30 bytes each; a request that may have more is refused with 400.
        allowed_hosts: names of this server that the Host header of a request may have; None accepts all. On the command
            line "*" accepts all, and without the option those of this machine, or all with another --host.
        live_controls: whether the page at / may change the token budget of a step. On the command line without the
            option: yes on a loopback address without --api-key, --allowed-hosts, --uds and --root-path, else no.
        tool_call_parser: how the model writes calls of tools: hermes, mistral or llama3_json; None is as its chat
            template shows.
        reasoning_parser: a name of vLLM's for models that think between <think> and </think>; None if the chat template
            says so.
        other_names: what clients may call the model too.
        root_path: what a proxy in front takes away from paths.
        allowed_origins: web pages that may read answers (CORS), "*" for all.
        allowed_methods: methods of these pages; an empty list allows all.
        allowed_headers: headers of these pages; an empty list allows all.
        allow_credentials: whether these pages may send cookies.
        bounded_response_format: whether values of a response_format have limits where its schema gives none, so that a
            small model comes to an end: numbers of 15 digits, strings and lists that fit into max_tokens, or into 2,000
            tokens without it. structured_outputs has no such limits.
        chat_template_kwargs: variables of the chat template, unless a request gives others.
        access_log: whether each request is a line in the log: status, seconds, tokens, id; no query, header or prompt.
        log_stats: whether throughput is a line in the log while there is any.

    Raises:
        ValueError: a number is out of range.
    """

    model_name: str = "tiny-qwen3"
    solution: str = "ref"
    max_queue: int = 256
    api_key: str | None = None
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    max_body_bytes: int | None = None
    max_request_logprobs: int = 8_000_000
    allowed_hosts: tuple[str, ...] | None = None
    live_controls: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    other_names: tuple[str, ...] = ()
    root_path: str = ""
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ()
    allowed_headers: tuple[str, ...] = ()
    allow_credentials: bool = False
    bounded_response_format: bool = True
    chat_template_kwargs: Json = field(default_factory=dict)
    access_log: bool = False
    log_stats: bool = False

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; answers have the first."""
        return self.model_name, *self.other_names

    def body_limit(self, context: int | None) -> int:
        """Bytes of a request: what text of the context takes, and as much again for what surrounds it.

        Args:
            context: tokens of a prompt and its answer; None if that is not known yet.
        """
        return self.max_body_bytes or BODY_BYTES + TOKEN_BYTES * (context or 0)

    def form_room(self, limit: int | None, context: int) -> int | None:
        """Tokens that the values of a `response_format` are limited to; None if they are not."""
        return min(limit or UNASKED, context, MOST_TOKENS) if self.bounded_response_format else None

    def __post_init__(self):
        leasts = {"max_queue": 0, "drain_timeout": 0, "max_body_bytes": 1, "max_request_logprobs": 0}
        for name, least in leasts.items():
            if (value := getattr(self, name)) is not None and not value >= least:  # neither is NaN
                raise ValueError(f"{name} is {value}: give at least {least}")
        if not self.request_timeout > 0:
            raise ValueError(f"request_timeout is {self.request_timeout}: give more than 0 seconds")
        if self.tool_call_parser not in (None, *FORMATS):
            raise ValueError(f"tool_call_parser is {self.tool_call_parser!r}: give {', '.join(FORMATS)}")
        if self.api_key == "":
            raise ValueError(
                "api_key is empty: an empty key protects nothing; leave it out, or give a longer one"
            )
