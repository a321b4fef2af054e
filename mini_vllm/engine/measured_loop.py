"""The step loop with a stop-watch. Knows when a step is planned, run and updated; changes nothing. Chapter 14."""

from collections.abc import Callable
from typing import Any

from mini_vllm.core.output import ModelRunnerOutput, RequestOutput, SchedulerOutput
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.engine.stats import MeasuredStep


class MeasuredStepLoop(StepLoop):
    """`StepLoop` that hands every step with its times, and what it computed, to `on_step`.

    "planned" and "updated" include the watch and the trace, which sit between scheduler and worker.
    """

    def __init__(
        self,
        scheduler: Any,
        config: Any,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput],
        *,
        on_step: Callable[[MeasuredStep, ModelRunnerOutput], None],
        **settings: Any,
    ):
        super().__init__(scheduler, config, self._measured, **settings)
        self._execute, self._on_step = execute, on_step
        self._t_start = 0.0

    def step(self, more_to_come: bool = False) -> list[RequestOutput]:
        self._t_start = self._now(self.step_index)
        news = super().step(more_to_come)
        step = self._step
        step.t_updated = step.t_run[1], self._now(self.step_index)
        self._on_step(step, self.last_output)
        return news

    def _measured(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        start, watch = self._now(self.step_index), self.watch
        load = len(watch.running), len(watch.waiting), watch.num_free_blocks
        self._step = MeasuredStep(plan, (self._t_start, start), *load)
        output = self._execute(plan)
        self._step.t_run = start, self._now(self.step_index)
        return output
