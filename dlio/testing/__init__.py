"""Conformance suites: what every format, source, engine and strategy promises, as classes of tests for pytest.

Subclass the suite in your own tests; it tries every promise:

    from dlio.testing.formats import FormatTests

    class TestMine(FormatTests):
        format_name = "mypackage.mine"

    formats.FormatTests          a format, by its name
    sources.SourceTests          a source, made by the fixture `source`
    engines.EngineTests          an engine, made by the fixture `engine`
    strategies.StrategyTests     a staging strategy, by its name

dlio's own are held to the same in its folder tests/conformance. Only these modules need pytest.
"""

import pytest

for _suite in ("formats", "sources", "engines", "strategies"):
    pytest.register_assert_rewrite(f"{__name__}.{_suite}")
