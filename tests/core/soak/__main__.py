"""Random scenarios for the scheduler, run step by step against a worker that can tell a wrong block. Knows no pytest.

    python -m tests.core.soak --steps 1_000_000 --seed 0 [--kind async …] [--every]

It stops at the first broken rule and prints kind, seed and step; `--kind K --seed S --steps 1` runs it again.
A scenario is a function of (kind, seed) alone: configuration, requests, aborts, drafts, everything.
"""

import argparse
import sys
import time
from collections import Counter

from tests.core.soak.generator import KINDS
from tests.core.soak.scenario import run_scenario


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.core.soak", description="Random scheduler scenarios, until a rule breaks."
    )
    parser.add_argument("--steps", type=int, default=100_000, help="steps in all, shared among the kinds")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--every", action="store_true", help="compare each plan before and after, not one in eight")
    parser.add_argument("--keep-going", action="store_true", help="count failures by their first words, do not stop")
    options = parser.parse_args(argv)
    stats: dict[str, Counter] = {kind: Counter() for kind in options.kind}
    failures: dict[str, list] = {}
    begun = told = time.monotonic()
    seed = options.seed
    while (done := sum(s["steps"] for s in stats.values())) < options.steps:
        for kind in options.kind:
            try:
                run_scenario(kind, seed, stats[kind], options.every)
            except Exception as error:
                where = " ".join(getattr(error, "__notes__", []))
                if not options.keep_going:
                    print(f"\nBROKEN: {type(error).__name__}: {error}\n{where}", flush=True)
                    raise
                failures.setdefault(f"{kind}: {str(error)[:40]}", []).append((seed, str(error)[:300], where))
        seed += 1
        if (now := time.monotonic()) - told > 10:
            told, done = now, sum(s["steps"] for s in stats.values())
            print(f"{done:,} of {options.steps:,} steps, {done / (now - begun):,.0f} a second, seed {seed}", flush=True)
    for kind, counts in stats.items():
        print(f"\n{kind}: " + ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items())))
    for what, hits in failures.items():
        print(f"\nFAILED {len(hits)} x {what}: first {hits[0]}")
    print(f"\n{done:,} steps, {seed - options.seed:,} seeds a kind, {time.monotonic() - begun:,.0f} s")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
