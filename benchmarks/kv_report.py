"""Results of `bench-kv` as tables: decode steps over each kind of pages, and conversations that return."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from .report import Report, Speed, header, results_table, speeds_table


def report(result: Mapping[str, Any]) -> Report:
    """The tokens per second of each way to keep keys and values, and what a step reads of its pages."""
    of_token = result["token_bytes"]
    sizes = ", ".join(f"{kind} {size:,} bytes" for kind, size in of_token.items())
    speeds = {
        f"{case['rows']} × {case['context']:,}": {
            kind: Speed(
                case["rows"] / median(seconds),
                seconds,
                (f"{case['rows'] * case['context'] * of_token[kind] / 1e6:,.0f}",),
            )
            for kind, seconds in case["seconds"].items()
        }
        for case in result["cases"]
    }
    yield header(result)
    yield f"A token has, in all layers: {sizes}"
    yield speeds_table(speeds, "pages", "MB read")


def report_of_returning(result: Mapping[str, Any]) -> Report:
    """The first token of each way, what another request notices, and the copies: medians over the rounds."""
    taken = result["samples"]
    computed, answer = middle(taken["computed"], "alone", "ttft"), taken["computed"][0]["alone"]["answer"]
    times, copied = [], []
    for name, samples in taken.items():
        alone = middle(samples, "alone", "ttft")
        beside = (middle(samples, "beside", figure) for figure in ("ttft", "gap", "usual"))
        times.append((name, in_ms(alone), f"{computed / alone:.1f} ×", *map(in_ms, beside)))
        answers = [sample[case]["answer"] for sample in samples for case in ("alone", "beside")]
        blocks = median(sample["alone"]["cached"] for sample in samples) / result["block_size"]
        figures = copies(blocks, result["block_bytes"][name], [sample["block"] for sample in samples])
        copied.append((name, *figures, f"{answers.count(answer)} of {len(answers)}"))
    yield header(result)
    yield f"A conversation of {result['plan']['input_len']:,} tokens goes on; the same tokens: in its answer"
    yield results_table(("ms", "TTFT", "computed is", "beside", "longest gap", "usual gap"), times)
    yield results_table(("copies", "MB", "ms per block", "GB/s", "the same"), copied)


def middle(samples: list[Any], case: str, figure: str) -> float:
    """The median of a figure."""
    return median(sample[case][figure] for sample in samples)


def in_ms(seconds: float) -> str:
    """Whole milliseconds."""
    return f"{1e3 * seconds:,.0f}"


def copies(blocks: float, size: int, seconds: list[float | None]) -> tuple[str, str, str]:
    """Bytes, milliseconds per block and bytes per second; nothing where no block was copied."""
    known = [each for each in seconds if each is not None]
    if not known:
        return "", "", ""
    return f"{blocks * size / 1e6:,.0f}", f"{1e3 * median(known):.2f}", f"{size / median(known) / 1e9:.2f}"
