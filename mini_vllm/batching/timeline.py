"""What a batch did with its slots: a slot × time grid and its waste. Reads a trace; knows no policy. Chapter 1."""

from collections.abc import Iterable
from dataclasses import dataclass

from mini_vllm.batching.batcher import Batcher
from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.trace.recorder import Trace

PREFILL, DECODE, PADDING, IDLE = "prefill", "decode", "padding", "idle"


@dataclass(frozen=True)
class Cell:
    """One slot in one step. `tokens` are computed in it; only in a PADDING cell are all of them thrown away."""

    kind: str
    request_id: str | None = None
    tokens: int = 0


class Timeline:
    """`grid[slot][step]` of a run, and the numbers that follow from it. Times are in steps."""

    def __init__(self, trace: Trace, padded: bool = False):
        self.trace = trace
        self.padded = padded
        self.num_slots = trace.header["config"]["max_num_seqs"]
        self.num_steps = len(trace.steps)
        self.grid = self._fill_grid()

    def _fill_grid(self) -> list[list[Cell]]:
        grid = [[Cell(IDLE)] * self.num_steps for _ in range(self.num_slots)]
        slot_of: dict[str, int] = {}
        batch: set[int] = set()  # slots of the present batch, those already done included
        for step, record in enumerate(self.trace.steps):
            for req_id in record["aborted"]:
                slot_of.pop(req_id, None)
            if not record["running_before"]:
                batch = set()
            for req_id in record["new"]:
                slot_of[req_id] = min(set(range(self.num_slots)) - set(slot_of.values()))
                batch.add(slot_of[req_id])
            pieces = dict(record["scheduled"])
            widest = max(pieces.values(), default=0)
            if self.padded and pieces:
                for slot in batch:
                    grid[slot][step] = Cell(PADDING, tokens=widest)
            for req_id, n in pieces.items():
                kind = PREFILL if record["computed"][req_id][0] == 0 else DECODE
                grid[slot_of[req_id]][step] = Cell(kind, req_id, widest if self.padded else n)
            for req_id in record["finished"]:
                del slot_of[req_id]
        return grid

    def _count(self, *kinds: str) -> int:
        return sum(cell.kind in kinds for row in self.grid for cell in row)

    @property
    def slot_steps(self) -> int:
        return self.num_slots * self.num_steps

    @property
    def useful_slot_steps(self) -> int:
        """Slots in which a request advanced, summed over the steps."""
        return self._count(PREFILL, DECODE)

    @property
    def bubble_waste(self) -> float:
        """Share of all slot-steps in which nobody advanced."""
        return 1 - self.useful_slot_steps / self.slot_steps

    @property
    def computed_tokens(self) -> int:
        return sum(cell.tokens for row in self.grid for cell in row)

    @property
    def useful_tokens(self) -> int:
        return sum(n for record in self.trace.steps for _, n in record["scheduled"])

    @property
    def padding_waste(self) -> float:
        """Share of the computed tokens that are thrown away: pad tokens and the rows of finished requests."""
        return 1 - self.useful_tokens / self.computed_tokens

    @property
    def output_tokens(self) -> int:
        return sum(len(ids) for ids in self.trace.outputs().values())

    def ttft(self, request_id: str) -> int:
        """Steps from the arrival to the end of the step that gave the first token."""
        return self.trace.first_token_step()[request_id] + 1 - self._arrival(request_id)

    def latency(self, request_id: str) -> int:
        """Steps from the arrival to the end of the step that gave the last token."""
        return self.trace.finish_step()[request_id] + 1 - self._arrival(request_id)

    def queue_time(self, request_id: str) -> int:
        """Steps from the arrival to the start of the step in which the request joined the batch."""
        joined = next(record["step"] for record in self.trace.steps if request_id in record["new"])
        return joined - self._arrival(request_id)

    def _arrival(self, request_id: str) -> int:
        return self.trace.header["requests"][request_id]["arrival_step"]

    def text(self) -> str:
        """The grid in characters: the end of the id where a request advances, `#` padding, `.` idle."""
        marks = {PADDING: "#", IDLE: "."}
        rows = []
        for slot, row in enumerate(self.grid):
            cells = "".join(marks.get(c.kind) or str(c.request_id)[-1] for c in row)
            rows.append(f"slot {slot} |{cells}|")
        return "\n".join(rows)


def run_batches(
    batcher_cls: type[Batcher], requests: Iterable[SimRequest], num_slots: int, *, block_size: int = 16
) -> Timeline:
    """Run `requests` through a batching policy with `num_slots` slots on the step clock.

    The token budget and the KV pool are taken large enough to play no part: chapters 5 and 6 bring them in.
    """
    requests = list(requests)
    if not requests:
        raise ConfigError("run_batches got 0 requests; give it at least one SimRequest")
    longest = max(r.prompt_len + r.max_tokens for r in requests)
    config = SchedulerConfig(
        max_num_seqs=num_slots,
        max_num_batched_tokens=num_slots * longest,
        max_model_len=longest,
        num_gpu_blocks=num_slots * (-(-longest // block_size)),
        block_size=block_size,
    )
    return Timeline(simulate(requests, config, scheduler_cls=batcher_cls), padded=getattr(batcher_cls, "padded", False))
