"""Draft tokens of one request: which go into a piece, which of them stay. Knows no queue and no block. Chapter 16."""

from mini_vllm.errors import SchedulerContractError
from mini_vllm.request import Request


def refuse_too_many_drafts(draft_token_ids: dict[str, list[int]], most: int) -> None:
    """Raise SchedulerContractError if the worker proposes more than `most` tokens: no slots are kept for them.

    Asked before anything of the output is taken, so that a refused output changes nothing.
    """
    for req_id, token_ids in draft_token_ids.items():
        if len(token_ids) > most:
            raise SchedulerContractError(
                f"the worker drafts {len(token_ids)} tokens for {req_id!r}; num_speculative_tokens is {most}"
            )


def take_drafts(request: Request, num_new_tokens: int) -> list[int]:
    """The drafts that fit into this piece; a piece that ends before the known tokens carries none."""
    behind = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
    taken = request.spec_token_ids[: max(0, num_new_tokens - behind)]
    request.spec_token_ids = []
    return taken


def verify_drafts(
    request: Request, drafts: list[int], token_ids: list[int], max_model_len: int
) -> tuple[list[int], bool]:
    """Take the accepted drafts and the token after them; returns the tokens kept, and whether the request is done."""
    if request.num_computed_tokens:
        # Rejected drafts were counted as computed; their slots are written again.
        request.num_computed_tokens -= len(drafts) + 1 - len(token_ids)
    for count, token_id in enumerate(token_ids, start=1):
        if request.append_output(token_id, max_model_len):
            return token_ids[:count], True
    return token_ids, False
