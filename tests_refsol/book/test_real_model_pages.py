"""What the pages say that a real model answers, in float32, which every processor computes alike.

`test_real_answers` asks each port.
"""

import re
import shlex

import pytest

from tiny_llm_course.commands import main as command
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BOOK, ROOT

pytestmark = pytest.mark.tool("smollm2")
PORT = installed_backends()[-1]
PAGES = [ROOT / "README.md", BOOK / "src" / "week1-06-generate.md"]
SHOWN = re.compile(
    r"pdm run main (?P<options>[^\n]*--model smollm2[^\n]*)\n```\n\n```text\n(?P<answer>.*?)\n```\n",
    re.DOTALL,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_answer_on_a_page_is_the_engines(page, capsys):
    shown = SHOWN.search(page.read_text(encoding="utf-8"))
    options = [*shlex.split(shown["options"]), "--solution", "ref", "--backend", PORT, "--device", "cpu"]
    command.main(options)
    assert capsys.readouterr().out.rpartition("\n")[0].rpartition("\n")[0] == shown["answer"]
