"""Where things are in the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
MODELS = ROOT / "models"
BOOK = ROOT / "book"
TESTS = ROOT / "tests"
# Git ignores this folder: the chosen port, results of the last test runs, backups of a learner's work.
PRIVATE = ROOT / ".tiny-llm"
SETTINGS = PRIVATE / "settings.json"

PORTS = ("mlx", "torch")
