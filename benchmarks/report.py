"""Parts of every report: the header, the model's name, tables of figures, targets."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from tiny_llm_kit.trace.text import counted

OURS = "tiny-llm"  # what tables call our engine
BASELINES_AND_PORTS = ("torch", "mlx", "transformers", "llama-cpp-python", "xllamacpp", "mlx-lm")

SEVERAL_TOKENS = "TPOT: the time per token; TBT: between steps, which give several tokens"


def print_header(console: Console, result: Mapping[str, Any], what: str, how: str) -> None:
    """Print model and type (`what`), machine, versions, date, and rounds and threads (`how`)."""
    found = result["provenance"]
    machine, versions = found["machine"], found["versions"]
    known = [f"{name} {versions[name]}" for name in BASELINES_AND_PORTS if name in versions]
    place = machine["system"] if found["device"] == "cpu" else f"{found['device']}, {machine['system']}"
    console.print(f"{what}, {result['backend']} on {place}")
    console.print(f"{machine['processor']}, {machine['cores']} cores; {', '.join(known)}")
    console.print(f"{found['date']}, {how}")


def model_name(plan: Mapping[str, Any]) -> str:
    """The model, or the shape of its random weights; plans of older results lack some fields."""
    name = plan.get("config") or plan.get("model") or "tiny-qwen3"
    layers = f", {counted(plan['layers'], 'layer')}" if plan.get("layers") else ""
    is_random = plan.get("config") or plan.get("random_weights")
    return f"{name}{layers}{', random weights' if is_random else ''}"


def print_target(console: Console, is_met: bool, text: str) -> None:
    """Print a target, and whether it was met."""
    console.print(Text.assemble(("met   ", "green") if is_met else ("missed", "red"), f"  {text}"))
