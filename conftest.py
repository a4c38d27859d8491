"""Modules that need Flower, which `make test` does not install: pytest must not look into them."""

collect_ignore = [
    "src/idiolect/silo/flower.py",
    "src/idiolect/silo/superlink.py",
    "src/idiolect/silo/supernode.py",
    "tests/distributed/measure_overhead.py",
]
