"""The worker's copy of one request. Knows its tokens and where they stand; knows no tensor. Chapter 14."""

from dataclasses import dataclass

from mini_vllm.engine.ngram_proposer import NgramProposer
from mini_vllm.engine.sampler import SamplingRow
from mini_vllm.sampling_params import SamplingParams

UNKNOWN = -1  # in token_ids: a step in flight samples this token, its value is not on the host yet


@dataclass
class RequestState:
    """What the plans told so far; a plan carries only what changed.

    row: of this request's block table in `InputBatch`.
    never: token ids that may not come before params.min_tokens.
    """

    token_ids: list[int]
    row: int
    num_computed_tokens: int
    num_prompt_tokens: int
    params: SamplingParams
    never: tuple[int, ...]
    proposer: NgramProposer

    def wants_likeliest(self, num_drafted: int = 0) -> bool:
        """The token after the known ones and these drafts is the likeliest, and nothing else is asked for."""
        params, num_output = self.params, len(self.token_ids) - self.num_prompt_tokens + num_drafted
        forbids = bool(self.never) and num_output < params.min_tokens
        return params.is_greedy and params.logprobs is None and not params.has_penalties and not forbids

    def sampling_row(self, drafted: list[int]) -> SamplingRow:
        """What the sampler must know to draw the token after the known ones and these drafts."""
        if self.wants_likeliest(len(drafted)):
            return SamplingRow(self.params)  # without its texts, which are long
        prompt, output = self.token_ids[: self.num_prompt_tokens], self.token_ids[self.num_prompt_tokens :]
        return SamplingRow(self.params, prompt, output + drafted, self.never)
