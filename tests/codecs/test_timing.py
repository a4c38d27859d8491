"""The benchmark's table."""

from idiolect.codecs import NAMES, benchmark


def test_the_benchmark_has_a_line_for_every_codec_with_its_true_cost():
    table = benchmark(clients=3, parameters=1000)
    assert [line["codec"] for line in table] == list(NAMES)
    cost = {line["codec"]: line["bits per parameter"] for line in table}
    assert cost["float32"] == 32
    assert cost["linear"] == 8 + 32 / 1000
    assert all(line["compress seconds"] > 0 and line["encode seconds"] > 0 for line in table)
