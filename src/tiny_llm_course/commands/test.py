"""`pdm run test --week 1 --day 2`: grade the learner's own package, `src/tiny_llm`."""

import sys

from tiny_llm_engine.machine.terminal import command, fail
from tiny_llm_extensions.arguments import output_argument, whole_number

from ..address import Day
from ..answers import other_port
from ..capabilities import learner_port, ports_of
from ..grading.run import files_of, parse, parser, run, selected_days
from ..learner import states
from ..tree import parts_of

LIMIT = 60  # seconds per test, several times what the slowest one takes on two busy cores


def started(backends: list[str]) -> list[Day]:
    """The days in which the learner has filled at least one task."""
    return sorted({state.task.of_day for state in states(parts_of(backends)) if state.status != "blank"})


@command
def main(argv: list[str] | None = None) -> None:
    top = parser("pdm run test", __doc__)
    top.add_argument("--all", action="store_true", help="also the tests after the first task that fails")
    top.add_argument("--time-limit", type=whole_number(1), default=LIMIT, help="seconds per test")
    text = "the points and failures of each task; docs/grading.md explains it"
    top.add_argument("--json", type=output_argument, metavar="FILE", help=text)
    options, rest = parse(top, argv)
    backends = ports_of(options.backend or learner_port())
    chosen = selected_days(options.week, options.day, options.task) or started(backends)
    if not chosen:
        first = "`pdm run test --week 1 --day 1` and its chapter, `pdm run book`"
        fail(f"nothing is filled in yet: start with {first}")
    if line := other_port(backends):
        print(line)
    extra = ["--record", "--by-task", f"--time-limit={options.time_limit}"]
    extra += [] if options.all else ["--stop-at-task"]
    extra += [f"--results={options.json}"] if options.json else []
    sys.exit(run("tiny_llm", backends, files_of(chosen), options, rest, extra))


if __name__ == "__main__":
    main()
