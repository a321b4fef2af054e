"""Launches every tile of the sweep once, each process its share, so that all are compiled at once. Chapter 13.

Compiled kernels lie in Triton's cache on disk, where the sweep, in another process, finds them.
"""

from benchmarks.gpu_parts.bench import Bench, OutOfTimeError
from benchmarks.gpu_parts.problems import (
    LLAMA_8B,
    RoutedError,
    Shape,
    decode_tile,
    poisoned,
    prefill_tile,
    random_problem,
    run_decode,
    run_prefill,
)
from benchmarks.gpu_parts.sweep import decode_tiles, prefill_tiles


def run(bench: Bench) -> None:
    shape = bench.size(LLAMA_8B, LLAMA_8B, Shape(4, 2, 16))
    problem = random_problem(bench, shape, [1, 1], [16, 48], bench.dtype)
    out, launches = poisoned(problem.q), []
    try:
        for tile in decode_tiles(bench, decode_tile(bench, shape, bench.dtype)):
            launches += [lambda t=tile, s=splits: run_decode(bench, problem, out, s, t) for splits in (None, 2)]
        for tile in prefill_tiles(bench, prefill_tile(bench, shape, bench.dtype)):
            launches.append(lambda t=tile: run_prefill(bench, problem, out, t))
    except RoutedError as routed:
        bench.report.skip("tiles of what is not compiled", f"routed to torch: {routed}")
    first, step = bench.piece
    for number in range(first, len(launches), step):
        try:
            bench.need(5, f"{len(range(number, len(launches), step))} tiles are compiled while the sweep runs")
        except OutOfTimeError:
            break
        with bench.peer("a tile that does not compile; the sweep names it"):
            launches[number]()
