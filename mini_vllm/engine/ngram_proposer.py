"""Guesses the next tokens from the text so far: what followed these words the last time? Knows no model. Chapter 16."""


class NgramProposer:
    """Prompt lookup for one request: the last tokens are looked for earlier, and what followed them is proposed.

        … the cat sat on the mat . Then | the cat          proposes: sat on the mat
                                          ^ longest known end

    Of several places the latest wins (vLLM 0.33.0 takes the earliest). longest, shortest: tokens of an end that is
    looked for; the longest known one is taken.
    """

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self.longest, self.shortest = longest, shortest
        self._after: dict[tuple[int, ...], int] = {}  # an n-gram -> index of the token that followed it last
        self._num_seen = 0

    def propose(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """At most `num_tokens` drafts to follow `token_ids`, which must begin as at the call before."""
        for index in range(self._num_seen, len(token_ids)):
            for n in range(self.shortest, min(self.longest, index) + 1):
                self._after[tuple(token_ids[index - n : index])] = index
        self._num_seen = len(token_ids)
        for n in range(min(self.longest, len(token_ids)), self.shortest - 1, -1):
            if (start := self._after.get(tuple(token_ids[-n:]))) is not None:
                return token_ids[start : start + num_tokens]
        return []
