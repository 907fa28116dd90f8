"""What the tests of the widgets share: the JavaScript engine that runs their scripts."""

import pytest

from book.tools import widget


@pytest.fixture(scope="module")
def run():
    with widget.scripts() as engine:
        yield engine
