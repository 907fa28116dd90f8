"""`pdm run main`: the reference on both ports, its error lines, the conversation, Ctrl-C, and a learner's blanks."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tiny_llm_course import capabilities
from tiny_llm_course.address import Task
from tiny_llm_course.chat import Conversation, MessageTooLong
from tiny_llm_course.commands import main as command
from tiny_llm_course.learner import State
from tiny_llm_engine.loading import Loading
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.machine.terminal import Meter, TerminalSession
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions import loading

SENTENCE = re.compile(r"Chunked prefill [a-z].*\.")
FIGURES = re.compile(r"\d+ tokens · TTFT \d+ ms · \d+\.\d tokens/s · (mlx|torch) · \w+")
# Where a test is not about a port, any will do.
PORT = installed_backends()[-1]
# Where it is about a process: the port whose library starts faster.
QUICK = installed_backends()[0]
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def start(*arguments: str, **environment: str) -> subprocess.Popen:
    """`pdm run main --solution ref ARGUMENTS` in a process of its own."""
    line = [sys.executable, "-m", "tiny_llm_course.commands.main", "--solution", "ref", *arguments]
    env = os.environ | {"PYTHONIOENCODING": "utf-8"} | OFFLINE | environment
    pipe = subprocess.PIPE
    # A shell that runs this in the background hands down an ignored SIGINT; a person's terminal does not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8")
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def ask(monkeypatch, capsys):
    """The same in this process: (exit code, output, errors)."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = 0
        try:
            command.main(["--solution", "ref", "--device", "cpu", *arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def assert_same_sentence(outputs: list[str]) -> None:
    """One sentence, the same on every port, and one line of figures."""
    answers, figures = zip(*(out.splitlines() for out in outputs), strict=True)
    assert len(set(answers)) == 1 and SENTENCE.fullmatch(answers[0]), answers
    assert [FIGURES.fullmatch(line)[1] for line in figures] == installed_backends(), figures


@pytest.mark.parametrize("loader", capabilities.LOADERS)
def test_every_port_gives_the_same_sentence(ask, loader):
    runs = [ask("--backend", port, "--loader", loader) for port in installed_backends()]
    assert {(code, errors) for code, _, errors in runs} == {(0, "")}
    assert_same_sentence([out for _, out, _ in runs])


def test_the_command_of_the_readme_gives_the_sentence():
    """A real process, offline, and without a terminal: nothing that the tests have set up helps it."""
    running = [start("--backend", port) for port in installed_backends()]
    outputs = [process.communicate() for process in running]
    assert {process.returncode for process in running} == {0}, outputs
    assert {errors for _, errors in outputs} == {""}
    assert_same_sentence([out for out, _ in outputs])


WRONG_OPTIONS = [
    (["--temperature", "1e-40"], "temperature is 1e-40: give 0 .* at least 1e-6"),
    (["--model", "no-such-model"], "model 'no-such-model': no such folder"),
    (["--temperature", "-1"], "temperature is -1.0: give 0"),
    (["--temperature", "1", "--top-p", "1.5"], "top_p is 1.5: give a number above 0"),
    (["--temperature", "1", "--top-k", "-3"], "top_k is -3: give a whole number"),
    (["--prompt", "1 " * 5000], r"the prompt has \d+ tokens, but the model reads 4096"),
]


@pytest.mark.parametrize(("arguments", "line"), WRONG_OPTIONS)
def test_a_wrong_option_is_one_line(ask, arguments, line):
    code, out, errors = ask("--backend", PORT, *arguments)
    assert (code, out, errors.count("\n")) == (2, "", 1), errors
    assert re.match(line, errors), errors


@pytest.mark.parametrize(
    "option", ["--max-tokens=0", "--seed=-1", f"--seed={2**63}", "--loader=week9", "--model="]
)
def test_an_option_out_of_range_is_a_usage_error(ask, option):
    code, _, errors = ask(option)
    assert code == 2 and option.partition("=")[0] in errors.splitlines()[-1]


def test_a_device_that_is_absent_is_one_line(ask):
    code, _, errors = ask("--backend", "mlx", "--device", "cuda")
    assert (code, errors.count("\n")) == (2, 1) and errors.startswith("device 'cuda': MLX has only"), errors


def test_a_broken_folder_is_one_line(ask, tmp_path):
    for file in (MODELS / "tiny-qwen3").iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    code, out, errors = ask("--backend", PORT, "--model", str(tmp_path))
    assert (code, out, errors.count("\n")) == (2, "", 1) and str(tmp_path) in errors, errors


def test_a_hub_model_without_a_network_is_one_line_of_a_real_process():
    """The hub's library reads its environment when it is imported."""
    process = start("--backend", QUICK, "--model", "nobody/no-model", HF_HUB_OFFLINE="1")
    out, errors = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert errors.startswith("model 'nobody/no-model': not on this machine")
    assert errors.count("\n") == 1, errors


def test_the_limit_and_the_types_are_passed_on(ask):
    code, out, _ = ask("--backend", PORT, "--max-tokens", "3", "--dtype", "bfloat16")
    assert code == 0 and "\n3 tokens · TTFT" in out
    assert "1 token · TTFT" in ask("--backend", PORT, "--max-tokens", "1")[1]


def test_the_seed_decides_what_is_drawn(ask):
    def text(seed: int) -> str:
        options = ["--temperature", "3", "--top-k", "50", "--max-tokens", "8", "--seed", str(seed)]
        return ask("--backend", PORT, *options)[1].splitlines()[0]

    assert text(1) == text(1) != text(2)


def test_a_model_without_a_template_continues_the_plain_prompt(ask, tmp_path):
    for file in (MODELS / "tiny-qwen3").iterdir():
        if file.name not in ("tokenizer_config.json", "chat_template.jinja"):
            (tmp_path / file.name).symlink_to(file)
    options = ["--backend", PORT, "--model", str(tmp_path), "--max-tokens", "2"]
    code, out, errors = ask(*options, "--prompt", "Chunked prefill")
    assert code == 0 and "2 tokens" in out, errors
    assert ask(*options, "--prompt", "")[0] == 2
    code, _, errors = ask(*options, "--chat", stdin="hello\n")
    assert (code, errors.count("\n")) == (2, 1) and "chat_template" in errors


def test_a_terminal_that_knows_only_ascii_gets_what_it_can_show():
    """A process decides about its encoding when it starts."""
    process = start("--backend", QUICK, "--max-tokens", "2", PYTHONIOENCODING="ascii")
    out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "") and "2 tokens ? TTFT" in out


@pytest.mark.parametrize("loader", capabilities.LOADERS)
def test_a_conversation_is_fed_by_lines_and_ends_at_exit(ask, loader):
    lines = "What is chunked prefill?\n\n  What is a KV cache?  \nexit\nWhat is a token?\n"
    code, out, errors = ask("--backend", PORT, "--chat", "--loader", loader, stdin=lines)
    assert (code, errors) == (0, "")
    assert len(FIGURES.findall(out)) == 2 and SENTENCE.search(out) and "KV cache" in out
    assert ">" not in out, "questions from a file are not prompted for"


def test_a_conversation_begins_with_the_prompt_and_ends_with_the_input(ask):
    code, out, _ = ask("--backend", PORT, "--chat", "--prompt", "What is chunked prefill?")
    assert code == 0 and len(FIGURES.findall(out)) == 1


def test_a_message_that_is_too_long_is_refused_and_the_conversation_goes_on(ask):
    code, out, _ = ask("--backend", PORT, "--chat", stdin="1 " * 5000 + "\nWhat is chunked prefill?\n")
    assert code == 0 and "fit: shorten it)" in out and SENTENCE.search(out)


def test_a_conversation_without_any_input_ends(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of `<&-`
    command.main(["--solution", "ref", "--backend", PORT, "--device", "cpu", "--chat"])
    assert capsys.readouterr() == ("", "")


class OneTokenACharacter:
    """A tokenizer for counting: its template writes one letter for the role, then the message."""

    def encode(self, text: str) -> list[int]:
        return coded(text)

    def apply_chat_template(self, messages) -> str:
        return "".join(message["role"][0] + message["content"] for message in messages)


def coded(text: str) -> list[int]:
    return [ord(character) for character in text]


def conversation(context: int, max_tokens: int) -> Conversation:
    return Conversation(TerminalSession(None, None, None, OneTokenACharacter(), None, context, max_tokens))


def test_the_history_goes_through_the_template():
    talk = conversation(context=100, max_tokens=10)
    assert talk.prompt("one") == (coded("uone"), 0)
    talk.keep("yes")
    assert talk.prompt("two") == (coded("uoneayesutwo"), 0)


def test_the_oldest_turns_are_dropped_when_the_context_is_full():
    talk = conversation(context=16, max_tokens=4)  # 12 tokens for the prompt
    for question in ("aaa", "bbb"):
        talk.prompt(question)
        talk.keep("yes")
    assert talk.prompt("cc") == (coded("ubbbayesucc"), 1), "only as many turns go as must"
    talk.keep("a long one")
    assert talk.prompt("d") == (coded("ud"), 2)


def test_a_question_that_never_fits_changes_nothing():
    talk = conversation(context=16, max_tokens=400)  # half of the context is kept free, and no more
    assert talk.prompt("1234567") == (coded("u1234567"), 0)
    talk.keep("yes")
    before = list(talk.messages)
    with pytest.raises(MessageTooLong, match="has 9 tokens with its template, and 8 fit"):
        talk.prompt("12345678")
    assert talk.messages == before


def test_the_figures_are_those_of_the_clock():
    ticks = iter([10.0, 10.25, 10.5, 10.75, 11.0])
    pieces: list[str] = []
    meter = Meter(pieces.append, clock=lambda: next(ticks))
    assert meter.figures(4) == ["0 tokens"]
    meter("a")
    assert meter.figures(4) == ["1 token", "TTFT 250 ms"]
    for piece in ("b", "", "\ufffd"):
        meter(piece)
    assert pieces == ["a", "b", "", "\ufffd"]
    assert meter.figures(4) == ["4 tokens", "TTFT 250 ms", "4.0 tokens/s"]
    shown = ["3 tokens", "TTFT 250 ms", "4.0 tokens/s"]
    assert meter.figures(3) == shown, "the rest of a character is no token"


@pytest.mark.parametrize("options", [[], ["--chat", "--prompt", "Go"]])
def test_ctrl_c_ends_with_the_text_so_far(options):
    """A process, because the signal would end the tests."""
    endless = ["--temperature", "9", "--max-tokens", "3000"]
    process = start("--backend", QUICK, *endless, *options)
    first = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (130, ""), errors
    assert len(first) == 5 and re.search(r"\n\d+ tokens? · .*(mlx|torch) · \w+ · interrupted\n$", out), out


def test_a_reader_that_goes_away_is_no_traceback():
    """A process, because what it closes would be the tests' own output."""
    process = start("--backend", QUICK)
    process.stdout.read(3)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


CHOICES = [
    ("tiny_llm", "mlx", ["torch"], "mlx"),
    ("tiny_llm", "both", ["mlx", "torch"], "mlx"),
    ("ref", "torch", ["mlx", "torch"], "torch"),
    ("ref", "torch", ["mlx"], "mlx"),
    ("ref", "both", ["torch"], "torch"),
    ("ref", "mlx", [], "mlx"),
]


@pytest.mark.parametrize(("solution", "theirs", "installed", "chosen"), CHOICES)
def test_the_port_is_the_learners_and_the_reference_takes_what_is_there(
    monkeypatch, solution, theirs, installed, chosen
):
    monkeypatch.setattr(capabilities, "learner_port", lambda: theirs)
    monkeypatch.setattr(capabilities, "installed_backends", lambda: installed)
    assert capabilities.choose_backend(solution, "auto") == chosen
    assert capabilities.choose_backend(solution, "torch") == "torch"


def test_the_engine_is_the_newest_whose_own_day_is_filled(monkeypatch):
    def chosen(solution: str, *blank_days: tuple[int, int], wanted: str = "auto") -> str:
        found = [State(Task(*day, 1), "mlx", ("f",), "blank") for day in blank_days]
        found += [State(Task(2, 1, 9), "mlx", ("g",), "filled"), State(Task(1, 1, 9), "mlx", ("h",), "green")]
        monkeypatch.setattr(capabilities, "states", lambda parts: found if list(parts) == ["mlx"] else [])
        return capabilities.choose_loader(solution, "mlx", wanted)

    assert chosen("tiny_llm") == chosen("tiny_llm", (1, 7), (2, 2), (2, 6)) == "week2"
    assert chosen("tiny_llm", (2, 1)) == chosen("tiny_llm", (1, 1), (1, 6), (2, 1)) == "week1"
    assert chosen("tiny_llm", wanted="week1") == "week1"
    assert chosen("tiny_llm", (2, 1), wanted="week2") == "week2"
    assert chosen("ref", (2, 1)) == chosen("tiny_llm_ref", (2, 1)) == "week2"


@pytest.mark.parametrize("port", installed_backends())
def test_a_runner_has_the_mask_of_chunks_once_its_task_is_filled(monkeypatch, port):
    """Until then the caches make it; an option of the caller goes first."""

    def mask(solution: str, *blank: Task, **options):
        monkeypatch.setattr(
            capabilities, "states", lambda parts: [State(t, port, ("f",), "blank") for t in blank]
        )
        monkeypatch.setattr(loading, "load_network", lambda *_, **__: (fake, None))
        return capabilities.load(solution=solution, backend=port, device="cpu", **options)[0].chunk_mask

    config = SimpleNamespace(context=9, vocab_size=9)
    fake = SimpleNamespace(num_hidden_layers=1, config=config, layers=[], w_lm_head=None)
    assert mask("ref", Task(2, 7, 6)).__name__ == "chunked_attention_mask"
    assert mask("tiny_llm", Task(2, 7, 5)).__name__ == "chunked_attention_mask"
    assert mask("tiny_llm", Task(2, 7, 6)) is None
    assert mask("ref", chunk_mask=None) is None


def test_the_engines_are_those_of_their_weeks(ask, monkeypatch):
    """The same words, but Week 2's engine computes a token once: its model is called with one token at a time."""
    lengths = []

    def spy(port: Port, name: str):
        made = getattr(port.solution, name)
        call = made.__call__
        monkeypatch.setattr(
            made, "__call__", lambda self, x, *a, **k: lengths.append(x.shape[1]) or call(self, x, *a, **k)
        )

    for name in ("Qwen3ModelWeek1", "Qwen3ModelWeek2"):
        spy(Port("tiny_llm_ref", PORT, "cpu"), name)
    for loader in ("week1", "week2", "auto"):
        ask("--backend", PORT, "--max-tokens", "3", "--loader", loader)
    prompt = lengths[0]
    assert lengths == [prompt, prompt + 1, prompt + 2, *2 * [prompt, 1, 1]]


@pytest.mark.parametrize("port", installed_backends())
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_quantized_weights_answer_as_the_plain_ones_do(ask, port, bits):
    code, out, _ = ask("--backend", port, "--quantize", bits, "--prompt", "What is chunked prefill?")
    assert code == 0 and SENTENCE.match(out), out


@pytest.mark.parametrize("port", installed_backends())
def test_what_is_quantized_are_the_layers_and_attention_is_the_devices(port):
    b = Port("tiny_llm_ref", port, "cpu")
    network, _ = loading.load_network(b, "tiny-qwen3", "week2", Loading("4bit"))
    plain, _ = loading.load_network(b, "tiny-qwen3", "week2")
    assert isinstance(network.layers[0].wq, b.QuantizedWeights)
    assert network.layers[0].wq.nbytes < plain.layers[0].wq.nbytes / 4
    assert not isinstance(network.embedding.weight, b.QuantizedWeights)
    assert network.layers[0].attend.func is b.flash_attention_device


def test_the_engine_of_week_1_takes_no_quantized_weights(ask):
    code, out, errors = ask("--backend", PORT, "--loader", "week1", "--quantize", "4bit")
    assert (code, out) == (2, "")
    assert errors == "--quantize 4bit: the engine of week1 reads plain weights: choose --loader week2\n"


def test_only_week_3_compiles(ask):
    for flag in ("--enforce-eager", "--no-enforce-eager"):
        code, _, errors = ask(flag)
        assert code == 2 and errors == "--enforce-eager is an option of Week 3's engine: add --loader week3\n"


def test_week_3_is_told_whether_to_compile(ask, monkeypatch):
    monkeypatch.setattr(
        f"tiny_llm_extensions.graphs.{PORT}.graphs.cannot_compile", lambda device: "no compiler here"
    )
    code, _, errors = ask("--loader", "week3", "--device", "cpu", "--no-enforce-eager")
    assert code == 2 and errors.startswith("enforce_eager=False: no compiler here")
    assert ask("--loader", "week3", "--device", "cpu", "--max-tokens", "1")[0] == 0


@pytest.mark.parametrize("loader", capabilities.LOADERS)
def test_an_answer_ends_where_the_context_does(ask, tmp_path, loader):
    """Of a model that reads 40 tokens: prompt and answer have 40 together, and one prompt of 40 is too long."""
    for file in (MODELS / "tiny-qwen3").iterdir():
        if file.name != "config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((MODELS / "tiny-qwen3" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 40}), encoding="utf-8"
    )
    options = ["--backend", PORT, "--model", str(tmp_path), "--loader", loader]
    refused = ask(*options, "--prompt", "1 " * 40)
    assert refused[0] == 2 and "the model reads 40 with its answer" in refused[2]
    _, out, errors = ask(*options, "--prompt", "1 " * 9, "--temperature", "50", "--max-tokens", "9999")
    count = len(load_tokenizer(MODELS / "tiny-qwen3").encode(rendered("1 " * 9)))
    assert f"\n{40 - count} tokens · " in out, (count, out, errors)


def rendered(question: str) -> str:
    return load_tokenizer("tiny-qwen3").apply_chat_template([{"role": "user", "content": question}])


def test_a_learner_hears_which_day_is_missing_and_then_has_an_answer(clone):
    options = ["--backend", PORT, "--model", str(MODELS / "tiny-qwen3")]
    blank = clone.run("main", *options, **OFFLINE)
    assert blank.returncode == 1 and blank.stdout == "" and blank.stderr.count("\n") == 1, blank.stderr
    assert re.match(r"blank: week 1 day \d task \d: .*--solution ref", blank.stderr)
    clone.run("course", "skip", "--through", "1.6", "--backend", PORT)
    greedy = clone.run("main", *options, **OFFLINE)
    assert greedy.returncode == 0 and SENTENCE.search(greedy.stdout), "greedy answers do not need Day 7"
    daring = clone.run("main", *options, "--temperature", "1", **OFFLINE)
    assert "blank: week 1 day 7 task" in daring.stderr and daring.returncode == 1


def test_a_learner_gets_the_cache_once_its_day_is_filled(clone):
    options = ["--backend", PORT, "--model", str(MODELS / "tiny-qwen3")]
    clone.run("course", "skip", "--through", "1.6", "--backend", PORT)
    cached = clone.run("main", *options, "--loader", "week2", **OFFLINE)
    assert cached.returncode == 1 and cached.stdout == ""
    assert re.match(r"blank: week 2 day 1 task 1: .*--through 2\.1`", cached.stderr), "Day 1.7 is not needed"
    assert SENTENCE.search(clone.run("main", *options, **OFFLINE).stdout), "auto is still Week 1's engine"
    clone.run("course", "skip", "--week", "2", "--day", "1", "--backend", PORT)
    clone.run("course", "reset", "--week", "1", "--day", "5", "--task", "4", "--backend", PORT)
    filled = clone.run("main", *options, **OFFLINE)
    # Week 1's model is blank, which Week 2's does not need.
    assert SENTENCE.search(filled.stdout), filled.stderr
