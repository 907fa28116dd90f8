"""`pdm run bench-prefill`: tokens a second of a prompt, compared with peers on the same weights."""

from ..course.address import Day
from ..course.capabilities import ends_at_a_blank
from ..lab.bench.command import contest
from ..terminal import command


@command
def main(argv: list[str] | None = None) -> None:
    with ends_at_a_blank(needs=Day(2, 5)):
        contest("prefill", __doc__, argv)


if __name__ == "__main__":
    main()
