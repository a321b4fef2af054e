"""One job: a process on a CPU, or a request on a batch machine. Knows its sizes and its times; no policy. Chapter 3."""

from dataclasses import dataclass, field

from mini_vllm.errors import InvalidRequestError


@dataclass(eq=False)
class Job:
    """On a CPU a job has only `work`. On the batch machine `work` counts output tokens, and `prompt` comes before them.

        arrival            first            finish          all on the machine's own clock
           |------ response --|                |
           |------------- turnaround ----------|

    weight: its share where a policy has shares (nice levels, tickets); twice the weight is twice the share.
    user: who sent it; fair policies of servers count by user, those of a CPU by job.
    """

    name: str
    arrival: float
    work: int
    prompt: int = 0
    weight: float = 1.0
    user: str = ""

    done: int = field(default=0, init=False)  # units of work that are finished
    computed: int = field(default=0, init=False)  # tokens whose KV is on the machine; 0 when it is switched out
    most_computed: int = field(default=0, init=False)  # what goes below this is computed again
    first: float | None = field(default=None, init=False)
    finish: float | None = field(default=None, init=False)
    num_switched_out: int = field(default=0, init=False)
    num_recomputed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.work < 1 or self.prompt < 0 or self.weight <= 0 or not self.arrival >= 0:
            raise InvalidRequestError(
                f"job {self.name!r}: work={self.work} must be at least 1, prompt={self.prompt} and "
                f"arrival={self.arrival} at least 0, weight={self.weight} above 0"
            )
        self.user = self.user or self.name

    @property
    def remaining(self) -> int:
        return self.work - self.done

    @property
    def known(self) -> int:
        """Tokens whose KV it needs to go on: prompt and output so far."""
        return self.prompt + self.done

    @property
    def behind(self) -> int:
        """Of these, the ones that are still to be computed, or to be computed again."""
        return self.known - self.computed

    @property
    def turnaround(self) -> float:
        return _known(self, self.finish) - self.arrival

    @property
    def response(self) -> float:
        """Until its first unit of work: on a server the time to first token."""
        return _known(self, self.first) - self.arrival


def _known(job: Job, time: float | None) -> float:
    if time is None:
        raise InvalidRequestError(f"job {job.name!r} has not come so far: run it first")
    return time
