"""Prompts on devices of their own against chunks beside decodes: who serves more within the same two promises."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import takewhile
from typing import NamedTuple

from ..latency_recorder import Latencies
from ..traffic import Lengths, traffic
from .capacity import rate_of
from .disaggregated_serving import Load, Split
from .hardware import HARDWARE
from .served import StudyPlan, medians, runs_of
from .study import Chart, Curve, Study

DEVICES = 8
SPLITS = tuple(Split(prefill, DEVICES - prefill) for prefill in range(1, DEVICES))
BUDGETS = (128, 256, 512, 1024, 2048)
LINKS = (1, 5, 25, 400)  # GB/s of a device, in each direction
PROMPTS = (512, 2048, 8192)  # tokens: the least, the median, the most
RATIOS = (1, 4, 16, 64)  # tokens of a prompt for each token of its answer
TTFT = 4.0  # seconds: the promise for the first token of nine requests in ten
TBTS = tuple(0.025 * 2 ** (step / 2) for step in range(11))  # promises for the P99 TBT: 25 to 800 ms
SHOWN = (TBTS[3], TBTS[4], TBTS[8])
DIFFERS = (
    "Chunks: requests per second of 8 devices with the best budget. ×: with the best P:D, as a multiple of it.",
    f"Within the promises: P90 of the first token {TTFT:g} s, P99 between tokens as in the first column.",
    "DistServe: up to 7.4 × the requests, or 12.6 × tighter targets. Splitwise: 1.4 × at 20 % lower cost, or 2.35 × at "
    "the same cost and power. These are of their abstracts; what they compare with is not these chunks.",
    "DistServe chooses how each kind of device is split up, Splitwise also mixes kinds of devices: here all are alike.",
    "vLLM's documentation: disaggregated prefill does not improve throughput. The rows with the long TBT say the same.",
    "Memory of keys and values that wait for a link is not counted, and nobody looks for the shortest queue.",
)
STRIDES = (16, 4, 1)  # of a search for the highest rate, in steps of 5 %
Trial = Callable[[float], tuple[float, float]]  # from requests per second and device to P90 TTFT and P99 TBT
Served = dict[int | None, dict[float, "Best"]]  # by the link, and by the promise


def lengths_of(ratio: int) -> Lengths:
    """Lengths whose prompts are this many times as long as their answers."""
    answers = tuple(tokens // ratio for tokens in PROMPTS)
    return Lengths(PROMPTS, answers, PROMPTS[-1] + answers[-1], "made up for this study", (0, 50, 100))


class Runs:
    """The ways to serve one kind of requests, each as a `Trial`; what is served once is remembered.

    Args:
        ratio: tokens of a prompt for each token of its answer.
    """

    def __init__(self, plan: StudyPlan, ratio: int):
        self.plan, self.lengths, self.hardware = plan, lengths_of(ratio), HARDWARE[plan.hardware]
        self._computed = cache(lambda split, rate, seed: self._load(rate, seed).computed(split))

    def _load(self, rate: float, seed: int) -> Load:
        specs = [*traffic(self.lengths, DEVICES * rate, DEVICES * self.plan.requests, seed)]
        return Load(self.hardware, self.plan.names, specs, self.lengths.most)

    def elsewhere(self, split: Split, link: float, rate: float, seed: int) -> Latencies:
        computed = self._computed(split, rate, seed)
        arrived = self.plan.names.arrivals(computed, self.hardware.kv_bytes / link)
        return self._load(rate, seed).decoded(arrived, split.decode)

    def in_chunks(self, budget: int, rate: float, seed: int) -> Latencies:
        """Chunks of prompts beside decodes, on every device."""
        return self._load(rate, seed).in_chunks(budget, DEVICES)

    def trial(self, serve: Callable[[float, int], Latencies]) -> Trial:
        """The medians over the seeds."""

        @cache
        def trial(rate: float) -> tuple[float, float]:
            ttft, tbt = medians([serve(rate, seed) for seed in self.plan.seeds], "P90 TTFT", "P99 TBT")
            return ttft, tbt

        return trial

    def chunks(self) -> dict[str, Trial]:
        """Chunks on every device, by budget."""
        return {f"{budget:,}": self.trial(partial(self.in_chunks, budget)) for budget in BUDGETS}

    def splits(self, link: float) -> dict[str, Trial]:
        """Prompts on devices of their own, by split; `link` is in bytes per second."""
        return {str(split): self.trial(partial(self.elsewhere, split, link)) for split in SPLITS}


class Best(NamedTuple):
    """The best of several ways to serve: a step of the ladder of rates, per device, and its name."""

    step: int = -1
    name: str | None = None

    @property
    def rate(self) -> float:
        """Requests per second of all devices."""
        return DEVICES * rate_of(self.step) if self.name else 0.0


def holds(trial: Trial, step: int, tbt: float) -> bool:
    """Whether a rate is served within both promises."""
    ttft, p99 = trial(rate_of(step))
    return ttft <= TTFT and p99 <= tbt


def best_of(trials: Mapping[str, Trial], tbt: float, known: Best) -> Best:
    """The way that serves the highest rate within both promises.

    Args:
        tbt: the promise for the time between tokens.
        known: a way that serves its rate; the search begins there.
    """
    for name, trial in trials.items():
        step = known.step
        for stride in STRIDES if holds(trial, step + 1, tbt) else ():  # most ways end here, after one run
            while holds(trial, step + stride, tbt):
                step += stride
        known = Best(step, name) if step > known.step else known
    return known


def by_promise(trials: Mapping[str, Trial], faster: Mapping[float, Best] | None = None) -> dict[float, Best]:
    """The best way for each of `TBTS`.

    Args:
        faster: that of a faster link, which a slower one may equal and not exceed.
    """
    found, known = dict[float, Best](), Best()
    for tbt in TBTS:
        likely = faster[tbt] if faster else Best()
        is_equal = likely.name is not None and holds(trials[likely.name], likely.step, tbt)
        known = found[tbt] = likely if is_equal else best_of(trials, tbt, known)
    return found


def run(plan: StudyPlan) -> Study:
    """Search the capacity of both by the lengths of prompts and answers, the link, and the promise.

    Raises:
        ValueError: the model runs in stages.
    """
    if HARDWARE[plan.hardware].stages > 1:
        raise ValueError(f"--hardware {plan.hardware}: a device is a pipeline there; give one without stages")
    found = {ratio: served(Runs(plan, ratio)) for ratio in RATIOS}
    rows = [row_of(f"{ratio} : 1", ways, tbt) for tbt in SHOWN for ratio, ways in found.items()]
    borders = {link: {ratio: border(ways, link) for ratio, ways in found.items()} for link in LINKS}
    curves = [
        Curve(f"{link} GB/s", [(ratio, round(1000 * tbt)) for ratio, tbt in places.items() if tbt])
        for link, places in borders.items()
    ]
    drawn = [curve for curve in curves if curve.points]
    label = "P99 between tokens, ms: above a line chunks serve more, below it prompts elsewhere"
    chart = Chart("tokens of a prompt per token of its answer", label, drawn, True, True) if drawn else None
    title = f"Chunks or prompts elsewhere, {DEVICES} devices\n{runs_of(plan)} on each"
    columns = "TBT s", "prompt : answer", "chunks", "budget", *(f"{link} GB/s, ×" for link in LINKS), "P:D"
    return Study("disaggregation", title, columns, rows, DIFFERS, chart)


def served(runs: Runs) -> Served:
    """The best of chunks, as None, and of prompts elsewhere, by the link."""
    found: Served = {None: by_promise(runs.chunks())}
    faster = None
    for link in sorted(LINKS, reverse=True):
        faster = found[link] = by_promise(runs.splits(1e9 * link), faster)
    return found


def border(ways: Served, link: int) -> float | None:
    """The longest promise up to which chunks do not serve more; None if they do at each that can be kept."""
    pairs = {tbt: (ways[None][tbt].rate, ways[link][tbt].rate) for tbt in TBTS}
    until = takewhile(lambda tbt: pairs[tbt][0] <= pairs[tbt][1], TBTS)
    return max((tbt for tbt in until if pairs[tbt][1]), default=None)


def row_of(kind: str, ways: Served, tbt: float) -> list[float | str | None]:
    """A row of the table: a promise and a kind of requests."""
    chunks, elsewhere = ways[None][tbt], [ways[link][tbt] for link in LINKS]
    times = [best.rate / chunks.rate if chunks.rate else None for best in elsewhere]
    return [tbt, kind, chunks.rate, chunks.name, *times, elsewhere[-1].name]
