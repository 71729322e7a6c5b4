"""pytest-benchmark suites of single steps and of whole rounds on loopback.

Under plain `pytest` they run once at sizes that show only that they work; `make bench-micro`
(`--benchmark-enable`) measures the real sizes and writes JSON.
"""
