"""Prints a chapter's scheduler in one piece, in the order in which it runs. Knows chapters by number. Chapter 4."""

import argparse

from mini_vllm.stages import STAGES, load_stage
from mini_vllm.stages.reading_order import flattened


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mini_vllm.stages",
        description="Print the scheduler of a chapter in one piece, in the order in which it runs.",
    )
    parser.add_argument("chapter", type=int, choices=STAGES, help="which chapter's scheduler")
    print(flattened(load_stage(parser.parse_args(argv).chapter)), end="")


if __name__ == "__main__":
    main()
