"""The command line of `vllm serve`: what works, what changes nothing, and what is refused with its reason."""

import asyncio
import inspect
import socket

import certifi
import pytest

from tiny_llm_course.commands import serve
from tiny_llm_engine.engine_options import PlainOptions
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.vllm_arguments import ARGUMENTS, SERVER_ARGUMENTS
from tiny_llm_server import vllm_flags
from tiny_llm_server.arguments import server_options
from tiny_llm_server.listener import listen
from tiny_llm_server.openai_api.server_options import ServerOptions
from tiny_llm_server.server import create_app

# Flags in the words of people who start vLLM, and what they become here.
WORKING = [
    ("some-model", {"model": "some-model"}),
    ("--max_model_len 512 -tp 2", {"max_model_len": 512, "tensor_parallel_size": 2}),
    ("-pp 1", {"pipeline_parallel_size": 1}),
    ("--num-gpu-blocks-override=40", {"num_blocks": 40}),
    ("--dtype half -q 4bit", {"dtype": "float16", "quantize": "4bit"}),
    ("--dtype=float --quantization 8bit", {"dtype": "float32", "quantize": "8bit"}),
    ("--served-model-name a b --port 1", {"served_model_name": ["a", "b"], "port": 1}),
    ("m --tokenizer m", {"model": "m"}),
    ("--tool-call-parser hermes", {"tool_call_parser": "hermes"}),
    ("--reasoning-parser qwen3", {"reasoning_parser": "qwen3"}),
    ("--no-enable-prefix-caching --enforce-eager", {"enable_prefix_caching": False, "enforce_eager": True}),
    ('--allowed-origins ["http://a"] --root-path /x', {"allowed_origins": [["http://a"]], "root_path": "/x"}),
    ("--uvicorn-log-level info --uds /tmp/s", {"uvicorn_log_level": "info", "uds": "/tmp/s"}),
    ('--default-chat-template-kwargs {"a":1}', {"default_chat_template_kwargs": {"a": 1}}),
    ("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}),
    ("--disable-log-stats --api-key k", {"disable_log_stats": True, "api_key": "k"}),
]
WITHOUT_EFFECT = (
    "--trust-remote-code --swap-space 4 --load-format auto --generation-config vllm "
    "--disable-log-requests --enable-auto-tool-choice --disable-uvicorn-access-log --max-logprobs=20 "
    "--no-enable-log-requests --api-server-count 1 --response-role assistant --data-parallel-size 1 "
    "--tokenizer-mode auto"
)


@pytest.mark.parametrize(("line", "options"), WORKING, ids=[line for line, _ in WORKING])
def test_flags_that_work(line, options, capsys):
    found = vars(serve.parsed(line.split()))
    assert {name: found[name] for name in options} == options
    assert capsys.readouterr().err == ""


def test_flags_without_effect_are_named_in_one_line(capsys):
    line = f"{WITHOUT_EFFECT} --port 5 the-model"
    options = serve.parsed(line.split())
    assert (options.port, options.model) == (5, "the-model"), "their values are not taken for the model"
    err = capsys.readouterr().err
    flags = [word.partition("=")[0] for word in WITHOUT_EFFECT.split() if word.startswith("--")]
    assert err == f"no effect here: {', '.join(flags)}\n"


NO_REVISIONS = "--revision is 'main': models come from a folder or from the hub's cache; leave it out"
REFUSED_FLAGS = [
    ("--load-format gguf", "--load-format is 'gguf': "),
    ("--revision main", NO_REVISIONS),
    ("--enable-lora", "--enable-lora is True: there are no adapters; leave it out, or give False"),
    ("--data-parallel-size 2", "--data-parallel-size is 2: "),
    ("--middleware a.b", "--middleware is 'a.b': nothing is imported by name; leave it out"),
    ("--enable-log-requests", "--enable-log-requests is True: prompts and answers are never logged"),
    ("--lora-modules a=b", "--lora-modules is 'a=b': there are no adapters; leave it out"),
    ("a --tokenizer b", "--tokenizer is b: the tokenizer is the model's own; leave it out"),
    ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
    ("--ssl-keyfile a", "TLS needs both --ssl-keyfile and --ssl-certfile"),
    ("--quantization awq", "invalid choice: 'awq'"),
]


@pytest.mark.parametrize(("line", "says"), REFUSED_FLAGS)
def test_flags_that_would_change_something_are_refused_with_the_reason(line, says, refused):
    assert says in refused(serve.parsed, line.split())


def test_every_flag_of_the_tables_is_known_and_no_option_of_ours_is_hidden(capsys):
    """Each name, alone or with a value, is an option, has no effect, or is refused; "unrecognized" never."""
    options = vllm_flags.known_options(serve.parser())
    for name, (values, _) in {**ARGUMENTS, **SERVER_ARGUMENTS}.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in options:
            continue
        value = [] if vllm_flags.stands_alone(name, values) else ["some-value"]
        try:
            kept, ignored = vllm_flags.without_vllms(options, [flag, *value, "--port", "1"])
        except ValueError as refused:
            assert str(refused).startswith(f"{flag} is ")
        else:
            assert (kept, ignored) == (["--port", "1"], [flag])


# ---- files and the environment


def test_a_file_of_options(tmp_path, capsys):
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: m\nport: 9\nserved-model-name: [a, b]\nmax_num_seqs: 3\nenforce-eager: true\n"
        "enable-prefix-caching: false\ntrust-remote-code: true\nspeculative-config: {method: ngram}\nhost: null\n"
    )
    options = serve.parsed(["--config", str(file), "--max-num-seqs", "4"])
    assert (options.model, options.port, options.served_model_name) == ("m", 9, ["a", "b"])
    assert options.max_num_seqs == 4, "what was typed wins"
    assert (options.enforce_eager, options.enable_prefix_caching, options.host) == (True, False, "127.0.0.1")
    assert options.speculative_config == {"method": "ngram"} and options.config is None
    assert capsys.readouterr().err == "no effect here: --trust-remote-code\n"
    assert serve.parsed(["--config", "tiny-qwen3"]).config == "tiny-qwen3", "a shape, as before"


BROKEN_FILES = {
    "- a": "give a mapping of options to values",
    "a: [": "correct it",
    "nonsense: 1": "--nonsense",
}


@pytest.mark.parametrize(("text", "says"), [*BROKEN_FILES.items(), (None, "No such")])
def test_a_file_that_is_none_ends_with_one_line(text, says, tmp_path, refused):
    file = tmp_path / "serve.yml"
    if text is not None:
        file.write_text(text)
    assert says in refused(serve.parsed, [f"--config={file}"])


def test_a_config_that_is_neither_a_file_nor_a_shape_ends_with_one_line(refused):
    says = (
        "--config serve.json: give a file that ends in .yaml or .yml, or a shape, qwen3-0.6b or tiny-qwen3\n"
    )
    for line in (["--config", "serve.json"], ["--config=serve.json"]):
        assert refused(serve.parsed, line) == says


def test_every_option_may_come_from_the_environment(monkeypatch, tmp_path, refused):
    given = {"MAX_NUM_SEQS": "3", "ENFORCE_EAGER": "1", "ENABLE_PREFIX_CACHING": "false"}
    given |= {"SERVED_MODEL_NAME": "a 'b c'", "ACCESS_LOG": "0", "PORT": "7"}
    for name, value in given.items():
        monkeypatch.setenv(f"TINY_LLM_SERVE_{name}", value)
    file = tmp_path / "serve.yaml"
    file.write_text("port: 8\n")
    options = serve.parsed(["--config", str(file)])
    assert (options.max_num_seqs, options.enforce_eager, options.enable_prefix_caching) == (3, True, False)
    assert (options.served_model_name, options.access_log, options.port) == (["a", "b c"], False, 8)
    wrong = ("NO_SUCH", "1", "there is no option --no-such"), ("ENFORCE_EAGER", "x", "give 0 or 1")
    for name, value, says in wrong:
        monkeypatch.setenv(f"TINY_LLM_SERVE_{name}", value)
        assert says in refused(serve.parsed, [])
        monkeypatch.delenv(f"TINY_LLM_SERVE_{name}")


def test_help_says_what_each_option_does():
    text = " ".join(serve.parser().format_help().split())
    assert "a name of the policies of Day 3.5; default: hybrid" in text and "None is 512" in text
    documented = inspect.getdoc(EngineOptions) + inspect.getdoc(PlainOptions)
    for action in serve.parser()._actions:
        assert action.help or action.dest in ("device", "dtype"), action.dest
        if action.dest in EngineOptions.__dataclass_fields__:
            assert f"    {action.dest}: " in documented and not action.help.startswith(";")


# ---- what they do


def test_options_of_the_http_side_reach_it():
    line = (
        'm --served-model-name a b --allowed-origins ["http://a","http://b"] --allowed-methods GET --allow-credentials '
        '--root-path /x --default-chat-template-kwargs {"a":1} --tool-call-parser mistral'
    )
    options = server_options(serve.parsed(line.split()))
    assert options.model_names == ("a", "b") and options.root_path == "/x"
    assert (options.allowed_origins, options.allowed_methods) == (("http://a", "http://b"), ("GET",))
    assert options.allow_credentials and options.chat_template_kwargs == {"a": 1}
    assert options.tool_call_parser == "mistral" and options.log_stats


def test_tls_and_the_level_of_the_log_reach_the_library(monkeypatch):
    monkeypatch.setattr(serve, "check_tls", lambda options: None)
    files = ["--ssl-keyfile", "key.pem", "--ssl-certfile", "cert.pem", "--ssl-cert-reqs", "2"]
    server = serve.server_of(serve.parsed([*files, "--uvicorn-log-level", "error"]))
    config = server.config
    assert (config.ssl_keyfile, config.ssl_certfile, config.ssl_cert_reqs) == ("key.pem", "cert.pem", 2)
    assert config.log_level == "error"


@pytest.mark.parametrize("option", ["--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"])
def test_a_file_of_tls_that_cannot_be_used_ends_with_one_line(option, tmp_path, refused):
    """The certificates are true ones, and no key."""
    (tmp_path / "text").write_text("no PEM")
    true = ["--ssl-certfile", certifi.where(), "--ssl-keyfile", certifi.where()]
    for name, says in (("none", "No such file or directory"), ("text", "not a PEM file of this kind")):
        line = refused(serve.main, [*true, option, str(tmp_path / name)])
        assert line.startswith(f"{option} {tmp_path / name}: {says}") and line.count("\n") == 1
    assert refused(serve.main, true).startswith("--ssl-keyfile ")


def test_pages_of_other_origins_may_read_answers_if_they_are_allowed_to():
    async def headers_of(app, method, **headers) -> dict:
        sent, fields = [], {"host": "h", "origin": "http://a", **headers}
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
        scope = {"type": "http", "method": method, "path": "/version", "query_string": b"", "root_path": ""}

        async def receive():
            return {"type": "http.request", "body": b""}

        async def send(message):
            sent.append(message)

        await app({**scope, "headers": pairs}, receive, send)
        received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return {**received, "status": sent[0]["status"]}

    key = {"api_key": "secret"}
    app = create_app(lambda: None, ServerOptions(**key, allowed_origins=("http://a",)))
    asked = asyncio.run(headers_of(app, "OPTIONS", access_control_request_method="GET"))
    assert asked["status"] == 200, "browsers send no key yet"
    assert asked["access-control-allow-origin"] == "http://a"
    refused = asyncio.run(headers_of(app, "GET"))
    assert refused["status"] == 401 and refused["access-control-allow-origin"] == "http://a"
    without = asyncio.run(headers_of(create_app(lambda: None, ServerOptions(**key)), "GET"))
    assert "access-control-allow-origin" not in without


def test_a_unix_socket_is_taken_over_from_a_server_that_is_gone(tmp_path, capsys):
    path = tmp_path / "s"
    with listen("h", 0, str(path)) as first:
        with pytest.raises(SystemExit):
            listen("h", 0, str(path))
        assert "a server listens there" in capsys.readouterr().err
        assert first.family == socket.AF_UNIX
    listen("h", 0, str(path)).close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit):
        listen("h", 0, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("is_text", [False, True])
def test_a_chat_template_of_the_operator(is_text, tmp_path):
    text = "{{ messages[0].content }}!{{ 'x' if a }}"
    (tmp_path / "t.jinja").write_text(text)
    tokenizer = load_tokenizer("tiny-qwen3")
    tokenizer.use_chat_template(text if is_text else str(tmp_path / "t.jinja"))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], a=True) == "hi!x"
    with pytest.raises(ValueError, match="no such file, and no Jinja"):
        tokenizer.use_chat_template("missing.jinja")
