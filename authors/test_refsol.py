"""`pdm run test-refsol`: the day tests on the reference with every port installed here, and the product's own tests."""

import os
import sys

from tiny_llm_course.capabilities import tested_ports
from tiny_llm_course.doctor import authors_tools
from tiny_llm_course.grading.run import files_of, parse, parser, run, selected_days
from tiny_llm_engine.machine.installation import install_line, installed_backends
from tiny_llm_engine.machine.repo import BACKENDS, ROOT, TESTS
from tiny_llm_engine.machine.terminal import command, fail


@command
def main(argv: list[str] | None = None) -> None:
    options, rest = parse(parser("pdm run test-refsol", __doc__), argv)
    backends = tested_ports(options.backend)
    missing = [port for port in BACKENDS if port not in installed_backends()]
    if missing and os.environ.get("CI"):
        fail(f"CI tests every port, and {missing[0]} is missing: {install_line(missing[0])}")
    chosen = selected_days(options.week, options.day, options.task)
    if not chosen:
        authors_tools.require()
    paths = files_of(chosen) if chosen else [TESTS, ROOT / "tests_refsol"]
    status = run("ref", backends, paths, options, rest)
    for port in missing:
        print(f"not tested on this machine: the {port} port ({install_line(port)})")
    sys.exit(status)


if __name__ == "__main__":
    main()
