"""Parts of every report: the header, the model's name, what rounds say, the fastest baseline, targets."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tiny_llm_kit.engine.samples import spread
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


def rounds_and_threads(plan: Mapping[str, Any]) -> str:
    """As "3 rounds, 2 threads"."""
    return f"{counted(plan['rounds'], 'round')}, {counted(plan['threads'], 'thread')}"


def medians(rounds: int) -> str:
    """What the figures of a table are: of one round there is no median."""
    return "one round" if rounds == 1 else f"medians of {rounds} rounds"


def noise(samples: Sequence[float]) -> str:
    """Half the distance between the quartiles, as a share of the median; a dash for one round."""
    return f"±{50 * spread([*samples]):.0f} %" if len(samples) > 1 else "–"


def fastest_baseline(speeds: Mapping[str, float]) -> str | None:
    """The fastest engine that is not ours in another way; None without one."""
    return max((name for name in speeds if not name.startswith(OURS)), key=speeds.__getitem__, default=None)


def print_target(console: Console, is_met: bool, text: str) -> None:
    """Print a target, and whether it was met."""
    console.print(Text.assemble(("met   ", "green") if is_met else ("missed", "red"), f"  {text}"))
