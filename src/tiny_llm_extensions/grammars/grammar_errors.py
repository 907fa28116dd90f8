"""llguidance's errors, reworded for the author of the schema, the expression or the grammar."""

import re
from pathlib import Path

TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
MEANINGS = [row.split(" => ") for row in TABLE.splitlines() if " => " in row]
WHERE = re.compile(r"^(?:at \d+\(\d+\): )?failed to compile JSON schema: |^(?:parser|lexer) error: ", re.I)


def in_plain_words(problem: str) -> str:
    """The reason and the fix in one line, without names of llguidance's own options."""
    problem = re.split(r"\n *\d+ \| ", problem.strip())[0]  # the form follows, by lines
    for pattern, meaning in MEANINGS:
        if (match := re.search(pattern, problem, re.DOTALL)) is not None:
            return match.expand(meaning)
    return f"{WHERE.sub('', problem).splitlines()[0]}; correct it"
