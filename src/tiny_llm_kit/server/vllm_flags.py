"""The command line of `vllm serve` for ours: a file, the environment, other names, and flags without effect."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.vllm_arguments import ANYTHING, ARGUMENTS, check_argument

PREFIX = "TINY_LLM_SERVE_"  # of variables: TINY_LLM_SERVE_MAX_NUM_SEQS is --max-num-seqs
YAML = (".yaml", ".yml")
DTYPES = {"half": "float16", "float": "float32"}
OTHER_NAMES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
    "-q": "--quantize",
    "-O": "--optimization-level",
    "-cc": "--compilation-config",
    "--quantization": "--quantize",
    "--num-gpu-blocks-override": "--num-blocks",
}
ONE_PROCESS = "one process serves HTTP; --replicas N starts more engines"
NO_DOCS = "there are no pages of documentation; /openapi.json is the schema"
NO_PLUGINS = "nothing is imported by name"
NO_PROMPTS = "prompts and answers are never logged"
ALWAYS = "it is always so"
# Of the HTTP side of `vllm serve`: names, the values that change nothing here, and the reason.
ROWS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("headless data_parallel_supervisor", (False,), ONE_PROCESS),
    ("api_server_count", (1,), ONE_PROCESS),
    ("data_parallel_supervisor_port dp_supervisor_probe_interval_s", ANYTHING, ONE_PROCESS),
    ("dp_supervisor_probe_timeout_s dp_supervisor_probe_failure_threshold", ANYTHING, ONE_PROCESS),
    ("disable_uvicorn_access_log", ANYTHING, "there is none without --access-log"),
    ("disable_access_log_for_endpoints", ANYTHING, "there is none without --access-log"),
    ("log_config_file", (), "the form of the log is given"),
    ("disable_log_requests max_log_len", ANYTHING, NO_PROMPTS),
    ("enable_log_requests enable_log_outputs", (False,), NO_PROMPTS),
    ("enable_log_deltas log_error_stack", ANYTHING, NO_PROMPTS),
    ("disable_fastapi_docs enable_offline_docs", ANYTHING, NO_DOCS),
    ("middleware", ([],), NO_PLUGINS),
    ("tool_parser_plugin reasoning_parser_plugin", ("",), NO_PLUGINS),
    ("tool_server", (), "clients call tools"),
    ("enable_auto_tool_choice", ANYTHING, ALWAYS),
    ("exclude_tools_when_tool_choice_none", (True,), ALWAYS),
    ("enable_request_id_headers enable_prompt_tokens_details", (True,), ALWAYS),
    ("enable_reasoning", ANYTHING, "--reasoning-parser, or the chat template, says so"),
    ("response_role", ("assistant",), "answers are the assistant's"),
    ("chat_template_content_format", ("auto", "string"), "templates get texts"),
    ("trust_request_chat_template return_tokens_as_token_ids", (False,), "requests do not say so"),
    ("enable_force_include_usage", (False,), "requests ask for it"),
    ("enable_server_load_tracking enable_per_request_metrics", (False,), "/metrics has the load"),
    ("enable_tokenizer_info_endpoint", (False,), "/tokenize and /detokenize are there"),
    ("lora_modules prompt_adapters", (), "there are no adapters"),
    ("enable_ssl_refresh", (False,), "start the server again for a new certificate"),
    ("ssl_ciphers", (), "Python's own ciphers are used"),
    ("h11_max_incomplete_event_size h11_max_header_count", ANYTHING, "headers have limits of their own"),
    ("disable_frontend_multiprocessing enable_flash_late_interaction", ANYTHING, ONE_PROCESS),
    ("fingerprint_mode fingerprint_value", ANYTHING, "answers have no such field"),
    ("cohere_format cohere_is_reasoning_model", ANYTHING, "answers have no such form"),
)  # fmt: skip
SERVER_ARGUMENTS = {name: (values, reason) for names, values, reason in ROWS for name in names.split()}
# Flags that stand alone in vLLM, although any value changes nothing here; those of True and False are known by these.
ALONE_ROWS = (
    "trust_remote_code disable_log_requests use_v2_block_manager disable_custom_all_reduce disable_cascade_attn",
    "disable_hybrid_kv_cache_manager disable_uvicorn_access_log disable_fastapi_docs enable_offline_docs",
    "enable_auto_tool_choice enable_reasoning enable_log_deltas log_error_stack disable_async_output_proc",
    "disable_frontend_multiprocessing multi_step_stream_outputs language_model_only aggregate_engine_logging",
    "enable_flash_late_interaction cohere_is_reasoning_model enable_flashinfer_autotune skip_mm_profiling",
    "disable_mm_preprocessor_cache use_tqdm_on_load enable_mfu_metrics cudagraph_metrics kv_cache_metrics",
    "enable_layerwise_nvtx_tracing enable_logging_iteration_details fail_on_environ_validation numa_bind",
    "enable_multimodal_encoder_data_parallel disable_nccl_for_dp_synchronization eplb_log_balancedness",
)
ALONE = frozenset(name for names in ALONE_ROWS for name in names.split())


def expanded(
    parser: argparse.ArgumentParser, argv: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """The command line with what the environment and files say before it, so that what was typed wins.

    Says in one line which flags of vLLM's have no effect here.

    Raises:
        ValueError: a file or a variable cannot be read, or a flag of vLLM's would change something.
    """
    known = known_options(parser)
    files, typed = without_files([*renamed(argv)])
    words = [*words_of_environment(known, environment)]
    for file in files:
        words += words_of_file(known, file)
    kept, ignored = without_vllms(known, [*words, *typed])
    if ignored:
        print(f"no effect here: {', '.join(ignored)}", file=sys.stderr)
    return kept


def known_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser by each of their names."""
    return {name: action for action in parser._actions for name in action.option_strings}


def renamed(argv: Sequence[str]) -> Iterator[str]:
    """Words with our names of options; vLLM takes "_" for "-" too."""
    before = ""
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            name = name.replace("_", "-")
        name = OTHER_NAMES.get(name, name)
        if before == "--dtype":
            name = DTYPES.get(name, name)
        elif name == "--dtype":
            value = DTYPES.get(value, value)
        before = name
        yield f"{name}{equals}{value}"


def without_files(words: list[str]) -> tuple[list[str], list[str]]:
    """The files of `--config FILE.yaml`, and the other words."""
    files, others, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        name, _, value = word.partition("=")
        if name == "--config" and value.endswith(YAML):
            files.append(value)
        elif word == "--config" and rest and rest[0].endswith(YAML):
            files.append(rest.pop(0))
        else:
            others.append(word)
    return files, others


def words_of_file(known: Mapping[str, argparse.Action], file: str) -> list[str]:
    """The words that a YAML file of options stands for.

    Raises:
        ValueError: it cannot be read, or is no mapping.
    """
    import yaml  # of huggingface_hub

    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {file}: {' '.join(str(error).split())[:200]}; correct it") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"--config {file}: give a mapping of options to values, such as `port: 8000`")
    words = [word for name, value in content.items() for word in words_of(known, name, value)]
    return [*renamed(words)]


def words_of(known: Mapping[str, argparse.Action], name: str, value: Any) -> list[str]:
    """The words of one option with a value of YAML."""
    option = f"--{name.replace('_', '-')}"
    if value is False or value is None:
        negative = option.replace("--", "--no-", 1)
        return [negative] if value is False and negative in known else []
    if value is True:
        return [option]
    if isinstance(value, dict):
        return [f"{option}={json.dumps(value)}"]
    listed = value if isinstance(value, list) else [value]
    return [option, *map(str, listed)] if len(listed) != 1 else [f"{option}={listed[0]}"]


def words_of_environment(
    known: Mapping[str, argparse.Action], environment: Mapping[str, str]
) -> Iterator[str]:
    """The words that variables stand for.

    Raises:
        ValueError: there is no option of such a name, or it is on or off and the value is neither.
    """
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        name, value = variable.removeprefix(PREFIX).lower().replace("_", "-"), environment[variable]
        action = known.get(OTHER_NAMES.get(f"--{name}", f"--{name}"))
        if action is None:
            raise ValueError(f"{variable}: there is no option --{name}; see --help")
        if action.nargs == 0:
            if value.lower() not in ("0", "1", "false", "true"):
                raise ValueError(f"{variable} is {value!r}: give 0 or 1")
            yield from words_of(known, name, value.lower() in ("1", "true"))
        elif action.nargs == "+":
            yield from (f"--{name}", *shlex.split(value))
        else:
            yield f"--{name}={value}"


def without_vllms(known: Mapping[str, argparse.Action], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without flags of vLLM's that change nothing here, and the names of these.

    Raises:
        ValueError: one of them would change something.
    """
    table, kept, ignored, rest = {**ARGUMENTS, **SERVER_ARGUMENTS}, [], [], list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        negated = name.removeprefix("no_")
        if not flag.startswith("--") or flag in known or negated not in table:
            kept.append(word)
            continue
        values, reason = table[negated]
        if name != negated:
            given: Any = False
        elif equals:
            given = plain(value)
        elif stands_alone(negated, values) or not rest or is_flag(rest[0]):
            given = True
        else:
            given = plain(rest.pop(0))
        check_argument(f"--{negated.replace('_', '-')}", given, values, reason)
        ignored.append(flag)
    return kept, ignored


def stands_alone(name: str, values: tuple[Any, ...]) -> bool:
    """Whether a flag takes no value in vLLM."""
    return name in ALONE or (bool(values) and all(isinstance(value, bool) for value in values))


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and no negative number."""
    return word.startswith("-") and not word[1:2].isdigit()


def plain(text: str) -> Any:
    """A value as vLLM reads it: JSON, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
