"""`docs/library.md`: its blocks run one after the other, as a reader would run them, and print what is claimed."""

import re

import pytest

from tiny_llm_engine.machine.installation import BACKEND, installed_backends
from tiny_llm_engine.machine.repo import ROOT

TEXT = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
KV_CACHE = "A KV cache keeps the keys and values of past tokens"
# What is printed, by the heading that the block is below.
PRINTED = {
    "Many prompts": "stop 25\nstop 27\n",
    "A conversation": "Chunked prefill splits a long prompt",
    "Text as it comes": KV_CACHE,
    "Several answers, and seeds": "3 True\n",
    "Answers in a form": "{'topic': 'scheduler'}\n",
    "asyncio and notebooks": "2\n",
    "Threads": "2\n",
    "Errors": "error stop\nmodel 'no-such-model'\n",
}


@pytest.mark.parametrize("port", installed_backends())
def test_the_page_of_the_library_runs(port, monkeypatch, capsys):
    monkeypatch.setenv(BACKEND, port)
    names: dict[str, object] = {}
    for section in TEXT.split("\n## ")[1:]:
        for block in re.findall("```python\n(.*?)```", section, re.DOTALL):
            exec(compile(block, "library.md", "exec"), names)
        assert capsys.readouterr().out.startswith(PRINTED[section.partition("\n")[0]])


def test_the_page_of_the_library_is_short():
    assert len(TEXT.split()) <= 600 and set(re.findall("^## (.+)$", TEXT, re.MULTILINE)) == set(PRINTED)
