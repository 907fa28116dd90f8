"""The book's own tools: formulas, signatures, the link check, the capture of screens; and its table of contents."""

import html
import importlib
import re
import subprocess
import sys
from itertools import chain
from types import ModuleType

import pytest
from rich.text import Text

from book.tools import command_screens, console, day_screens, result_tables, screen_files
from book.tools.facts import check_files
from book.tools.length import ALL, CEILING, check_length, words
from book.tools.links import check_site
from book.tools.minutes import TOTAL, check_minutes, parts_of
from book.tools.words import Words, page_words
from tiny_llm_course.mdbook import find_mdbook
from tiny_llm_course.pages import pages_of, sittings_of, text_of
from tiny_llm_course.tree import PARTS, days, exercises_of_part
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BOOK, ROOT

sys.path.insert(0, str(BOOK))  # the preprocessor is no package: any Python can run it
import cpp_signatures
import folds
import formulas
import hints
import math_font
import python_signatures
import search_marks
import signatures
import task_commands
import terms


@pytest.fixture(scope="module")
def render():
    to_mathml = formulas.converter()
    return lambda text: formulas.render(text, to_mathml)


# ---- formulas


def test_inline_formula_becomes_mathml(render):
    page = render("Let $x_i \\in \\mathbb{R}^D$ be a row, and $y$.")
    assert page.count("<math ") == 2
    assert "ℝ" in page
    assert page.endswith("</math>.")


def test_display_formula_is_a_block_that_can_scroll(render):
    page = render("Before\n\n$$\n\\frac{a}{b}\n$$\n\nafter")
    assert re.search(r'<span class="formula"><math [^>]*display="block"', page)
    assert "<mfrac>" in page


LEFT_ALONE = [
    "`$x$` and ``a ` $y$``",
    "```sh\necho $HOME $x$\n```",
    "- a list\n\n  ~~~python\n  x = '$y$'\n  ~~~\n",
    '<pre class="screen">cost $x$\n\n$y$</pre>',
    "<code>$x$</code>",
    '<a title="$x$">t</a>',
    "<!-- $x$ -->",
]


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_code_and_html_are_left_alone(render, text):
    assert render(text) == text


NO_FORMULA = [
    "It costs $5 and $6.",
    "between $5-$6",
    "$HOME and $PATH, or $HOME/$USER",
    "US$5 or 5$ each, 6$ for two",
    r"\$x\$ is not a formula",
    "a $ b $ c",
    "one $x here\n\nand there$ another paragraph",
]


@pytest.mark.parametrize("text", NO_FORMULA)
def test_dollars_that_are_no_formula_are_left_alone(render, text):
    assert render(text) == text


def test_markdown_finds_nothing_to_do_in_a_formula(render):
    """A `|` would end a table cell, `*` and `_` would make text slanted."""
    page = render(r"| $\left| a * b_c * d_e \right|$ |")
    assert page.count("|") == 2
    assert not re.search(r"[*_]", re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize(
    "wrong", [r"$\nosuchcommand{x}$", "$x^$", r"$$\begin{aligned} a &= b \end{aligned}$$"]
)
def test_a_wrong_formula_shows_as_an_error(render, wrong):
    assert '<span class="book-error">' in render(wrong)


def test_names_and_infinity_are_values_and_brackets_stretch(render):
    """What latex2mathml takes for something else: a browser would space it wrongly, or not stretch it."""
    page = render(
        r"$\operatorname{softmax}(-\infty) W^\top \bmod n$ $\left\lfloor h \right\rfloor$ $\log x$ $\cos(x)$"
    )
    assert all(f"<mi>{value}</mi>" in page for value in ("softmax", "∞", "⊤"))
    assert "<mo>mod</mo>" in page
    assert re.findall(r"<(\w+)[^>]*>[⌊⌋]", page) == ["mo", "mo"]
    assert re.findall(r"<mi>(\w+)</mi><mspace", page) == ["log"]


def test_the_font_has_every_sign_of_a_formula(render):
    """A sign that is missing would be drawn with another font, and a bracket would not stretch."""
    for page in sorted((BOOK / "src").glob("*.md")):
        for formula in re.findall(r"<math .*?</math>", render(page.read_text(encoding="utf-8"))):
            signs = html.unescape(re.sub(r"<[^>]*>", "", formula))
            missing = set(signs) - set(math_font.CHARACTERS)
            assert not missing, f"{page.name}: add {missing} to book/math_font.py and run it"


def test_without_latex2mathml_the_formula_shows_as_latex(tmp_path):
    """Any Python builds the book: with formulas as LaTeX, one warning line, and no failure."""
    code = (
        "import sys; sys.modules['latex2mathml'] = None\n"
        f"sys.path.insert(0, {str(BOOK)!r})\n"
        "import formulas; print(formulas.render('a $x_1$ b $y$', formulas.converter()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert run.stdout.strip() == "a <code>x&#95;1</code> b <code>y</code>"
    assert len(run.stderr.splitlines()) == 1


# ---- hints


def test_hints_are_numbered_task_by_task():
    page = "\n".join(
        f"### Task 1.1.{task}: a name\n\n"
        + '<details class="hint">\n<summary>Hint: a title</summary>\n</details>' * count
        for task, count in ((1, 2), (2, 1))
    )
    numbers = ("1 of 2", "2 of 2", "1 of 1")
    assert re.findall("Hint.*?title", hints.number(page)) == [f"Hint {each}: a title" for each in numbers]


# ---- commands


FACTS = '<p class="task-facts">10 minutes ·\n<code>a.py</code></p>\n'


@pytest.mark.parametrize("facts", ["", f"\n{FACTS}"])
def test_the_command_of_a_task_stands_under_its_heading(facts):
    head = f"### Task 1.2.3: a name\n{facts}"
    command = "\n```sh\npdm run test --week 1 --day 2 --task 3\n```\n"
    assert task_commands.add(f"{head}\ntext\n\n## Prove\n") == f"{head}{command}\ntext\n\n## Prove\n"
    assert task_commands.add("# No task\n\ntext\n") == "# No task\n\ntext\n"


@pytest.mark.parametrize("day", days(), ids=str)
def test_every_task_of_the_book_has_its_command(day):
    written = text_of(day)
    text = task_commands.add(written)
    for task in chain.from_iterable(sittings_of(day)):
        command = f"pdm run test --week {task.week} --day {task.day} --task {task.number}\n"
        assert text.count(command) == written.count(command) + 1, task


# ---- signatures

SOURCE = '''
def plain(x: int) -> int:
    """Says what.

    Args:
        x: a number.
    """
    # TASK 1.1.1: secret.
    return secret(x)


class Thing:
    """A thing."""

    def __init__(self, size: int):
        self.size = size

    def __call__(
        self,
        x: int,
    ) -> int:
        # TASK 1.1.2: secret.
        return self.secret + x

    def _inner(self) -> int:
        return self.secret
'''


def test_a_signature_has_its_heads_and_no_body():
    """A docstring of one paragraph stays in the block; a longer one, and those of methods, fold."""
    block, folded = python_signatures.contract(SOURCE, "plain")
    assert block == "def plain(x: int) -> int:" and "<li>" not in folded
    assert folded.startswith('<details class="docstring">\n<summary>Says what.</summary>')
    assert "<strong>Args</strong> <code>x</code>: a number." in folded
    whole = python_signatures.contract(SOURCE, "Thing")
    assert whole[0].splitlines() == [
        "class Thing:",
        '    """A thing."""',
        "    def __init__(self, size: int):",
        "    def __call__(",
        "        self,",
        "        x: int,",
        "    ) -> int:",
    ]
    assert whole[1] == "" and "secret" not in block + folded + whole[0]
    assert "def _inner" in python_signatures.contract(SOURCE, "Thing._inner")[0]


def test_a_dataclass_shows_its_fields():
    source = (
        "@dataclass(frozen=True)\nclass Pair:\n"
        '    """Two things."""\n\n    KINDS = 2\n    first: int  # the first\n'
        "    more: list[int] = field(default_factory=list)\n    _last: int = 0\n"
    )
    lines = python_signatures.contract(source, "Pair")[0].splitlines()
    assert lines[2:] == ['    """Two things."""', "    first: int", "    more: list[int]"]


CPP = """\
// What differs between two types, in words that take more than one line of the page, as those of a source may do.
//
// And a second paragraph.
// GIVEN: not the lesson.
template <int R>
static int wide(const Number* from, int64_t first, int64_t second, int64_t third, float* to,
                int threads) {
  return 0;
}

// Sums.
struct Sums {
  float most;
};

static int narrow(int x) { return wide<1>(x); }
"""


def test_a_signature_in_cpp_has_its_comment_and_no_body():
    shown = cpp_signatures.contract(CPP, "wide")
    assert max(map(len, shown.splitlines())) <= cpp_signatures.COLUMNS
    assert shown.startswith("// What differs") and "\n// And a second paragraph.\ntemplate <int R>\n" in shown
    assert shown.endswith("float* to,\n    int threads);") and "GIVEN" not in shown and "return" not in shown
    assert cpp_signatures.contract(CPP, "Sums") == "// Sums.\nstruct Sums {\n  float most;\n};"
    assert cpp_signatures.contract(CPP, "narrow") == "static int narrow(int x);"
    with pytest.raises(LookupError):
        cpp_signatures.contract(CPP, "Number")


LONG = '''
class Wide:
    def ask(self, first: dict[int, list[int]] = (1, 2), second: Callable[[int, str], None] = print, third=3) -> str:
        """Says `a_b < c`. And goes on
        in the next line.

        More of it.

        Args:
            first, second: an explanation that fills the line, and
                a little of the next:
            which goes on here.
            third: short.

        Returns:
            Words.
        """

    def tell(
        self, first: Sequence[int | None] = (1, 2), second: Callable[[int, str], None] = print, *, last: int
    ) -> str:
        """An explanation in one line that is too long for a page, so that it has to go on in a second line."""
'''


def test_a_signature_fits_on_a_page():
    """Arguments go below, words and their order stay."""
    lines = python_signatures.contract(LONG, "Wide")[0].splitlines()
    assert max(map(len, lines)) <= python_signatures.COLUMNS
    arguments = " ".join(line.strip() for line in lines[2:6])
    first, second = "first: dict[int, list[int]] = (1, 2)", "second: Callable[[int, str], None] = print"
    assert arguments == f"self, {first}, {second}, third=3,"
    assert lines[6] == "    ) -> str:"
    block, folded = python_signatures.contract(LONG, "Wide.tell")
    assert folded == "" and max(map(len, block.splitlines())) <= python_signatures.COLUMNS
    assert block.endswith('second line."""')


def test_a_docstring_folds_with_its_items():
    folded = python_signatures.contract(LONG, "Wide.ask")[1]
    assert (
        "<summary>Says <code>a&#95;b &lt; c</code>.</summary>\n<p>And goes on in the next line.</p>" in folded
    )
    items = "explanation that fills the line, and a little of the next: which goes on here."
    names, items = "<code>first</code>, <code>second</code>", f"an {items}"
    assert f"<li>{names}: {items}</li><li><code>third</code>: short.</li>" in folded
    assert "<p><strong>Returns</strong> Words.</p>" in folded
    assert "\n\n" not in folded, "an empty line would end the HTML in Markdown"
    whole = python_signatures.contract(LONG, "Wide")[1]
    assert "<p><code>ask</code>: Says" in whole and "<p><code>tell</code>: An explanation" in whole


def test_no_signature_in_the_book_is_wider_than_a_page():
    for chapter in (BOOK / "src").glob("*.md"):
        for found in signatures.DIRECTIVE.finditer(chapter.read_text(encoding="utf-8")):
            shown = signatures.shown(found["file"], found["name"])
            lines = re.sub(r"^<details.*?</details>", "", shown, flags=re.DOTALL | re.MULTILINE).splitlines()
            assert max(map(len, lines)) <= python_signatures.COLUMNS, f"{chapter.name}: {found['name']}"


def test_missing_name_shows_as_an_error():
    assert "book-error" in signatures.expand("{{#signature mlx_backend/nowhere.py nothing}}")


@pytest.mark.parametrize("asked", ["mlx_backend", "torch_backend"])
def test_a_signature_is_shown_for_both_ports_if_they_differ(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(signatures, "SOURCE", tmp_path)
    for port, kind in (("mlx", "mx.array"), ("torch", "torch.Tensor")):
        (tmp_path / f"{port}_backend").mkdir()
        heads = f"def typed(x: {kind}):", "def same(x: int):", f"def {port}_only():"
        (tmp_path / f"{port}_backend" / "a.py").write_text(
            "".join(f"{head}\n    pass\n" for head in heads), encoding="utf-8"
        )
    names = "typed", "same", f"{asked.partition('_')[0]}_only"
    typed, same, only = (signatures.expand(f"{{{{#signature {asked}/a.py {name}}}}}") for name in names)
    labels_and_types = r'data-port="(\w+)">\n\n```python\ndef typed\(x: ([\w.]+)\):\n```\n\n</div>'
    assert re.findall(labels_and_types, typed) == [("MLX", "mx.array"), ("PyTorch", "torch.Tensor")]
    assert typed.count("<div") == typed.count("</div>") == 3
    assert same == "```python\ndef same(x: int):\n```" and "<div" not in only
    other = {"mlx_backend": "torch_only", "torch_backend": "mlx_only"}[asked]
    assert "book-error" in signatures.expand(f"{{{{#signature {asked}/a.py {other}}}}}")


# ---- what folds


def test_messages_and_readings_fold():
    items = "- *“one”*: a\n  cause.\n\n- *“two”*: another.\n"
    page = (
        f"# Title\n\n## Prove\n\nYou meet:\n\n{items}\nMore.\n\n## See\n\n{items}\n## Readings\n\n- a\n- b\n"
    )
    folded = folds.fold(page + '\n<p class="not-run">Not here.</p>\n')
    assert re.findall(r"<details class=.*?</details>", folded, re.DOTALL) == [
        f'<details class="messages">\n<summary>Messages and their causes</summary>\n\n{items}\n</details>',
        '<details class="readings">\n<summary>2 texts</summary>\n\n- a\n- b\n\n</details>',
    ]
    assert folded.endswith('</details>\n\n\n<p class="not-run">Not here.</p>\n')
    assert "</details>\n\nMore.\n" in folded and folds.fold("# No day\n\ntext\n") == "# No day\n\ntext\n"


def test_a_remedy_folds_under_its_symptom():
    section = "Troubleshooting\n\n**It `hangs`.** Stop it:\n\n```sh\nkill\n```\n\n**It is slow.**\nWait.\n"
    expected = [("It `hangs`.", "Stop it:\n\n```sh\nkill\n```"), ("It is slow.", "Wait.")]
    for page in (f"# {section}", f"# Page\n\n**Bold.** text\n\n## {section}\n## Next\n\n**Bold.** text\n"):
        folded = folds.fold(page)
        entry = r'<details class="entry">\n<summary>\n\n(.*?)\n\n</summary>\n\n(.*?)\n\n</details>'
        found = re.findall(entry, folded, re.DOTALL)
        assert found == expected and folded.count("**Bold.** text") == page.count("**Bold.** text")


def test_names_in_other_engines_fold_under_their_day():
    page = "# Your names in other engines\n\n**Begin** there.\n\n## Week 1\n\n[Day 1.1](a.md), x.\n\n- a\n- b\n\n"
    folded = folds.fold(f"{page}[Days 1.2 and 1.3](b.md), y.\n\n- c\n").partition("## Week 1")[2]
    assert re.findall(r"<summary>\n\n(.*?)\n\n</summary>\n\n(.*?)\n\n</details>", folded, re.DOTALL) == [
        ("[Day 1.1](a.md), x.", "- a\n- b"),
        ("[Days 1.2 and 1.3](b.md), y.", "- c"),
    ]


def test_the_end_of_a_long_screen_folds():
    tag, lines = '<pre class="screen" tabindex="0">', [f"<b>{number}</b>" for number in range(60)]
    assert folds.fold(whole := f"{tag}{'|'.join(lines)}\n</pre>\n") == whole
    for empty in ([], [9], [9, 14, 30, 50]):
        text = "\n".join("" if number in empty else line for number, line in enumerate(lines))
        shown = folds.fold(f"text\n\n{tag}{text}\n</pre>\n")
        first = 30 if 30 in empty else folds.WINDOW // 2
        assert shown.index("</pre>") < shown.index("more lines") < shown.index(f"<b>{first + 1}</b>")
        assert shown.count(tag) == 2 and [line for line in lines if line in shown] == [
            line for number, line in enumerate(lines) if number not in empty
        ]


# ---- the glossary

GLOSSARY_TEXT = """# Glossary

Rejection sampling
:   Words. [Day 4.3](week4-03.md).

Block, page
:   More
    words.

Sampling
:   Words.

KV cache
:   Words.
"""


def test_the_first_use_of_a_term_is_a_link():
    text = (
        "# KV cache\n\n`KV cache` [a KV cache](x.md) <summary>KV cache</summary>\n```sh\nKV cache\n```\n"
        "A KV\ncache, and kv-cache KV caches. A block. Rejection sampling, sampling. KV cache-like\n"
    )
    linked = terms.link(text, "week4-03.md", GLOSSARY_TEXT)
    found = re.findall(r'<a class="term" href="appendix-glossary.md#([\w-]+)">([^<]*)</a>', linked)
    assert found == [("kv-cache", "KV\ncache"), ("sampling", "sampling")]
    assert re.sub(r'<a class="term"[^>]*>([^<]*)</a>', r"\1", linked) == text
    assert ">Rejection sampling</a>" in terms.link(text, "week4-02.md", GLOSSARY_TEXT)
    assert terms.link(text, terms.GLOSSARY, GLOSSARY_TEXT) == terms.link(text, "a.md", "") == text


# ---- the search


def test_the_search_leaves_out_what_is_between_marks():
    """Screens, labels of drawings and hints; no mark breaks the HTML that it is in."""
    screen, drawing = '<pre class="screen" tabindex="0">a\n\nb</pre>', '<svg viewBox="0"><text>c</text></svg>'
    hint = '<details class="hint">\n<summary>Hint</summary>\n\ntext\n\n</details>\n'
    marked = search_marks.mark(f"kept {screen} kept {drawing} kept\n{hint} kept <pre>code</pre>")
    assert marked.count(search_marks.BEGIN) == marked.count(search_marks.END) == 3
    unmarked = re.sub(f"{search_marks.BEGIN}.*?{search_marks.END}", "", marked, flags=re.DOTALL)
    assert re.sub("<[^>]*>", "", unmarked).split() == ["kept"] * 4 + ["code"]
    assert '<svg viewBox="0"><metadata>' in marked and "\n</details><span hidden>" in marked


def test_a_result_names_the_week():
    items = [{"PartTitle": "Week 3: a title"}, {"Chapter": {}}, {"PartTitle": "Appendix"}, {"Chapter": {}}]
    search_marks.name_weeks(items)
    assert items[1] == {"Chapter": {"parent_names": ["Week 3"]}} and items[3] == {"Chapter": {}}


# ---- the link check

GOOD = {
    "index.html": '<a href="a.html#here">a</a><img src="i.svg"><link rel="stylesheet" href="css/s.css">',
    "a.html": '<h2 id="here">x</h2><a href="https://example.org/">outside, not fetched</a><a href="#here">up</a>',
    "i.svg": "<svg/>",
    "css/s.css": "body { background: url(../i.svg) }",
}


def site(folder, **changes):
    for name, text in {**GOOD, **changes}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return check_site(folder)


def test_a_whole_site_has_no_problem(tmp_path):
    assert site(tmp_path) == []


HERE, OUTSIDE = '<h2 id="here">', "fetched from outside"
FOUND = [
    ("a.html", f'<a href="gone.html">x</a>{HERE}', "link to nothing: gone.html"),
    ("a.html", "<h2>here has lost its id</h2>", "missing anchor: a.html#here"),
    ("a.html", f'{HERE}<img src="gone.png">', "missing file: gone.png"),
    ("a.html", f'{HERE}<script src="https://cdn.example/x.js"></script>', OUTSIDE),
    ("a.html", f'{HERE}<link rel="stylesheet" href="//cdn.example/x.css">', OUTSIDE),
    ("a.html", f'{HERE}<p style="background:url(http://cdn.example/x.png)">', OUTSIDE),
    ("a.html", f'{HERE}<style>@import "https://cdn.example/x.css";</style>', OUTSIDE),
    ("css/s.css", "@font-face { src: url('https://fonts.example/f.woff2') }", OUTSIDE),
    ("a.html", f"{HERE}<p>{{{{#include screens/gone.html}}}}</p>", "not rendered"),
    ("a.html", f'{HERE}<span class="book-error">formula</span>', "formula"),
]


@pytest.mark.parametrize(("file", "text", "problem"), FOUND)
def test_the_link_check_finds(tmp_path, file, text, problem):
    found = site(tmp_path, **{file: text})
    assert len(found) == 1, found
    assert problem in found[0]


# ---- the ceiling of length


def test_words_are_counted_outside_code_and_tags():
    page = (
        '# Two words\n\n<p class="day-facts">three more words</p>\n\n```sh\npdm run see\n```\n\n'
        "{{#include screens/x.html}} <!-- not read --> 1 < 2\n\n"
        "1. text\n\n   ~~~python\n   x = 1\n   ~~~\n\n<details><summary>Hint</summary>help</details>"
    )
    assert words(page) == 3 + 3 + 3 + 2 + 2


def test_a_page_above_the_ceiling_is_named_with_its_words(tmp_path):
    (tmp_path / "short.md").write_text("word " * CEILING, encoding="utf-8")
    (tmp_path / "long.md").write_text("word " * (CEILING + 20), encoding="utf-8")
    [problem] = check_length(tmp_path)
    assert problem.startswith("long.md: 2,820 words, 20 too many")


def test_appendices_and_all_pages_have_ceilings_of_their_own(tmp_path):
    for number in range(ALL // CEILING + 1):
        (tmp_path / f"appendix-{number}.md").write_text("word " * CEILING, encoding="utf-8")
    problems = [problem.partition(":")[0] for problem in check_length(tmp_path)]
    assert problems == ["all pages", "the appendices"]


def test_words_of_a_built_page_are_visible_or_folded():
    """The line to open is visible, and so is the tab of the first port; the rest is counted as folded."""
    page = (
        "<nav>not the page</nav><main><p>three visible words<br></p><script>1 2</script>"
        "<svg><text>label</text></svg><details><summary>to open</summary>one two <details><summary>x</summary>y"
        '</details></details><div class="port-tabs"><div data-port="MLX"><div>a</div></div>'
        '<div data-port="PyTorch"><div>b</div>c</div></div><details open>d</details> end</main>'
    )
    markdown = '<p class="day-facts">20 minutes · x</p> text'
    assert page_words(markdown, page) == Words(source=6, visible=9, folded=6, minutes=20)


def test_no_page_is_longer_than_the_ceiling():
    assert check_length(BOOK / "src") == []


# ---- the screens


def fake_day(text):
    module = ModuleType("see.week_1_day_9")
    module.show = lambda b, console: console.print(f"{text}, [bold]<&>[/bold] on {b.device}")
    return module


def test_a_changed_screen_is_detected(tmp_path):
    backend = installed_backends()[0]
    (written,) = screen_files.capture(day_screens.day_screens(backend, [fake_day("one")]), tmp_path)
    kept = written.read_text(encoding="utf-8")
    assert written.name == "week1-09.html"
    assert kept.startswith('<pre class="screen"')
    assert "pdm run see 1.9" in kept
    assert "&lt;&amp;&gt;" in kept

    assert list(screen_files.differences(day_screens.day_screens(backend, [fake_day("one")]), tmp_path)) == []
    (difference,) = screen_files.differences(day_screens.day_screens(backend, [fake_day("two")]), tmp_path)
    assert "-one, <&> on cpu" in difference
    assert "+two, <&> on cpu" in difference


def test_what_was_measured_is_shown_and_not_compared(tmp_path):
    """Only what a screen's MEASURED patterns match may differ, with the blanks that they take in front of it."""
    backend = installed_backends()[0]

    def day(text):
        module = fake_day(text)
        module.MEASURED = (r" *\d+\.\d(?= ms)", r" *█+")
        return module

    (written,) = screen_files.capture(
        day_screens.day_screens(backend, [day("7 keys   9.8 ms   ██")]), tmp_path
    )
    assert '<span class="measured">   9.8</span> ms' in written.read_text(encoding="utf-8")
    again = [day("7 keys  12.3 ms █████")]
    assert list(screen_files.differences(day_screens.day_screens(backend, again), tmp_path)) == []
    captured = list(screen_files.capture(day_screens.day_screens(backend, again), tmp_path))
    assert captured == [], "a file is not touched"
    (difference,) = screen_files.differences(
        day_screens.day_screens(backend, [day("8 keys   9.8 ms   ██")]), tmp_path
    )
    assert "+8 keys… ms…" in difference


def test_a_line_that_is_measured_as_a_whole_may_differ_in_its_colours():
    def fragment(*bars):
        made = console.recording_console("see")
        made.print(Text.assemble("stage 0  ", *bars))
        made.print("the same")
        return console.fragment(made, (r"stage \d  .*",))

    one, other = fragment(("██", "red"), ("▓", "blue")), fragment(("█", "green"))
    assert one != other and console.unmeasured(one) == console.unmeasured(other)
    assert "the same" in console.unmeasured(one) and "██" in one


def test_what_one_port_has_to_show_is_a_screen_of_its_own():
    backend = installed_backends()[0]
    day = fake_day("both")
    setattr(day, f"show_{backend}", lambda b, console: console.print("one alone"))
    day.show_nowhere = day.show
    ((name, fragment),) = day_screens.port_screens(backend, [fake_day("none"), day])
    assert name == f"week1-09-{backend}"
    assert "one alone" in fragment
    assert f"pdm run see 1.9 --backend {backend}" in fragment


def test_each_sitting_of_a_day_is_a_screen_of_its_own():
    day = fake_day("all of it")
    day.SITTINGS = tuple(fake_day(word).show for word in ("first", "second"))
    found = dict(day_screens.day_screens(installed_backends()[0], [day]))
    assert list(found) == ["week1-09a", "week1-09b"]
    assert "second" in found["week1-09b"] and "pdm run see 1.9 --sitting 2" in found["week1-09b"]


def test_every_see_fits_eighty_columns():
    """A wider line would be broken by the terminal, and a drawing with it."""
    for file in sorted(screen_files.FOLDER.glob("week*.html")):
        page = file.read_text(encoding="utf-8")
        lines = html.unescape(re.sub(r"<[^>]*>", "", page)).splitlines() if page.startswith("<pre") else []
        assert not [line for line in lines if len(line) > day_screens.SEE_COLUMNS], file.name


def test_every_screen_is_on_a_page():
    kept = {file.stem for file in screen_files.FOLDER.glob("*.html")}
    assert kept == {name for name, _ in result_tables.on_pages((name, "") for name in kept)}


def test_a_missing_screen_is_detected(tmp_path):
    fresh = day_screens.day_screens(installed_backends()[0], [fake_day("one")])
    assert "+one" in next(screen_files.differences(fresh, tmp_path))


def test_a_day_can_name_the_port_whose_measurements_the_book_shows():
    module = fake_day("one")
    assert day_screens.shown_on(module) == installed_backends()[0]
    module.SHOWN_ON = installed_backends()[-1]
    assert day_screens.shown_on(module) == installed_backends()[-1]
    module.SHOWN_ON = "a port that is not installed"
    assert day_screens.shown_on(module) == installed_backends()[0]


def test_a_command_that_fails_is_not_captured():
    command = command_screens.Command(name="x", shown="pdm run book nonsense", args=("book", "nonsense"))
    with pytest.raises(RuntimeError, match="ended with 2"):
        command_screens.output(command)


def test_what_differs_from_run_to_run_is_masked():
    command = command_screens.Command(name="x", shown="", args=("book", "--help"), mask=(r"\d{4}",))
    output = command_screens.output(command)
    assert "localhost:…" in output
    assert "3000" not in output


def test_a_screen_is_the_same_whatever_a_terminal_is_set_to(monkeypatch):
    """Of a command that prints in bold where it is told to."""
    command = command_screens.Command("x", "", ("course", "status"))
    expected = command_screens.output(command)
    for name in command_screens.THEIRS:
        monkeypatch.setenv(name, "1")
    assert command_screens.output(command) == expected


# ---- the minutes


PAGE = """<p class="day-facts">{} minutes · you fill something</p>

<p class="task-facts">20 minutes · <code>x.py</code></p>

<p class="task-facts">15 minutes · <code>y.py</code></p>

## Break

1. one
2. two

## Questions

1. none of Break
"""


def test_the_minutes_of_a_page_are_a_sum(tmp_path):
    """Reading 900 words takes 6 minutes, which are about 5."""
    text = PAGE.format(60) + "word " * 900
    assert parts_of(text) == (35, 5, 20)
    (tmp_path / "right.md").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.md").write_text(text.replace("60 minutes", "40 to 60 minutes"), encoding="utf-8")
    (tmp_path / "no_tasks.md").write_text("text", encoding="utf-8")
    [problem] = check_minutes(tmp_path)
    assert problem.startswith("wrong.md: 35 minutes of tasks, 5 of reading, 20 of Prove, See and Break")


def test_every_page_names_the_sum_of_its_minutes():
    assert check_minutes(BOOK / "src") == []


def test_the_facts_of_a_page_name_files_of_the_course(tmp_path):
    (tmp_path / "page.md").write_text(PAGE.replace("x.py", "sampler.py"), encoding="utf-8")
    assert check_files(tmp_path) == ["page.md: y.py is no file of the course"]
    assert check_files(BOOK / "src") == []


def hours_of(*pages: str) -> float:
    """The hours that the pages of these patterns name at their top."""
    files = [file for pattern in pages for file in (BOOK / "src").glob(pattern)]
    return sum(int(TOTAL.search(file.read_text("utf-8"))[1]) for file in files) / 60


def test_the_hours_of_the_landing_page_are_those_of_the_days():
    """Within an hour: a page's minutes change more often than anybody plans anew."""
    text = (BOOK / "src" / "preface.md").read_text("utf-8")
    weeks = {week: int(hours) for week, hours in re.findall(r"\*\*Week (\d)\*\*.*\| (\d+) \|", text)}
    assert list(weeks) == ["1", "2", "3", "4"]
    assert [week for week, hours in weeks.items() if abs(hours - hours_of(f"week{week}-*.md")) > 1] == []
    [middle] = re.findall(r"Weeks 2 and 3 alone[^|]*?(\d+) hours", text)
    assert int(middle) == weeks["2"] + weeks["3"]
    [everything] = re.findall(r"about (\d+) hours", text)
    assert int(everything) == sum(weeks.values())


HOURS = re.compile(r"^\|[^|]*\|(.*\(week.*)\| (\d*)([¼½¾]?) \|$", re.MULTILINE)
PARTS_OF_AN_HOUR = {"": 0, "¼": 1 / 4, "½": 1 / 2, "¾": 3 / 4}


def test_the_hours_of_the_three_evenings_are_those_of_the_days():
    """What comes after them, day by day, to half an hour; Week 1 to an hour."""
    rows = HOURS.findall((BOOK / "src" / "three-evenings.md").read_text("utf-8"))
    assert len(rows) == 13
    for links, whole, part in rows:
        pages = [name.replace("week1.md", "week1-*.md") for name in re.findall(r"\((week[^)]*)\)", links)]
        near = 1 if "week1-*.md" in pages else 1 / 2
        assert abs(int(whole) + PARTS_OF_AN_HOUR[part] - hours_of(*pages)) <= near, links


# ---- the book itself


def test_every_entry_of_the_summary_exists_and_every_page_has_an_entry():
    entries = re.findall(r"\]\(([^)]+)\)", (BOOK / "src" / "SUMMARY.md").read_text(encoding="utf-8"))
    pages = {path.name for path in (BOOK / "src").glob("*.md")} - {"SUMMARY.md"}
    assert len(entries) == len(set(entries))
    assert set(entries) == pages


def test_plain_mdbook_builds_the_book(tmp_path):
    """Without `pdm run`, from another folder: formulas are MathML and every link holds."""
    command = [find_mdbook(), "build", str(BOOK), "--dest-dir", str(tmp_path / "site")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    assert "<math " in (tmp_path / "site" / "notation.html").read_text(encoding="utf-8")
    assert check_site(tmp_path / "site") == []
    index = next((tmp_path / "site").glob("searchindex*.js")).read_text(encoding="utf-8")
    assert "Week 3 » Day 3: Hybrid batches" in index


def test_the_readme_has_the_two_commands_first():
    """CI takes them from here, by position."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    first = ['pip install "pdm[locked]" && pdm install && pdm run main --solution ref']
    assert [block.splitlines() for block in blocks[:2]] == [first, ["pdm run test-all"]]


@pytest.mark.parametrize("day", days(), ids=str)
def test_a_chapter_begins_with_the_files_that_its_day_fills(day):
    """Of a day with several pages, each with those of its own tasks."""
    exercises = [(file.name, exercise.task) for part in PARTS for file, exercise in exercises_of_part(part)]
    for page, sitting in zip(pages_of(day), sittings_of(day), strict=True):
        facts = re.search(r'<p class="day-facts">.*?</p>', page.read_text(encoding="utf-8"), re.DOTALL)
        files = {file for file, task in exercises if task in sitting}
        assert {file for file in files if file not in facts[0]} == set(), page.name


STATION = re.compile(r"^\| \d+ \| (.+) \| `([\w/]+\.(?:py|cpp))` \| (`.+`) \|$", re.MULTILINE)
SOURCES = ROOT / "src"


def station_texts(file: str) -> list[str]:
    """The texts of a file that the last chapter names, of each port that has one."""
    ports = [file.replace("backend/", f"{port}_backend/") for port in ("mlx", "torch")]
    names = ports if file.startswith("backend/") else [file]
    rooms = ("tiny_llm_ref", "tiny_llm_server", "tiny_llm_extensions", "")
    found = [path for name in names for room in rooms if (path := SOURCES / room / name).exists()]
    assert len(found) == len(names), file
    return [path.read_text(encoding="utf-8") for path in found]


def test_the_last_chapter_names_functions_that_are_there():
    """Each station is in the file beside it, and the file has a task of the day that is named."""
    rows = STATION.findall((BOOK / "src" / "what-you-have-built.md").read_text(encoding="utf-8"))
    assert len(rows) > 20
    for day, file, names in rows:
        for text in station_texts(file):
            assert day == "given" or f"TASK {day}." in text, (file, day)
            for name in re.findall(r"(\w+)`", names):
                assert re.search(rf"\b(def|class|int) {name}\b", text), (file, name)


GIVEN = re.compile(r'<div class="given">\n(.*?)</div>', re.DOTALL)
PLACE = re.compile(r"^((?:(?!: ).)*): .*\(`([\w/]+\.py)`", re.DOTALL)


def test_what_is_given_is_in_the_file_that_the_page_names():
    boxes = [
        box for page in sorted((BOOK / "src").glob("*.md")) for box in GIVEN.findall(page.read_text("utf-8"))
    ]
    items = [match for box in boxes for item in box.split("\n- ") if (match := PLACE.match(item))]
    assert len(items) > 15
    for names, file in (match.groups() for match in items):
        text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob(file))
        for name in re.findall(r"`(?:\w+\.)*(\w+)", names):
            assert re.search(rf"\b{name}\b", text), f"{name} is not in {file}"


# ---- scripts


IMPORT = re.compile(r"^ *from (tiny_llm\S*) import (\w+(?:, \w+)*)$", re.MULTILINE)


def test_every_name_that_a_script_of_the_book_imports_exists():
    """No command runs the scripts on the pages, so a function that moves would break them unnoticed."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in sorted((BOOK / "src").glob("*.md"))}
    found = [(page, *each) for page, text in pages.items() for each in IMPORT.findall(text)]
    imports = [(page, module, name) for page, module, names in found for name in names.split(", ")]
    assert imports
    assert [entry for entry in imports if not hasattr(importlib.import_module(entry[1]), entry[2])] == []
