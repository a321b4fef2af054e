"""Runs each kernel that was chosen against the oracle, on the card at hand. Knows no engine. Chapter 13.

    python -m mini_vllm.kernels.selftest                       on this machine's GPU
    python -m mini_vllm.kernels.selftest --interpret --json F  every head size, group, page and dtype, without a GPU

The engine calls `selftest` once at its start on a GPU. A kernel that compiles for another card, driver or Triton than
ours may still be wrong there, and wrong attention only makes the text worse: nothing else would notice.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mini_vllm.errors import MiniVLLMError
from mini_vllm.kernels import mode, tiles
from mini_vllm.kernels.reference import TOLERANCE, max_error, paged_attention

QUERY_LENS = (1, 8)  # of the decode kernels: no draft, and as many as they take


@dataclass(frozen=True)
class Shape:
    """What of a model and its cache the kernels are compiled for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    block_size: int = 16
    sliding_window: int | None = None


@dataclass(frozen=True)
class Case:
    """One launch and its error, as max |out - oracle| / max |oracle| over each sequence and head."""

    kernel: str
    dtype: str
    head_dim: int
    group: int
    block_size: int
    sliding_window: int | None
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


@dataclass(frozen=True)
class Report:
    """ok: every case is within its tolerance and none raised. failures: the others, in words and numbers.

    seconds: with the time to compile, which Triton keeps on disk for the next start.
    """

    ok: bool
    failures: list[str]
    seconds: float
    cases: list[Case]


# Each value of the promise once: heads of 64 to 256, groups of 1 to 32, pages of 1 to 64 tokens, three dtypes.
INTERPRETED = (
    Shape(3, 1, 64, torch.float32, 1),
    Shape(4, 1, 80, torch.float16, 3),
    Shape(7, 1, 96, torch.bfloat16, 8),
    Shape(8, 1, 128, torch.float32, 16, sliding_window=9),
    Shape(2, 2, 256, torch.float16, 48),
    Shape(16, 1, 64, torch.bfloat16, 64),
    Shape(32, 1, 64, torch.float16, 16),
)


def default_shapes(card: tiles.Card) -> list[Shape]:
    """What is tested where no model is named: SmolLM2's heads and Llama's, in the dtypes of this card."""
    half = torch.float16 if card.capability < (8, 0) else torch.bfloat16
    return [Shape(9, 3, 64, torch.float16), Shape(8, 2, 128, half)]


def selftest(device: Any, shape: Shape | None = None, query_lens: tuple[int, ...] = QUERY_LENS) -> Report:
    """Runs the kernels that tiles.py selects for this card. What one of them raises is a failure, and not raised.

    shape: of the model to be served, so that its kernels are compiled before the first request; if None, the default
    ones. query_lens: the most query tokens of a decode launch, one launch for each. On a CPU, in the interpreter.
    """
    started = time.perf_counter()
    card = None if torch.device(device).type == "cpu" else tiles.card_of(device)
    cases: list[Case] = []
    failures: list[str] = []
    shapes = [shape] if shape else list(INTERPRETED) if card is None else default_shapes(card)
    for one in shapes:
        for kernel, launch in _launches(one, card, query_lens, torch.device(device)):
            group = one.num_heads // one.num_kv_heads
            name = f"{kernel} ({str(one.dtype)[6:]}, head_dim {one.head_dim}, group {group}, page {one.block_size})"
            try:
                error = launch()
            except Exception as problem:  # whatever the compiler or driver at hand makes of it
                failures.append(f"{name}: {type(problem).__name__}: {problem}")
                continue
            settings = (str(one.dtype)[6:], one.head_dim, group, one.block_size, one.sliding_window)
            cases.append(Case(kernel, *settings, error, 0.0 if kernel == "store_kv" else TOLERANCE[one.dtype]))
            if not cases[-1].ok:
                failures.append(f"{name}: error {error:.2g}, and {cases[-1].tolerance:g} is allowed")
    return Report(not failures, failures, time.perf_counter() - started, cases)


def _launches(
    shape: Shape, card: tiles.Card | None, query_lens: tuple[int, ...], device: torch.device
) -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and error of each kernel that serves this shape; what is routed to torch is not among them."""
    from mini_vllm.kernels.paged_decode import paged_decode
    from mini_vllm.kernels.paged_prefill import paged_prefill, plan_tiles
    from mini_vllm.kernels.split_kv import paged_decode_split

    group, dtype_name = shape.num_heads // shape.num_kv_heads, str(shape.dtype)[6:]
    longest = 40 if card is None else 300  # several tiles, and more than one page

    def error(launch: Callable[..., None], pieces: list[int], **arguments: Any) -> float:
        step = _Step(shape, pieces, [longest, pieces[1], longest // 2], device)
        out = torch.full_like(step.q, float("nan"))
        launch(out, *step.inputs, *arguments.pop("last")(step), sliding_window=shape.sliding_window, **arguments)
        q, kv_cache, *rest = step.inputs
        oracle = paged_attention(q.double(), kv_cache.double(), *rest, sliding_window=shape.sliding_window)
        return max_error(out, oracle, step.query_start_loc)

    yield "store_kv", lambda: _Step(shape, [3, 1, 2], [longest, 1, 2], device).stored_wrong()
    for n in query_lens:
        decode = (
            tiles.INTERPRETER_DECODE if card is None else tiles.decode_tile(card, shape.head_dim, group, dtype_name, n)
        )
        if isinstance(decode, tiles.DecodeTile):
            common = {"tile": decode, "max_query_len": n, "last": lambda step: [step.requests]}
            pieces = [n, 1, (n + 1) // 2]
            yield f"paged_decode, {n} tokens", partial(error, paged_decode, pieces, **common)
            yield f"split_kv, {n} tokens", partial(error, paged_decode_split, pieces, num_splits=3, **common)
    prefill = tiles.INTERPRETER_PREFILL if card is None else tiles.prefill_tile(card, shape.head_dim, group, dtype_name)
    if isinstance(prefill, tiles.PrefillTile):
        pieces = [longest // 2, 5, 20]
        plan = plan_tiles(pieces, [0, 1, 2], group, prefill.block_m, device)
        yield "paged_prefill", partial(error, paged_prefill, pieces, tile=prefill, last=lambda step: [plan])


class _Step:
    """Inputs of one launch for three requests; every slot of the cache that nobody owns is NaN."""

    def __init__(self, shape: Shape, query_lens: list[int], seq_lens: list[int], device: torch.device) -> None:
        rng = torch.Generator().manual_seed(0)
        needed = [-(-n // shape.block_size) for n in seq_lens]
        ids = iter((torch.randperm(sum(needed), generator=rng) + 1).tolist())
        table = torch.zeros(len(seq_lens), max(needed), dtype=torch.int32)
        self.kv_cache = torch.full(
            (2, 1 + sum(needed), shape.block_size, shape.num_kv_heads, shape.head_dim), float("nan"), dtype=shape.dtype
        )
        flat, slots_of_step = self.kv_cache.view(2, -1, shape.num_kv_heads, shape.head_dim), []
        for request, (n, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
            table[request, : needed[request]] = torch.tensor([next(ids) for _ in range(needed[request])])
            positions = torch.arange(seq_len)
            slots = table[request, positions // shape.block_size] * shape.block_size + positions % shape.block_size
            flat[:, slots] = torch.randn(2, seq_len, *flat.shape[2:], generator=rng).to(shape.dtype)
            slots_of_step.append(slots[seq_len - n :])
        self.kv_cache, self.block_table = self.kv_cache.to(device), table.to(device)
        self.slot_mapping = torch.cat(slots_of_step).long().to(device)
        self.q = torch.randn(sum(query_lens), shape.num_heads, shape.head_dim, generator=rng).to(device, shape.dtype)
        self.query_start_loc = torch.tensor([0, *query_lens]).cumsum(0).to(device, torch.int32)
        self.seq_lens = torch.tensor(seq_lens, dtype=torch.int32, device=device)
        self.requests = torch.arange(len(seq_lens), dtype=torch.int32, device=device)

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.kv_cache, self.query_start_loc, self.seq_lens, self.block_table

    def stored_wrong(self) -> float:
        """Stores this step's K and V into an empty cache, one row not at all: the share of numbers that is wrong."""
        from mini_vllm.kernels.kv_store import store_kv

        slots = torch.cat([self.slot_mapping, self.slot_mapping.new_tensor([-1])])  # the last row is padding
        kv_heads = self.kv_cache.shape[3]
        rng = torch.Generator().manual_seed(1)
        rows = torch.randn(2, len(slots), kv_heads, self.q.shape[2], generator=rng).to(self.q)
        cache = torch.zeros_like(self.kv_cache)
        store_kv(rows[0], rows[1], cache, slots)
        expected = torch.zeros_like(cache)
        expected.view(2, -1, *rows.shape[2:])[:, self.slot_mapping] = rows[:, :-1]
        return float((cache != expected).double().mean())


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit status: 1 if a kernel fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true", help="on a CPU, in Triton's interpreter (about a minute)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the errors here, too")
    options = parser.parse_args(arguments)
    try:
        if options.interpret:
            mode.use_interpreter()
        elif not torch.cuda.is_available():
            parser.error("there is no CUDA GPU. Way out: --interpret")
        report = selftest("cpu" if options.interpret else "cuda")
    except MiniVLLMError as error:
        print(f"selftest: {error}", file=sys.stderr)
        return 1
    for case in report.cases:
        where = f"{case.dtype:<9} head_dim {case.head_dim:<3} group {case.group:<2} page {case.block_size:<2}"
        print(f"{'ok  ' if case.ok else 'FAIL'} {case.kernel:<23} {where} error {case.error:.1e} of {case.tolerance:g}")
    for failure in report.failures:
        print(failure, file=sys.stderr)
    if options.json:
        versions = {name: version(name) for name in ("torch", "triton", "numpy")}
        ran_on = "interpreter" if options.interpret else torch.cuda.get_device_name()
        lines = ",\n".join(json.dumps(asdict(case)) for case in report.cases)
        head = json.dumps({"ran_on": ran_on, "versions": versions})
        options.json.write_text(f'{head[:-1]},\n"cases": [\n{lines}\n]}}\n')
    print(f"{len(report.cases)} cases, {len(report.failures)} failures, {report.seconds:.1f} s")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
