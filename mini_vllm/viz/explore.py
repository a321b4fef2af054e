"""One workload under many settings: a run and its key figures for each. Knows the simulator; knows no widget.

From chapter 5 on. `Settings` is what the sliders of `viz/widgets.py` move over, and what their static twin tabulates;
`Experiment` is what both need of anything that sliders may move over.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

from mini_vllm.config import POLICIES, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError, MiniVLLMError
from mini_vllm.sim.driver import SimRequest, simulate

ROWS_PER_CONTROL = 8  # the table shows this many values of a longer control
HEADINGS = ("steps", "preempted", "worst TTFT", "worst ITL", "peak KV")
UNITS = ("", "times", "steps", "steps", "blocks")


class KeyFigures(NamedTuple):
    """What a run cost. Times in steps: TTFT from the arrival to the end of the step with the first token, ITL between
    two steps in which a request emitted; peak_blocks are KV blocks in use after schedule()."""

    steps: int
    preemptions: int
    worst_ttft: int
    worst_itl: int
    peak_blocks: int


def key_figures(run: Any) -> KeyFigures:
    """The figures of a finished simulated run."""
    emitted: dict[str, list[int]] = {rid: [] for rid in run.header["requests"]}
    for record in run.steps:
        for rid in record["sampled"]:
            emitted[rid].append(record["step"])
    arrival = {rid: request["arrival_step"] for rid, request in run.header["requests"].items()}
    return KeyFigures(
        steps=len(run.steps),
        preemptions=sum(len(record["preempted"]) for record in run.steps),
        worst_ttft=max((steps[0] - arrival[rid] + 1 for rid, steps in emitted.items() if steps), default=0),
        worst_itl=max((b - a for steps in emitted.values() for a, b in pairwise(steps)), default=0),
        peak_blocks=max(run.header["config"]["num_gpu_blocks"] - record["free"] for record in run.steps),
    )


class Experiment:
    """Controls with the values that each may take, where they start, a run for every choice, and what it came to.

    headings, units: of the key figures, one each. words: what the units of the table are, as a sentence.
    columns: of the table, where they are others than the headings; see `row`.
    """

    headings: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    words = ""

    def __init__(self, start: Mapping[str, Any], controls: Mapping[str, Sequence[Any]]) -> None:
        self.start = dict(start)
        self.controls = {name: _with(self.start[name], values) for name, values in controls.items()}

    def run(self, values: Mapping[str, Any]) -> Any:
        """What happens under these values; a MiniVLLMError where they are refused."""
        raise NotImplementedError(f"{type(self).__name__} has no run(values)")

    def figures(self, run: Any) -> Sequence[Any]:
        """The key figures of a run, in the order of `headings`."""
        raise NotImplementedError(f"{type(self).__name__} has no figures(run)")

    def row(self, control: str, run: Any) -> Sequence[Any]:
        """What the table says of a run in which only `control` was moved."""
        return self.figures(run)

    def one_at_a_time(self) -> dict[str, list[tuple[Any, Sequence[Any] | str]]]:
        """control -> (value, figures, or why it is refused), the other controls at their start."""
        table: dict[str, list[tuple[Any, Sequence[Any] | str]]] = {}
        for name, values in self.controls.items():
            table[name] = [(value, self._found(name, value)) for value in _some(values, self.start[name])]
        return table

    def _found(self, name: str, value: Any) -> Sequence[Any] | str:
        try:
            return self.row(name, self.run({**self.start, name: value}))
        except MiniVLLMError as refusal:
            return f"refused: {refusal}"


class Settings(Experiment):
    """A workload, the settings to start from, and the values that each control may take.

    controls: field of SchedulerConfig -> values; the value of `config` is always among them. None offers the token
        budget, the pool size, the longest prompt chunk and the policy, with values that suit the workload.
    Raises ConfigError for an unknown field, a control without values, or no request.
    """

    headings, units, words = HEADINGS, UNITS, "TTFT and ITL in steps, KV in blocks."

    def __init__(
        self,
        requests: Iterable[SimRequest],
        config: SchedulerConfig | None = None,
        *,
        controls: Mapping[str, Sequence[Any]] | None = None,
        scheduler_cls: type = Scheduler,
        max_steps: int = 5_000,
    ) -> None:
        self.requests, self.config = list(requests), config or SchedulerConfig()
        self.scheduler_cls, self.max_steps = scheduler_cls, max_steps
        if not self.requests:
            raise ConfigError("there are 0 requests to run: give at least one SimRequest")
        chosen = default_controls(self.requests, self.config) if controls is None else controls
        known = [f.name for f in fields(SchedulerConfig)]
        for name, values in chosen.items():
            if name not in known:
                raise ConfigError(f"{name!r} is no setting of the scheduler: choose among {', '.join(known)}")
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ConfigError(f"control {name} needs a list of values, not {values!r}")
        super().__init__({name: getattr(self.config, name) for name in chosen}, chosen)

    def run(self, values: Mapping[str, Any]) -> Any:
        """The trace under these values; a MiniVLLMError where the scheduler refuses them."""
        config = replace(self.config, **values)
        return simulate(self.requests, config, scheduler_cls=self.scheduler_cls, max_steps=self.max_steps)

    def figures(self, run: Any) -> KeyFigures:
        return key_figures(run)


class SettingsTable:
    """What each control does alone, as a table: the static twin of the sliders."""

    def __init__(self, settings: Experiment, note: str = "") -> None:
        self.rows, self.start, self.note = settings.one_at_a_time(), settings.start, note
        self.headings, self.words = settings.columns or settings.headings, settings.words

    def caption(self) -> str:
        start = ", ".join(f"{name} {value}" for name, value in self.start.items())
        return f"Each control moved alone from the start ({start}); {self.words} {self.note}".strip()

    def _marked(self, name: str, value: Any) -> str:
        return f"{value} (start)" if value == self.start[name] else str(value)

    def text(self) -> str:
        """The table in plain characters."""
        lines = [self.caption(), f"{'':24}" + "  ".join(self.headings)]
        for name, rows in self.rows.items():
            lines.append(name)
            for value, found in rows:
                cells = found if isinstance(found, str) else "  ".join(
                    str(number).rjust(len(heading)) for number, heading in zip(found, self.headings, strict=True)
                )  # fmt: skip
                lines.append(f"  {self._marked(name, value):<22}{cells}")
        return "\n".join(lines)

    def html(self) -> str:
        """The table as HTML; the class gives it the look of the book's data frames."""
        heads = "".join(f'<th scope="col">{heading}</th>' for heading in ("setting", *self.headings))
        body = "".join(row for name, rows in self.rows.items() for row in self._html_rows(name, rows))
        table = f'<table class="dataframe" aria-label="What each control does"><thead><tr>{heads}</tr></thead>'
        return f"<p>{escape(self.caption())}</p>{table}<tbody>{body}</tbody></table>"

    def _html_rows(self, name: str, rows: Sequence[tuple[Any, Sequence[Any] | str]]) -> Iterator[str]:
        across = f'colspan="{len(self.headings) + 1}" style="text-align:left"'
        yield f'<tr><th scope="rowgroup" {across}>{escape(name)}</th></tr>'
        for value, found in rows:
            head = f'<th scope="row" style="white-space:nowrap">{escape(self._marked(name, value))}</th>'
            if isinstance(found, str):
                why = f'<div style="text-align:left;max-width:min(34em,60vw)">{escape(found)}</div>'
                yield f'<tr>{head}<td colspan="{len(self.headings)}">{why}</td></tr>'
            else:
                yield f"<tr>{head}{''.join(f'<td>{number}</td>' for number in found)}</tr>"

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.text()}


def default_controls(requests: Sequence[SimRequest], config: SchedulerConfig) -> dict[str, list[Any]]:
    """Token budget, pool size, longest chunk and policy, from too tight to ample for these requests."""
    longest_prompt = max(r.prompt_len for r in requests)
    needs = sorted((config.blocks_for(r.prompt_len + r.max_tokens) for r in requests), reverse=True)
    together = sum(needs[: config.max_num_seqs])
    all_prompts = sum(r.prompt_len for r in requests)
    doubled = [2**power for power in range(15)]
    budgets = [n for n in doubled if config.max_num_seqs <= n < 2 * all_prompts]
    return {
        "max_num_batched_tokens": budgets or [config.max_num_batched_tokens],
        "num_gpu_blocks": sorted({needs[0] + (together - needs[0]) * quarter // 4 for quarter in range(5)}),
        "long_prefill_token_threshold": [0, *(n for n in doubled if 4 <= n < longest_prompt)],
        "policy": list(POLICIES),
    }


def _with(start: Any, values: Sequence[Any]) -> list[Any]:
    """The values without doubles, and the start among them; numbers in order, anything else as given."""
    found = list(dict.fromkeys([*values, start]))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return sorted(found) if numeric else found


def _some(values: Sequence[Any], start: Any) -> list[Any]:
    """At most ROWS_PER_CONTROL of the values, evenly spread, with both ends and the start."""
    last, wanted = len(values) - 1, min(len(values), ROWS_PER_CONTROL)
    places = {round(last * k / max(1, wanted - 1)) for k in range(wanted)} | {values.index(start)}
    return [values[place] for place in sorted(places)]
