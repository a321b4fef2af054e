"""The scheduler one step ahead: plans step s + 1 while step s runs. Knows what is planned, not yet known. Chapter 11.

    plan 0   plan 1   plan 2           CPU
         run 0    run 1    run 2       worker
             output 0  output 1        arrives one plan later

A request whose piece reaches the end of its known tokens gets a *placeholder*: a token that a step in flight will
sample. It counts as a token to advance over, but its value is unknown, so no block that holds it can be hashed yet.
"""

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError
from mini_vllm.request import Request


class AsyncScheduler(Scheduler):
    """Plans a step before it knows what the step under way sampled; decides as vLLM's asynchronous scheduler does.

    What it does not know it counts: placeholders for sampled tokens, in-flight tokens for KV that may not be there yet.
    Raises ConfigError with drafts: those of a step come out of the step before it.
    """

    def __init__(self, config: SchedulerConfig):
        if config.num_speculative_tokens:
            raise ConfigError(
                f"num_speculative_tokens={config.num_speculative_tokens} with asynchronous scheduling: the drafts of a "
                "step come out of the step before it; use one of the two"
            )
        super().__init__(config)
        self.kv_cache_manager.num_steps_in_flight = 2
        self.fast_path = False  # it knows no placeholders

    def _num_tokens_to_compute(self, request: Request) -> int:
        """Known tokens and placeholders less the computed ones; 0 if the step in flight brings the last token."""
        open_placeholders = request.num_output_placeholders
        if request.num_computed_tokens + 2 - open_placeholders >= request.longest:
            return 0
        return len(request.token_ids) + open_placeholders - request.num_computed_tokens

    def _after_schedule(self, plan: SchedulerOutput, planned: list[Request], num_quiet: int) -> None:
        for request, num_tokens in zip(planned, plan.num_scheduled_tokens.values(), strict=True):
            request.num_in_flight_tokens += num_tokens
            request.num_plans_in_flight += 1
            if request.num_computed_tokens + num_tokens == request.num_tokens + request.num_output_placeholders:
                request.num_output_placeholders += 1
        super()._after_schedule(plan, planned, num_quiet)

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestOutput]:
        """Outputs come in the order of their plans, each one plan late."""
        news = []
        for request in self.in_flight.take(plan):
            request.num_plans_in_flight -= 1
            if request.status.is_finished:
                continue
            # Planned before an eviction: its token is still right and still wanted, but its counters began anew.
            is_stale = request.num_stale_plans > 0
            if is_stale:
                request.num_stale_plans -= 1
            else:
                request.num_in_flight_tokens -= plan.num_scheduled_tokens[request.request_id]
            token_ids = output.sampled_token_ids.get(request.request_id)
            if not token_ids:
                continue
            if not is_stale:
                request.num_output_placeholders -= 1
            is_done = request.append_output(token_ids[0], self.config.max_model_len)
            if not is_stale:
                self.kv_cache_manager.register_settled(request)
            if is_done:
                self._forget(request)
            news.append(RequestOutput(request.request_id, token_ids, request.finish_reason))
        self._free_out_of_window()  # now, not a plan later: the window of the next plan begins at what is done by now
        return news
