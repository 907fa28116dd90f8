"""Where the shipped models are: one whose layers have plain MLPs, and one whose layers have experts."""

from tiny_llm_engine.machine.repo import MODELS

DENSE, MIXTURE = MODELS / "tiny-qwen3", MODELS / "tiny-qwen3-moe"
