"""`pdm run bench-decode`: tokens a second of a batch in decode, compared with peers on the same weights."""

from tiny_llm_kit.course.address import Day
from tiny_llm_kit.course.capabilities import ends_at_a_blank
from tiny_llm_kit.terminal import command

from .command import contest


@command
def main(argv: list[str] | None = None) -> None:
    with ends_at_a_blank(needs=Day(2, 6)):
        contest("decode", __doc__, argv)


if __name__ == "__main__":
    main()
