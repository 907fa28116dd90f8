"""The check of commit subjects: not empty, no "wip", at most 72 characters.

`python -m authors.commit_subject FILE` reads a commit message, as git's commit-msg hook has it. Without a file it reads
subjects, one per line: `git log --format=%s main.. | python -m authors.commit_subject`.
"""

import re
import sys
from pathlib import Path

MOST = 72  # characters


def fault(message: str) -> str | None:
    """What is wrong with the subject of a message, in one line; the subject ends before the first blank line."""
    subject = re.sub(r"^#.*\n?", "", message, flags=re.MULTILINE).strip().partition("\n\n")[0]
    if not subject or re.search(r"\bwip\b", subject, re.IGNORECASE):
        return f"commit subject {subject!r}: say what changes"
    too_long = f"commit subject {subject!r}: {len(subject)} characters, shorten it to {MOST}"
    return too_long if len(subject) > MOST else None


if __name__ == "__main__":
    texts = [Path(sys.argv[1]).read_text("utf-8")] if sys.argv[1:] else sys.stdin
    sys.exit("\n".join(filter(None, map(fault, texts))) or 0)
