"""A scheduler that serves real words: a lane of growing text for each request. Knows `LLM`; decides nothing. Chapter 4.

Live it shows each token when it comes, so that a stall is felt. What stays counts in steps and tokens only, so that it
is the same on every machine; seconds are shown on request.
"""

import contextlib
import html
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import InvalidRequestError, MiniVLLMError
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.viz.phrases import count

STALL = "‖"  # before a token that came late: the step that gave it computed at least LONG_STEP tokens
LONG_STEP = 64
TINT = "rgba(213,94,0,.25)"
LETTER = (
    "Dear neighbours, the street market will come back to our town in spring, and we would like to tell you how it is "
    "planned. On Saturday mornings the square belongs to the farmers: bread, cheese, honey, eggs and the first "
    "vegetables of the year. Cars stay outside until two in the afternoon, and the bus stops at the church instead. "
    "Whoever wants a stall writes to the town hall before the end of March; a place costs ten coins a day, and schools "
    "pay nothing. There will be music at noon, a corner for children with wooden toys, and a table where old books "
    "change hands. If it rains, we move under the roof of the old station. We still look for people who carry tables "
    "early in the morning, who bake, who paint signs, or who simply smile at visitors. Coffee is free for all helpers. "
    "Please bring your own cups and bags, and take your rubbish home with you. The last market closed with songs and "
    "with a long table at which everybody sat down together, and many of you asked us to do it once more. So we will. "
    "In short, the market"
)


@dataclass(frozen=True)
class WordRequest:
    """A prompt that arrives before step `arrival_step` and gets `max_tokens` tokens. priority: smaller is sooner."""

    request_id: str
    prompt: str
    max_tokens: int
    arrival_step: int = 0
    priority: int = 0


# Two talk; then comes one with a long prompt, and one who would be quick.
WORD_REQUESTS = (
    WordRequest("R1", "The capital of Italy is", 24),
    WordRequest("R2", "Once upon a time, there was a", 16),
    WordRequest("R3", LETTER, 8, arrival_step=6),
    WordRequest("R4", "The opposite of hot is", 6, arrival_step=6),
)


@dataclass
class Lane:
    """One request's text. pieces: (step, tokens that the step computed, seconds since the run began, text)."""

    request: WordRequest
    pieces: list[tuple[int, int, float, str]] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def num_steps_waited(self) -> int | None:
        """Steps between its arrival and the step of its first token; None before that."""
        return self.pieces[0][0] - self.request.arrival_step if self.pieces else None

    @property
    def longest_step(self) -> int:
        """Tokens of the largest step that it waited for, between two of its own tokens."""
        return max((size for _, size, _, _ in self.pieces[1:]), default=0)

    @property
    def longest_gap_s(self) -> float:
        times = [at for _, _, at, _ in self.pieces]
        return max((b - a for a, b in pairwise(times)), default=0.0)


class ServedWords:
    """What came of it. `lanes`, `trace`; as the last value of a cell it shows. measured: with seconds."""

    def __init__(self, name: str, requests: Sequence[WordRequest], measured: bool):
        self.name, self.measured = name, measured
        self.lanes = {request.request_id: Lane(request) for request in requests}
        self.trace: Any = None

    def _facts(self, lane: Lane) -> str:
        facts = [f"arrives before step {lane.request.arrival_step}"]
        if lane.pieces:
            facts += [f"first token in step {lane.pieces[0][0]}", f"last in step {lane.pieces[-1][0]}"]
        if lane.num_steps_waited:
            facts.insert(1, f"{count(lane.num_steps_waited, 'step')} without a token")
        if lane.longest_step >= LONG_STEP:
            facts.append(f"a step of {lane.longest_step} tokens between two of its own")
        if self.measured and len(lane.pieces) > 1:
            facts.append(f"longest pause {lane.longest_gap_s:.2f} s")
        return ", ".join(facts)

    def _heading(self) -> str:
        steps = len(self.trace.steps) if self.trace else 0
        late = any(lane.longest_step >= LONG_STEP for lane in self.lanes.values())
        legend = f" ({STALL} before a token that came with a step of {LONG_STEP} tokens or more)" if late else ""
        return f"{self.name}: {count(len(self.lanes), 'request')} in {count(steps, 'step')}{legend}"

    def __repr__(self) -> str:
        lines = [self._heading()]
        for req_id, lane in self.lanes.items():
            text = "".join(mark + piece for mark, piece in _marked(lane))
            lines += [f"{req_id} ({self._facts(lane)})", f"    {_start(lane)}▸{text}".replace("\n", "\n    ")]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}

    def html(self, now: float | None = None) -> str:
        """now: seconds since the run began, while it is under way."""
        rows = [f"<p><strong>{html.escape(self._heading())}</strong></p>"]
        for req_id, lane in self.lanes.items():
            facts = self._facts(lane) if now is None else _so_far(lane, now)
            text = "".join(
                f'<span style="background:{TINT}">{html.escape(mark + piece)}</span>' if mark else html.escape(piece)
                for mark, piece in _marked(lane)
            )
            rows.append(
                f'<div style="border-left:4px solid rgba(128,128,128,.6);padding:.1rem .6rem;margin:.5rem 0">'
                f'<div style="font-size:.85em"><strong>{html.escape(req_id)}</strong> {html.escape(facts)}</div>'
                f'<div style="white-space:pre-wrap;overflow-wrap:anywhere"><span style="opacity:.75">'
                f"{html.escape(_start(lane))}</span>▸{text}</div></div>"
            )
        return f'<div class="served-words" aria-live="off">{"".join(rows)}</div>'


def serve_words(
    scheduler_cls: type = Scheduler,
    requests: Sequence[WordRequest] = WORD_REQUESTS,
    *,
    model: Any = "smollm2-135m",
    live: bool | None = None,
    measured: bool = False,
    **settings: Any,
) -> ServedWords:
    """Serve `requests` with the real model and this scheduler; returns what stays, as the last value of a cell.

    model: as of `LLM`. settings: of `LLM` (max_num_seqs, max_num_batched_tokens, num_gpu_blocks, …); by default three
    seats, a budget of 512 tokens and 64 blocks of 16.
    live: show the text while it grows; by default in a notebook or terminal that somebody looks at.
    measured: show seconds in what stays, too. A stored output with them must say where they were measured.
    Raises what `LLM` raises, SchedulerStalledError among it, and prints before how far it came.
    """
    from mini_vllm.engine.llm import LLM

    limits = {"max_num_seqs": 3, "max_model_len": 512, "num_gpu_blocks": 64, "block_size": 16}
    if not requests or len({r.request_id for r in requests}) != len(requests):
        raise InvalidRequestError(f"serve_words needs requests with different ids, got {[*requests]}")
    llm = LLM(model, scheduler_cls=scheduler_cls, **(limits | settings))
    served = ServedWords(scheduler_cls.__name__, requests, measured)
    show_live = _somebody_looks() if live is None else live
    with _screen(served) if show_live else contextlib.nullcontext(lambda now: None) as show:
        try:
            _serve(llm, served, show)
        except MiniVLLMError:
            print(served)  # how far it came
            raise
    return served


def _serve(llm: Any, served: ServedWords, show: Callable[[float], None]) -> None:
    to_come = sorted((lane.request for lane in served.lanes.values()), key=lambda r: r.arrival_step)
    streams = []  # held, or what is in them would be aborted
    begun, step = time.perf_counter(), 0
    while to_come or llm.has_unfinished_requests():
        # With an empty engine nothing would come before the next arrival.
        while to_come and (to_come[0].arrival_step <= step or not llm.has_unfinished_requests()):
            r = to_come.pop(0)
            params = SamplingParams(max_tokens=r.max_tokens)
            stream = llm.stream(r.prompt, params, request_ids=[r.request_id], priority=[r.priority])
            streams.append(stream)
        for delta in llm.step():
            lane, now = served.lanes[delta.request_id], time.perf_counter() - begun
            size = sum(n for _, n in llm.trace.steps[-1]["scheduled"])
            lane.pieces.append((step, size, now, delta.text))
            lane.finish_reason = delta.finish_reason
        served.trace = llm.trace
        show(time.perf_counter() - begun)
        step += 1


def _marked(lane: Lane) -> Iterator[tuple[str, str]]:
    """Each piece of text, and the mark before it if its request waited for it in a long step."""
    for i, (_, size, _, text) in enumerate(lane.pieces):
        yield (STALL if i and size >= LONG_STEP else ""), text


def _start(lane: Lane) -> str:
    """The end of its prompt."""
    prompt = lane.request.prompt
    return prompt if len(prompt) <= 60 else "…" + prompt[-40:]


def _so_far(lane: Lane, now: float) -> str:
    if lane.finish_reason:
        return "done"
    if not lane.pieces:
        return "no token yet"
    return f"{len(lane.pieces)} tokens, the last {now - lane.pieces[-1][2]:.1f} s ago"


def _somebody_looks() -> bool:
    """A terminal, or a notebook that neither a test nor the author's tools run."""
    nobody = {"PYTEST_VERSION", "MINI_VLLM_GRADED_FOLDER"} & os.environ.keys()
    if nobody or os.environ.get("MINI_VLLM_PROGRESS") == "off":
        return False
    return _in_notebook() or sys.stdout.isatty()


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


@contextlib.contextmanager
def _screen(served: ServedWords) -> Iterator[Callable[[float], None]]:
    """Shows the lanes after every step: as an output that is updated in a notebook, as text in a terminal."""
    if _in_notebook():
        from IPython.display import display

        handle = display({"text/plain": ""}, raw=True, display_id=True)
        try:
            yield lambda now: handle.update({"text/html": served.html(now), "text/plain": repr(served)}, raw=True)
        finally:
            if sys.exc_info()[0] is None:  # what stays is the cell's value
                handle.update({"text/plain": ""}, raw=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), auto_refresh=False, transient=True) as screen:
        yield lambda now: screen.update(Text(repr(served)), refresh=True)
