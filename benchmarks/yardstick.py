"""A fixed piece of pure Python, timed: how fast is this interpreter on this machine right now? Knows nothing of ours.

Results of other benchmarks are given beside it, so that runs on two machines can be compared by their ratio.
"""

import time


def _work() -> int:
    """About a scheduler's mix: attribute-free loops, dictionary writes, list appends, small integers."""
    table: dict[int, int] = {}
    rows: list[int] = []
    for i in range(20_000):
        table[i & 255] = i
        if i % 3:
            rows.append(table[i & 127])
    return len(rows)


def yardstick_ms(repeats: int = 15) -> float:
    """Milliseconds of CPU time for the fixed work, best of `repeats`."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        _work()
        best = min(best, time.process_time() - start)
    return 1000 * best
