"""Stands in for a model on the step clock: knows how far each request is, draws no words. Chapters 1 to 12."""

from mini_vllm.core.output import ModelRunnerOutput, SchedulerOutput


class FakeModelRunner:
    """Whoever reached the end of its known tokens gets token 1000 + output index, as in the recorded vLLM runs."""

    def __init__(self) -> None:
        self.state: dict[str, list[int]] = {}  # id -> [computed, known, prompt length]

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        for new in plan.scheduled_new_reqs:
            num_prompt_tokens = len(new.prompt_token_ids)
            self.state[new.req_id] = [new.num_computed_tokens, num_prompt_tokens, num_prompt_tokens]
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self.state[req_id][0] = num_computed_tokens
        sampled = {}
        for req_id, n in plan.num_scheduled_tokens.items():
            state = self.state[req_id]
            state[0] += n
            reached_end = state[0] == state[1]
            sampled[req_id] = [1000 + state[1] - state[2]] if reached_end else []
            state[1] += reached_end
        return ModelRunnerOutput(sampled)
