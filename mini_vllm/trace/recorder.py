"""Writes down what happened in each step. Knows the record format; decides nothing. Chapter 4.

Field names are those of the recorded runs of the real vLLM scheduler, so that the same player shows all three worlds.
"""

import logging
from dataclasses import asdict

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.trace.compact import Record
from mini_vllm.trace.cut import leave_out
from mini_vllm.trace.schema import FORMAT, VERSION
from mini_vllm.trace.trace import Trace
from mini_vllm.trace.writer import TraceWriter

logger = logging.getLogger(__name__)


class TraceRecorder:
    """Makes step records from a watch; one instance a run.

    clock: "seconds" or "steps", the unit of the times it is given.
    keep_steps: how many of the latest steps stay in `trace`; None is all, which a server that runs for weeks must not
        do. The header keeps only the requests of the steps that stay, and counts the `dropped_steps`.
    writer: gets every step when it is complete. If it cannot write any more (a full disk), the run goes on without it.
    With keep_steps=0 and no writer nothing is recorded, and a step costs nothing here.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kind: str,
        scheduler_name: str,
        *,
        clock: str = "seconds",
        keep_steps: int | None = None,
        writer: TraceWriter | None = None,
    ):
        if keep_steps is not None and keep_steps < 0:
            raise ConfigError(f"keep_steps={keep_steps} must be at least 0, or None for all")
        header = {"format": FORMAT, "version": VERSION, "kind": kind, "clock": clock, "scheduler": scheduler_name}
        self.trace = Trace({**header, "config": asdict(config), "requests": {}})
        self.keep_steps = keep_steps
        self._has_window = config.sliding_window is not None
        self._has_drafts = config.num_speculative_tokens > 0
        self._tables: dict[str, list[int]] = {}
        self._step = 0
        self._latest: Record = {}
        self._arrived: dict[str, dict] = {}  # the header's entries of those who arrived in the latest step
        self._is_written = True
        self._writer = writer
        self._write(lambda writer: writer.begin(self.trace.header))

    def arrived(self, request, step: int, prompt: str | None = None) -> None:
        entry = {
            "arrival_step": step,
            "prompt_len": request.num_prompt_tokens,
            "max_tokens": request.sampling_params.max_tokens,
        }
        if request.priority:
            entry["priority"] = request.priority
        if prompt is not None:
            entry["prompt"] = prompt
        self.trace.header["requests"][request.request_id] = entry

    def planned(
        self, step: int, watch, plan, before: dict, computed_before: dict[str, int], cached_blocks: list[int] | None
    ) -> None:
        """First half of a record: the state after `schedule()`, as `SchedulerWatch` keeps it.

        cached_blocks: those with a hash, where the scheduler lets us see them.
        """
        self._write_latest()
        self._step = step
        if self.keep_steps == 0:
            self._forget_requests(before["aborted"], watch, step)
            if self._writer is None:
                return
        pieces = plan.num_scheduled_tokens
        moved = dict.fromkeys([*pieces, *plan.preempted_req_ids])  # each once, in the plan's order
        computed = {req_id: [computed_before[req_id], watch.computed[req_id]] for req_id in moved}
        record: Record = {
            "step": step,
            **before,
            "scheduled": [[req_id, n] for req_id, n in pieces.items()],
            "new": [r.req_id for r in plan.scheduled_new_reqs],
            "resumed": list(plan.scheduled_cached_reqs.resumed_req_ids),
            "preempted": list(plan.preempted_req_ids),
            "hits": {
                req_id: watch.computed[req_id] - pieces[req_id]
                for req_id in (
                    *(r.req_id for r in plan.scheduled_new_reqs),
                    *plan.scheduled_cached_reqs.resumed_req_ids,
                )
            },
            "waiting": list(watch.waiting),
            "running": list(watch.running),
            "computed": computed,
        }
        record["blocks"] = self._share_tables(watch.block_tables, {*record["new"], *record["resumed"]})
        record["free"] = watch.num_free_blocks
        if cached_blocks is not None:
            record["cached_blocks"] = cached_blocks
        if self._has_drafts:
            record["spec"] = {req_id: len(ids) for req_id, ids in plan.scheduled_spec_decode_tokens.items()}
        record["budget_used"] = plan.total_num_scheduled_tokens
        record["blocked_reason"] = plan.blocked_reason
        requests = self.trace.header["requests"]
        self._latest, self._is_written = record, False
        self._arrived = {req_id: dict(requests[req_id]) for req_id in record["arrivals"] if req_id in requests}
        if self.keep_steps != 0:
            self.trace.steps.append(record)
        while self.keep_steps and len(self.trace.steps) > self.keep_steps:
            gone = self.trace.steps.pop(0)
            self.trace.header["dropped_steps"] = gone["step"] + 1
            leave_out(gone, requests)
            self._forget_requests([*gone["aborted"], *gone.get("finished", ())], watch, gone["step"])

    def _share_tables(self, tables: dict[str, list[int]], entered: set[str]) -> dict[str, list[int]]:
        """Copies of the block tables, for they grow in place; one that did not change is the copy of the step before.

        A table that was dropped and made anew belongs to a request that entered; otherwise it only grows, or with a
        sliding window loses its first blocks.
        """
        shared = {}
        for req_id, table in tables.items():
            copy = self._tables.get(req_id)
            if copy is None or len(copy) != len(table) or req_id in entered or (self._has_window and copy != table):
                copy = list(table)
            shared[req_id] = copy
        self._tables = shared
        return shared

    def _forget_requests(self, req_ids: list[str], watch, step: int) -> None:
        """Drop the header's entries of requests that ended in `step`, unless the id was taken again since."""
        requests = self.trace.header["requests"]
        for req_id in req_ids:
            if req_id in requests and req_id not in watch.requests and requests[req_id]["arrival_step"] <= step:
                del requests[req_id]

    def updated(self, watch, output, news, t_start: float, t_end: float) -> None:
        """Second half: what was sampled and who finished. Times in seconds or steps on the run's own clock."""
        finished = [item.request_id for item in news if item.finished]
        if self.keep_steps == 0:
            self._forget_requests(finished, watch, self._step)
        if self._is_written:
            return
        record = self._latest
        record["sampled"] = {req_id: list(ids) for req_id, ids in output.sampled_token_ids.items() if ids}
        record["finished"] = finished
        if self._has_drafts:
            record["computed_end"] = {req_id: watch.computed[req_id] for req_id in watch.running}
        record |= {
            "free_end": watch.num_free_blocks,
            "running_end": list(watch.running),
            "t_start": t_start,
            "t_end": t_end,
        }

    def add_pieces(self, pieces: dict[str, str]) -> None:
        """Text that became final in the latest step, per request; only the engine has text. Completes the step."""
        if pieces and not self._is_written:
            self._latest["pieces"] = pieces
        self._write_latest()

    def close(self) -> None:
        """The run is over: hand the last step to the writer and close its file."""
        self._write_latest()
        self._write(lambda writer: writer.close())

    def _write_latest(self) -> None:
        if not self._is_written:
            self._write(lambda writer: writer.write(self._latest, self._arrived))
            self._is_written = True

    def _write(self, act) -> None:
        if self._writer is not None:
            try:
                act(self._writer)
            except OSError as error:
                logger.error("the trace %s ends here, the run goes on: %s", self._writer.path, error)
                self._writer = None
