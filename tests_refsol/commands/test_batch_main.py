"""`pdm run batch-main`: answers on both ports, prompts from everywhere, a terminal, Ctrl-C, and a learner's blanks."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pexpect
import pytest
from rich.cells import cell_len
from rich.console import Console

import tiny_llm_course
from tiny_llm_course.commands import batch_main as command
from tiny_llm_course.commands import main as single
from tiny_llm_course.trace.batch.view import SlotBoard
from tiny_llm_course.trace.live import LiveTable, Tail
from tiny_llm_course.trace.prompts import QUESTIONS, read_prompts
from tiny_llm_course.trace.text import counted, harmless, one_line, shortened
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS

PORT = installed_backends()[-1]
# Where it is about a process: the port whose library starts faster.
QUICK = installed_backends()[0]
ENDLESS = ["--temperature", "9", "--max-tokens", "400", "--prompt", "Go", "--prompt", "on"]
# Seconds, so that a signal comes before the end on a busy machine as well.
LONGER = [*ENDLESS, "--max-tokens", "3500", "--max-seq-len", "4000"]
SUMMARY = re.compile(
    r"(?P<counts>\d+ prompts.*) · (mlx|torch) · cpu\n"
    r"TTFT p50 \d+\.\d ms, p99 \d+\.\d ms · TBT p50 \d+\.\d ms, p99 \d+\.\d ms · \d+\.\d tokens/s\n$"
)


LINE = ["-m", "tiny_llm_course.commands.batch_main", "--device", "cpu", "--backend", QUICK]


def environment(**more: str) -> dict[str, str]:
    """That of the tests, without the width of their own terminal."""
    env = os.environ | {"PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1", "TERM": "xterm"} | more
    env.pop("COLUMNS", None)
    return env


def ctrl_c_counts() -> None:
    """A shell that runs the tests in the background hands down an ignored SIGINT; a person's terminal does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(*arguments: str) -> subprocess.Popen:
    """`pdm run batch-main ARGUMENTS` in a process of its own: for signals, and for streams that are closed."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"env": environment(), "encoding": "utf-8", "preexec_fn": ctrl_c_counts}
    return subprocess.Popen([sys.executable, *LINE, *arguments], **pipes, **options)


@pytest.fixture
def batch(monkeypatch, capsys):
    """The same in this process: (exit code, output, errors)."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            command.main(["--device", "cpu", *arguments])
        return end.value.code, *capsys.readouterr()

    return run


def answers(out: str) -> list[str]:
    """The answers, each in one line, of the part behind the last line that tells what happens."""
    part = re.split(r"\n\n", out)[1]
    return [" ".join(text.split()) for text in re.split(r"(?m)^ *\d+\. .*\n", part)[1:]]


# ---- whole runs


def test_every_port_answers_as_main_does_one_by_one(batch, capsys):
    """Twelve prompts on four slots, offline; slots are used again, and no answer changes by it."""
    one_by_one = []
    for question in QUESTIONS:
        single.main(["--solution", "ref", "--backend", PORT, "--device", "cpu", "--prompt", question])
        one_by_one.append(capsys.readouterr().out.splitlines()[0])
    for port in installed_backends():
        code, out, errors = batch("--backend", port)
        assert (code, errors) == (0, "") and answers(out) == one_by_one
        counts = SUMMARY.search(out)["counts"]
        assert re.fullmatch(r"12 prompts · 4 slots · \d+ steps · \d+ tokens", counts), counts


def test_the_engine_of_week_3_gives_the_same_answers(batch):
    """Two slots; the prompts are packed into one forward, and one is cut by a stop string."""
    prompts = ["--prompt", "What is chunked prefill?", "--prompt", "Goodbye", "--prompt", "Who are you?"]
    for options in ([], ["--stop", "tiny"]):
        expected = batch("--backend", PORT, "--slots", "2", *prompts, *options)
        found = batch("--backend", PORT, "--slots", "2", *prompts, *options, "--loader", "week3")
        assert (found[0], found[2]) == (0, "") and answers(found[1]) == answers(expected[1])
        assert re.match(r"3 prompts · 2 slots · \d+ steps · \d+ tokens", SUMMARY.search(found[1])["counts"])


def test_chunks_give_the_same_answers_in_more_steps(batch):
    """With a chunk of 4 a prompt needs several steps, and each of them is one of the summary's."""
    prompts = ["--prompt", "What is chunked prefill?", "--prompt", "Goodbye"]
    whole = batch("--backend", PORT, *prompts)
    cut = batch("--backend", PORT, *prompts, "--prefill-step", "4")
    assert (cut[0], cut[2]) == (0, "") and answers(cut[1]) == answers(whole[1])
    steps = [int(re.search(r"(\d+) steps", SUMMARY.search(out)["counts"])[1]) for _, out, _ in (whole, cut)]
    assert steps[1] > steps[0]


def test_lines_tell_what_happens_in_its_order(batch):
    code, out, _ = batch("--backend", PORT, "--slots", "2", "--prompt", "Who are you?", "--prompt", "Goodbye")
    lines = out.split("\n\n")[0].splitlines()
    assert code == 0 and lines[:2] == ["1 started: Who are you?", "2 started: Goodbye"]
    assert lines[2] == "2 finished: stop, 10 tokens: Goodbye, and have fun building your own engine!"
    assert lines[3].startswith("1 finished: stop, 34 tokens: I am a tiny model") and len(lines) == 4


def test_a_trace_for_the_browser(batch, tmp_path):
    prompts = ("--prompt", "Thank you!", "--prompt", "Goodbye")
    file = tmp_path / "trace.json"
    code, out, _ = batch("--backend", PORT, *prompts, "--max-tokens", "3", "--trace", str(file))
    assert code == 0 and out.endswith(f"written: {file}\n")
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    kinds = [event["cat"] for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert kinds == ["queued", "chunk", "decode", "waiting", "decode"]


def test_a_limit_a_stop_string_and_a_refused_prompt(batch):
    """The reason is shown where the model did not end its text; one prompt that fails is the exit code's business."""
    prompts = ("--prompt", "1 " * 600, "--prompt", "Goodbye", "--prompt", "Thank you!")
    code, out, errors = batch(
        "--backend", PORT, "--max-tokens", "9", "--stop", " fun", "--stop", "zzz", *prompts
    )
    assert (code, errors) == (1, "")
    refused, goodbye, thanks = answers(out)
    assert re.fullmatch(r"error: the prompt has \d+ tokens, but max_seq_len is 512 .*", refused)
    assert goodbye == "Goodbye, and have", "the stop string is no part of the text"
    assert thanks.startswith("You are welcome!") and thanks.endswith(" [length]")
    assert "3 prompts · 1 failed · 3 slots" in out
    assert re.search(r"^1 finished: error: the prompt has", out, re.MULTILINE)


def test_more_room_takes_the_longer_prompt(batch):
    prompt = ("--prompt", "1 " * 600, "--max-tokens", "2")
    assert batch("--backend", PORT, *prompt, "--max-seq-len", "2000")[0] == 0
    code, *_ = batch("--backend", PORT, *prompt, "--max-seq-len", str(2**62))
    assert code == 0, "the model's own limit remains"


def test_without_the_template_the_plain_text_is_continued(batch):
    code, out, _ = batch("--backend", PORT, "--no-template", "--prompt", "", "--prompt", "Chunked prefill")
    assert code == 1
    assert answers(out)[0] == "error: the prompt is empty: give the model at least one token to continue"
    asked = batch("--backend", PORT, "--prompt", "Chunked prefill")[1]
    assert answers(asked)[0] != answers(out)[1]


def test_the_seed_decides_what_is_drawn(batch):
    def texts(seed: str) -> list[str]:
        options = ["--temperature", "3", "--top-k", "50", "--top-p", "0.9", "--max-tokens", "6"]
        options += ["--prompt", "Go", "--prompt", "Go", "--prompt", "on"]
        return answers(batch("--backend", PORT, *options, "--seed", seed)[1])

    first = texts("1")
    assert first == texts("1") != texts("2")
    assert first[0] != first[1], "each prompt draws for itself"


# ---- prompts


def test_prompts_come_from_options_files_and_standard_input(batch, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffGoodbye\r\n\r\n  \t\nWer bist du, Müller?\u2028Ja.\n".encode())
    assert read_prompts(str(file)) == ["Goodbye", "Wer bist du, Müller?\u2028Ja."]
    few = ["--backend", PORT, "--max-tokens", "1"]
    _, out, _ = batch(*few, "--prompts-file", str(file), "--prompt", "Hello")
    headings = [line.strip() for line in re.findall(r"(?m)^\d\. .*", out)]
    assert headings == ["1. Hello", "2. Goodbye", "3. Wer bist du, Müller? Ja."]
    code, out, _ = batch(*few, "--prompts-file", "-", stdin=b"Hello\n\nGoodbye")
    assert code == 0 and "2 prompts" in out


WITHOUT_PROMPTS = [
    (None, r".*no-such.txt: cannot be read \(No such file or directory\)"),
    (b"Hello\nM\xfcller\n", r".*, line 2: not UTF-8: save the file as UTF-8 text"),
    (b"\n \r\n", r".*: no prompt in it: write one per line"),
    (b"", r".*: no prompt in it: write one per line"),
]


@pytest.mark.parametrize(("content", "line"), WITHOUT_PROMPTS)
def test_a_file_without_prompts_is_one_line(batch, tmp_path, content, line):
    file = tmp_path / "no-such.txt"
    if content is not None:
        file.write_bytes(content)
        code, out, errors = batch("--prompts-file", "-", stdin=content)
        assert (code, out) == (2, "") and re.fullmatch(line.replace(".*", "standard input", 1) + "\n", errors)
    code, out, errors = batch("--prompts-file", str(file))
    assert (code, out) == (2, "") and re.fullmatch(line + "\n", errors), errors


def test_a_folder_or_a_closed_input_has_no_prompts(batch, monkeypatch, tmp_path):
    line = f"{tmp_path}: cannot be read (Is a directory)\n"
    assert batch("--prompts-file", str(tmp_path))[::2] == (2, line)
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of `<&-`
    with pytest.raises(ValueError, match="standard input: no prompt"):
        read_prompts("-")


# ---- options


WRONG_OPTIONS = [
    ("--temperature nan", "temperature is nan"),
    ("--device hpu", "device 'hpu'"),
    ("--loader week3 --prefill-step 8", "--prefill-step: week 3's engine has a token budget"),
]


@pytest.mark.parametrize(("arguments", "line"), WRONG_OPTIONS)
def test_a_wrong_option_is_one_line(batch, arguments, line):
    code, out, errors = batch("--backend", PORT, *arguments.split())
    assert (code, out, errors.count("\n")) == (2, "", 1) and re.match(line, errors), errors


@pytest.mark.parametrize(
    "option", ["--slots=0", "--prefill-step=0", "--max-seq-len=1", "--stop=", "--max-tokens=x"]
)
def test_an_option_out_of_range_is_a_usage_error(batch, option):
    code, _, errors = batch(option)
    assert code == 2 and option.partition("=")[0] in errors.splitlines()[-1]


# ---- an end before the end


def test_ctrl_c_prints_what_is_finished(tmp_path):
    process = start("--prompt", "1 " * 4000, *LONGER)
    while "3 started" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (130, ""), errors
    assert re.search(r"\n1\. 1 1 .*…\n   error: the prompt has", out), out
    assert "\n2. " not in out and "\n3. " not in out, "what was not finished is not shown as an answer"
    assert re.search(r"\n1 of 3 prompts · 1 failed · .* · interrupted\n", out)


# ---- a terminal


class Terminal:
    """A terminal of so many columns with a batch on it, in a process of its own; collects what it was sent."""

    def __init__(self, columns: int, *arguments: str, **more: str):
        size = {"dimensions": (24, columns), "timeout": None, "encoding": "utf-8"}
        line = [sys.executable, [*LINE, *arguments]]
        self.process = pexpect.spawn(*line, env=environment(**more), **size, preexec_fn=ctrl_c_counts)
        self.process.logfile_read = self.sent = io.StringIO()

    def read_all(self) -> tuple[int, str]:
        """The exit code, and all that the terminal was sent from the start."""
        self.process.expect(pexpect.EOF)
        self.process.wait()
        return self.process.exitstatus, self.sent.getvalue()


def test_a_terminal_shows_a_table_that_goes_and_the_answers_that_stay():
    terminal = Terminal(40, "--slots", "2", "--prompt", "Goodbye", "--prompt", "Thank you!", "--prompt", "Hi")
    code, out = terminal.read_all()
    assert code == 0, out
    assert "3 waiting · 0 running · 0 done" in out and "idle" in out and "started:" not in out
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    table, report = shown[: shown.rindex("1. ")], shown[shown.rindex("1. ") :]
    assert all(len(line) <= 40 for line in re.split(r"[\r\n]+", table)), "a line of the table was wrapped"
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l"), "the cursor is shown again"
    assert " ".join(report.split()).startswith(
        "1. Goodbye Goodbye, and have fun building your own engine! 2. Thank"
    )


def test_ctrl_c_leaves_the_terminal_clean():
    terminal = Terminal(80, *LONGER)
    terminal.process.expect_exact("decode")
    terminal.process.kill(signal.SIGINT)
    code, out = terminal.read_all()
    assert code == 130 and "Traceback" not in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    assert out.rindex("of 2 prompts") > out.rindex("\x1b[?25h") and "interrupted\r\n" in out


@pytest.mark.parametrize(("options", "kind"), [(["--plain"], "xterm"), ([], "dumb")])
def test_lines_are_for_those_who_ask_and_for_a_terminal_that_cannot_move(options, kind):
    terminal = Terminal(80, *options, "--prompt", "Goodbye", TERM=kind)
    code, out = terminal.read_all()
    assert code == 0 and "1 started: Goodbye" in out and "\x1b[?25l" not in out


# ---- the table


class Drawn:
    """The events of a small batch, told to a board one by one."""

    def __init__(self, prompts: int, slots: int):
        self.requests = [SimpleNamespace(prompt_idx=i, tokens=[], text="") for i in range(prompts)]
        self.board = SlotBoard(self.requests, slots)

    def emit(self, kind: str, index: int, slot: int | None = None, text: str = "") -> list[str]:
        request = self.requests[index]
        request.tokens += [0] * bool(text)
        request.text += text
        self.board(SimpleNamespace(kind=kind, time=0.0, request=request, slot=slot))
        console = Console(width=50, file=io.StringIO())
        console.print(self.board)
        return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_table_follows_the_events():
    drawn = Drawn(prompts=4, slots=2)
    head = "slot request phase tokens text"
    assert drawn.emit("prefill", 0) == ["3 waiting · 1 running · 0 done", head, "0 1 prefill 0", "1 idle"]
    assert drawn.emit("token", 0, text="One")[2] == "0 1 decode 1 One"
    assert drawn.emit("finish", 1)[0] == "2 waiting · 1 running · 1 done", "refused before it had a slot"
    assert drawn.emit("prefill", 2)[3] == "1 3 prefill 0"
    drawn.emit("token", 2, text="Three")
    assert drawn.emit("token", 0, slot=0, text=" two")[2] == "0 1 decode 2 One two"
    assert drawn.emit("finish", 0, slot=0)[2] == "0 1 done 2 One two"
    last = drawn.emit("prefill", 3)
    assert last == ["0 waiting · 2 running · 2 done", head, "0 4 prefill 0", "1 3 decode 1 Three"]
    assert drawn.emit("finish", 3)[2] == "0 4 done 0", "its first token was its last"


@pytest.mark.parametrize("width", [1, 9, 20, 40])
def test_the_table_is_as_wide_as_a_narrow_terminal(width):
    drawn = Drawn(prompts=2, slots=1)
    drawn.emit("prefill", 0)
    drawn.emit("token", 0, text="日本語のテキスト, and more of it than there is room for")
    console = Console(width=width, file=io.StringIO())
    console.print(drawn.board)
    assert all(cell_len(line) <= width for line in console.file.getvalue().splitlines())


def test_the_table_believes_the_events_about_slots():
    """A scheduler may prefill before it knows the slot, and choose another than the lowest."""
    drawn = Drawn(prompts=1, slots=3)
    drawn.emit("prefill", 0)
    assert drawn.emit("token", 0, slot=2, text="x")[2:] == ["0 idle", "1 idle", "2 1 decode 1 x"]


TAILS = [
    ("short", 9, "short"),
    ("a long text", 6, "… text"),
    ("two\nlines\there", 20, "two lines here"),
    ("日本語のテキスト", 7, "…キスト"),
    ("ab\x1b[2Jx", 6, "…\ufffd[2Jx"),
    ("a\x1b[2Jx", 9, "a\ufffd[2Jx"),
    ("x", 1, "x"),
    ("xy", 1, "…"),
    ("", 5, ""),
]


@pytest.mark.parametrize(("text", "width", "tail"), TAILS)
def test_the_tail_fits_and_steers_no_terminal(text, width, tail):
    assert Tail(text).last(width) == tail


def test_texts_are_made_harmless():
    assert harmless("a\x1b[2J\r\x07é\n\t日\u200d") == "a\ufffd[2J\ufffd\ufffdé\n\t日\u200d"
    assert one_line(" a\n\n b\x9b\t") == "a b\ufffd"
    assert shortened("word " * 100) == ("word " * 12)[:59] + "…" and shortened("short\n") == "short"


@pytest.mark.parametrize(("seconds", "drawings"), [(0.0, 100), (0.001, 99), (0.01, 20), (0.1, 10)])
def test_drawing_takes_its_share_of_the_time_and_no_more(seconds, drawings):
    """In ten seconds of events, one a millisecond: 0.1 s lie between two drawings, 2 % of the time goes into them."""

    class Slow(io.StringIO):
        def write(self, text):
            if "waiting" in text:
                times.append(now[0])
                now[0] += seconds
            return super().write(text)

    now, times = [0.0], []
    drawn = Drawn(prompts=1, slots=1)
    console = Console(file=Slow(), force_terminal=True, width=80, height=20)
    with LiveTable(drawn.board, console, clock=lambda: now[0]) as table:
        times.clear()
        now[0] = 0.0
        while now[0] < 10:
            now[0] += 0.001
            table(SimpleNamespace(kind="token", time=now[0], request=drawn.requests[0], slot=0))
        assert abs(len(times) - drawings) <= 2, times


# ---- load


def test_load_refuses_what_cannot_be_served():
    for wrong in ("week1", "week9"):
        with pytest.raises(
            ValueError, match=f"loader '{wrong}': a runner needs an engine with caches: week2"
        ):
            tiny_llm_course.load(loader=wrong)
    with pytest.raises(ValueError, match="no such folder"):
        tiny_llm_course.load("no-such-model", backend=PORT, device="cpu")
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        tiny_llm_course.lode  # noqa: B018


def test_kit_itself_is_imported_without_its_dependencies():
    """`doctor` starts where nothing is installed yet."""
    program = "import sys, tiny_llm_course; print(sorted({'numpy', 'tokenizers', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# ---- a learner


def test_a_learner_hears_which_day_is_missing_and_then_has_all_answers(clone):
    options = ["--solution", "tiny_llm", "--backend", PORT, "--prompt", "Goodbye"]
    options += ["--model", str(MODELS / "tiny-qwen3")]
    blank = clone.run("batch-main", *options, HF_HUB_OFFLINE="1")
    assert (blank.returncode, blank.stdout, blank.stderr.count("\n")) == (1, "", 1), blank.stderr
    assert re.match(r"blank: week 1 day 1 task 1: .*--through 2\.6` .*--solution ref", blank.stderr)
    for day in ("1.6", "2.1"):  # not 1.7, nor 2.2 to 2.5: greedy answers in a batch do without them
        clone.run("course", "skip", "--backend", PORT, *skip(day))
    blank = clone.run("batch-main", *options, HF_HUB_OFFLINE="1")
    assert "blank: week 2 day 6 task" in blank.stderr and blank.returncode == 1, blank.stderr
    clone.run("course", "skip", "--backend", PORT, "--week", "2", "--day", "6")
    done = clone.run("batch-main", *options, HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and "have fun building your own engine!" in done.stdout, done.stderr
    daring = clone.run("batch-main", *options, "--temperature", "1", HF_HUB_OFFLINE="1")
    assert "blank: week 1 day 7 task" in daring.stderr and daring.returncode == 1


def skip(day: str) -> list[str]:
    """Week 1 up to a day, or one day of Week 2 alone."""
    week, number = day.split(".")
    return ["--through", day] if week == "1" else ["--week", week, "--day", number]


def test_a_count_of_one_is_singular_and_thousands_are_grouped():
    counts = {0: "0 tokens", 1: "1 token", 2: "2 tokens", 1024: "1,024 tokens"}
    assert {number: counted(number, "token") for number in counts} == counts
