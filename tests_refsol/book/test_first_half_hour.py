"""What a reader meets first: programs to try, and the search. `book build` is the book that is searched."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from book.tools import widget
from book.tools.words import page_words
from tiny_llm_course.mdbook import find_mdbook
from tiny_llm_engine.machine.repo import BOOK, ROOT

sys.path.insert(0, str(BOOK))  # the preprocessor is no package: any Python can run it
import signatures
import terms

SOURCE = BOOK / "src"
TRIED = re.compile(r"^### Try it: .*?^```python\n(.*?)^```.*?^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ("week2-02-03-quantised-matmul", "week2-04-05-flash-attention", "week2-06-continuous-batching")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_tries_prints_what_it_shows_before_the_first_task(page):
    text = (SOURCE / f"{page}.md").read_text(encoding="utf-8")
    [(program, shown)] = TRIED.findall(text)
    assert text.index("### Try it: ") < text.index("### Task ")
    with redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue() == shown


def test_the_loop_of_day_6_has_twelve_lines():
    [(program, _)] = TRIED.findall((SOURCE / f"{PAGES[2]}.md").read_text(encoding="utf-8"))
    assert len(program.splitlines()) == 12


@pytest.mark.parametrize("page", sorted(SOURCE.glob("week[34]-*.md")), ids=lambda page: page.stem)
def test_a_day_of_weeks_3_and_4_names_what_there_is(page):
    """Three functions of earlier days, each as it is called, without types."""
    text = page.read_text(encoding="utf-8")
    directive = signatures.HAVE.search(text)
    assert directive is not None and directive.start() < text.index("## Predict")
    week, day = map(int, re.match(r"week(\d)-0(\d)", page.stem).groups())
    lines = re.findall(r"^- `\w[\w.]*\([^:`]*\)`, Day (\d)\.(\d)\. \S", signatures.expand(text), re.MULTILINE)
    assert len(lines) == 3 and all((int(w), int(d)) < (week, day) for w, d in lines)


def test_a_name_without_a_task_is_an_error_on_the_page():
    assert "book-error" in signatures.expand("{{#have mlx_backend/kv_cache.py round_up}}")


# By page: what a reader types whom it should answer.
ANSWERS = {
    "week2-07c-who-goes-first": "head-of-line",
    "week2-07b-how-large": "chunk size, TTFT",
    "week2-02-03-quantised-matmul": "roofline, quantisation",
    "week3-01-paged-kv": "prefix caching, block table, watermark",
    "week2-01-kv-cache": "prefill, KV cache, offset, decode",
    "week2-06-continuous-batching": "throughput, continuous batching",
    "appendix-troubleshooting": "out of memory",
    "week2-07a-cut-and-schedule": "chunked prefill",
    "week2-04-05-flash-attention": "flash attention, online softmax",
    "week1-02-rope": "RoPE",
    "week1-03-gqa": "GQA, causal mask",
    "week3-03-hybrid-batches": "preemption, token budget",
    "week3-04-graphs-and-buckets": "bucket",
    "week3-05-latency-targets": "SLO",
    "week3-07-many-devices": "tensor parallelism",
    "week4-02-mixtures-of-experts": "mixture of experts",
    "week4-03-speculative-decoding": "speculative decoding",
    "week4-04-asynchronous-scheduling": "asynchronous scheduling",
    "week1-04-rmsnorm-mlp": "RMSNorm",
}
QUERIES = {query: page for page, queries in ANSWERS.items() for query in queries.split(", ")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built book."""
    folder = tmp_path_factory.mktemp("book") / "site"
    command = [find_mdbook(), "build", str(BOOK), "--dest-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_at_most_2000_words_lead_from_the_readme_to_the_first_green(site):
    """All of the README, and what Day 0 and Day 1.1 show, screens and signatures too, up to where they say to go on."""
    ends = {"setup": "The rest of this page is for later", "week1-01-attention": 'id="task-112-linear"'}
    seen = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    for page, end in ends.items():
        read, marker, _ = (site / f"{page}.html").read_text(encoding="utf-8").partition(end)
        assert marker, f"{page} has no {end!r}"
        seen += page_words("", read).visible
    assert seen <= 2_000


@pytest.fixture(scope="module")
def search(site):
    """A function from a query to the first three addresses, as the search of the built page finds them."""
    scripts = [next(site.glob(name)) for name in ("elasticlunr-*.js", "theme/search*.js", "searchindex-*.js")]
    with widget.scripts() as run:
        run("(globalThis.window = globalThis, window.search = {}, 0)")
        for script in scripts:
            run(f"((0, eval)({json.dumps(script.read_text(encoding='utf-8'))}), 0)")
        run("(window.found = elasticlunr.Index.load(search.index), 0)")
        first = (
            "found.search({}, search.search_options).slice(0, 3).map((result) => search.doc_urls[result.ref])"
        )
        yield lambda query: run(first.format(json.dumps(query)))


def test_thirty_queries_find_the_page_that_explains_them(search):
    assert len(QUERIES) == 30
    found = {query: [address.split(".html")[0] for address in search(query)] for query in QUERIES}
    assert {query: pages for query, pages in found.items() if QUERIES[query] not in pages} == {}


def test_a_term_finds_its_entry_of_the_glossary_first(search):
    glossary = (SOURCE / terms.GLOSSARY).read_text(encoding="utf-8")
    heads = [head for head, _ in terms.ENTRY.findall(glossary)]
    found = {head: search(head.split(", ")[0])[:1] for head in heads}
    wanted = {head: [f"appendix-glossary.html#{terms.anchor_of(head)}"] for head in heads}
    assert len(heads) > 90 and found == wanted
