"""Sliders over a simulated run, with a static twin for pages without a kernel. Knows ipywidgets 7 and 8. Chapters 3 on.

In a live notebook the reader moves the controls and the picture follows. A stored notebook holds no widget: what it
shows is the picture at the start, and a table of what each control does.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import ConfigError, MiniVLLMError
from mini_vllm.sim.driver import SimRequest
from mini_vllm.viz.explore import Experiment, Settings, SettingsTable
from mini_vllm.viz.player import StepPlayer

REST_S = 0.15  # a hand that moves a slider rests this long before a run is simulated
REMEMBERED = 32  # pictures kept, so that going back is instant
VIEW = "application/vnd.jupyter.widget-view+json"
LIVE = "In a running notebook these are sliders."
MISSING = "ipywidgets is missing, so there are no sliders: pip install 'ipywidgets>=7.7', then run this cell again."


class Sliders:
    """Controls over an experiment, the picture of its run, and its key figures beside those of the start.

    As the last value of a cell it shows itself. show: run -> StepPlayer or Picture.
    """

    def __init__(self, settings: Experiment, show: Callable[[Any], Any]) -> None:
        self.settings, self.show = settings, show
        run = settings.run(settings.start)
        self.start_figures = settings.figures(run)
        self.picture = show(run)
        if not callable(getattr(self.picture, "html", None)):
            raise ConfigError(f"show returned {type(self.picture).__name__}: return a StepPlayer or a Picture")

    def twin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Data and metadata of the picture at the start, as a page without a kernel shows it."""
        bundle = self.picture._repr_mimebundle_()
        return bundle if isinstance(bundle, tuple) else (bundle, {})

    def _ipython_display_(self) -> None:
        """Picture and controls in one output, the table in the next.

        A frontend with a kernel takes the widget of the first. `tools/execute.py` stores all but the widget.
        """
        from IPython.display import display

        data, metadata = self.twin()
        panel = make_panel(self)
        if panel is not None:
            data = {VIEW: {"version_major": 2, "version_minor": 0, "model_id": panel.box.model_id}, **data}
        display(data, metadata=metadata, raw=True)
        display(SettingsTable(self.settings, LIVE if panel else MISSING))

    def figures_html(self, run: Any = None) -> str:
        """ "steps 48 (start: 41) · preempted 0 times", differences named; without a run, those of the start."""
        now = self.start_figures if run is None else self.settings.figures(run)
        of = zip(self.settings.headings, now, self.settings.units, self.start_figures, strict=True)
        parts = [
            f"{heading} <b>{value}</b> {unit}".strip() + ("" if value == before else f" (start: {before})")
            for heading, value, unit, before in of
        ]
        return f"<p>{' · '.join(parts)}</p>"

    def __repr__(self) -> str:
        return f"{self.picture!r}\n{SettingsTable(self.settings)}"


class Explorer(Sliders):
    """Sliders over the settings of a scheduler. Parameters of the run: see `explore.Settings`.

    show: for example `lambda run: gantt(run, alt=f"… in {len(run.steps)} steps")`.
    """

    def __init__(
        self,
        requests: Iterable[SimRequest],
        config: SchedulerConfig | None = None,
        *,
        show: Callable[[Any], Any] = StepPlayer,
        controls: Mapping[str, Sequence[Any]] | None = None,
        scheduler_cls: type = Scheduler,
        max_steps: int = 5_000,
    ) -> None:
        settings = Settings(requests, config, controls=controls, scheduler_cls=scheduler_cls, max_steps=max_steps)
        super().__init__(settings, show)


class Panel:
    """The live controls of one explorer: `box` is the widget to show."""

    def __init__(self, explorer: Sliders, widgets: Any) -> None:
        self.explorer, self.runs = explorer, 0
        self.controls = {
            name: _control(widgets, name, values, explorer.settings.start[name])
            for name, values in explorer.settings.controls.items()
        }
        self.figures = widgets.HTML(explorer.figures_html())
        self.picture = widgets.HTML(explorer.picture.html())
        back = widgets.Button(description="Back to the start")
        back.on_click(lambda _: self.set(explorer.settings.start))
        self.box = widgets.VBox([*self.controls.values(), back, self.figures, self.picture])
        self._timer: asyncio.TimerHandle | None = None
        self._remembered = {tuple(self.values().values()): (self.figures.value, self.picture.value)}
        for control in self.controls.values():
            control.observe(self._moved, names="value")

    def values(self) -> dict[str, Any]:
        """Where the controls stand."""
        return {name: control.value for name, control in self.controls.items()}

    def set(self, values: Mapping[str, Any]) -> None:
        """Move the controls."""
        for name, value in values.items():
            self.controls[name].value = value

    def _moved(self, _change: Any) -> None:
        """Of a quick row of changes only the last is simulated; without an event loop, each at once."""
        if self._timer:
            self._timer.cancel()
        try:
            self._timer = asyncio.get_running_loop().call_later(REST_S, self.refresh)
        except RuntimeError:
            self.refresh()

    def refresh(self) -> None:
        """Show the run where the controls stand now; a refused setting says why and leaves the old picture."""
        values = self.values()
        place = tuple(values.values())
        if place not in self._remembered:
            self.figures.value = "<p>simulating …</p>"
            try:
                self.runs += 1
                run = self.explorer.settings.run(values)
                shown = (self.explorer.figures_html(run), self.explorer.show(run).html())
            except MiniVLLMError as refusal:
                self.figures.value = f"<p><b>Refused:</b> {escape(str(refusal))}</p>"
                return
            except Exception as error:  # raised in a callback: without this the reader would see nothing at all
                self.figures.value = f"<p><b>{type(error).__name__}:</b> {escape(str(error))}</p>"
                return
            self._remembered[place] = shown
            while len(self._remembered) > REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        self.figures.value, self.picture.value = self._remembered[place]


def make_panel(explorer: Sliders) -> Panel | None:
    """The live controls, or None where ipywidgets is missing."""
    try:
        import ipywidgets
    except ImportError:
        return None
    return Panel(explorer, ipywidgets)


def _control(widgets: Any, name: str, values: Sequence[Any], start: Any) -> Any:
    """A slider over numbers, a drop-down list over anything else."""
    common = {"options": list(values), "value": start, "description": name}
    common |= {"style": {"description_width": "16em"}, "layout": {"width": "100%", "max_width": "600px"}}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return widgets.SelectionSlider(continuous_update=False, **common)
    return widgets.Dropdown(**common)
