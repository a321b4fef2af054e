"""Real words in lanes: what stays is the same on every machine, and who waited, and for what, can be read from it."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from mini_vllm.errors import ConfigError, InvalidRequestError, KVPoolExhaustedError, SchedulerStalledError
from mini_vllm.stages import load_stage
from mini_vllm.viz import serve_words as module
from mini_vllm.viz.serve_words import WordRequest, serve_words
from tests.engine.tiny_llm import tiny_loaded

LONG = "x" * 70
REQUESTS = [
    WordRequest("A", "one", 6),
    WordRequest("B", LONG, 3, arrival_step=2),
    WordRequest("C", "<three>", 2, arrival_step=2),
]


class StaticAdmission(load_stage(4)):
    def schedule_waiting(self):
        return "batch_runs" if self.running else super().schedule_waiting()


class NeverAdmits(load_stage(4)):
    def schedule_waiting(self):
        return "no"


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def test_steps_and_waits_are_counted(loaded):
    served = serve_words(load_stage(4), REQUESTS, model=loaded, max_num_seqs=2)
    lanes = served.lanes
    assert [(r, [step for step, _, _, _ in lane.pieces]) for r, lane in lanes.items()] == [
        ("A", [0, 1, 2, 3, 4, 5]),
        ("B", [2, 3, 4]),
        ("C", [5, 6]),
    ]
    assert [lane.num_steps_waited for lane in lanes.values()] == [0, 0, 3]
    assert [lane.longest_step for lane in lanes.values()] == [71, 2, 1]  # B's prompt and A's token in one step
    assert len(served.trace.steps) == 7


def test_static_admission_lets_them_wait_for_the_whole_batch(loaded):
    served = serve_words(StaticAdmission, REQUESTS, model=loaded, max_num_seqs=2)
    assert [lane.num_steps_waited for lane in served.lanes.values()] == [0, 4, 4]


def test_the_words_do_not_depend_on_the_scheduler(loaded):
    runs = [serve_words(cls, REQUESTS, model=loaded) for cls in (load_stage(4), StaticAdmission, load_stage(9))]
    texts = [["".join(p[3] for p in lane.pieces) for lane in run.lanes.values()] for run in runs]
    assert texts[0] == texts[1] == texts[2]
    assert [len(text) for text in texts[0]] == [6, 3, 2]


def test_what_stays_says_no_seconds_unless_they_are_asked_for(loaded):
    plain = serve_words(load_stage(4), REQUESTS, model=loaded)
    again = serve_words(load_stage(4), REQUESTS, model=loaded)
    assert plain._repr_mimebundle_() == again._repr_mimebundle_()
    assert "pause" not in plain.html()
    assert re.search(
        r"longest pause \d+\.\d\d s", repr(serve_words(load_stage(4), REQUESTS, model=loaded, measured=True))
    )


def test_the_lanes_can_be_read(loaded):
    text = repr(serve_words(load_stage(4), REQUESTS, model=loaded, max_num_seqs=2))
    assert text.startswith(
        "Scheduler: 3 requests in 7 steps (‖ before a token that came with a step of 64 tokens or more)"
    )
    assert "A (arrives before step 0, first token in step 0, last in step 5, a step of 71 tokens between two" in text
    assert "C (arrives before step 2, 3 steps without a token, first token in step 5, last in step 6)" in text
    assert re.search(r"    one▸..‖.", text, re.DOTALL)


def test_the_page_escapes_and_loads_nothing(loaded):
    page = serve_words(load_stage(4), REQUESTS, model=loaded).html()
    assert "&lt;three&gt;" in page and "<three>" not in page
    assert not re.search(r"<script|<link|<img|https?:|url\(|#[0-9a-fA-F]{3}", page)


def test_when_nobody_is_there_the_next_one_comes_at_once(loaded):
    late = [WordRequest("A", "one", 2), WordRequest("B", "two", 2, arrival_step=50)]
    assert len(serve_words(load_stage(4), late, model=loaded).trace.steps) <= 4


def test_settings_reach_the_engine(loaded):
    twins = [WordRequest("A", LONG, 2), WordRequest("B", LONG, 2, arrival_step=1)]
    served = serve_words(load_stage(7), twins, model=loaded, enable_prefix_caching=True)
    assert [step["hits"] for step in served.trace.steps if step["hits"]] == [{"A": 0}, {"B": 64}]
    with pytest.raises(ConfigError, match="no setting colour"):
        serve_words(load_stage(7), twins, model=loaded, colour="red")


@pytest.mark.parametrize(
    ("cls", "settings", "error"),
    [(NeverAdmits, {}, SchedulerStalledError), (load_stage(6), {"num_gpu_blocks": 6}, KVPoolExhaustedError)],
)
def test_an_error_comes_after_what_was_reached(loaded, capsys, cls, settings, error):
    two = [WordRequest("A", "a" * 40, 20), WordRequest("B", "b" * 40, 20)]
    with pytest.raises(error):
        serve_words(cls, two, model=loaded, **settings)
    assert capsys.readouterr().out.startswith(f"{cls.__name__}: 2 requests in ")


@pytest.mark.parametrize("requests", [[], [WordRequest("A", "a", 1), WordRequest("A", "b", 1)]])
def test_requests_must_differ_by_name(requests):
    with pytest.raises(InvalidRequestError, match="requests with different ids"):
        serve_words(requests=requests, model="no such model")


def test_in_a_terminal_the_lanes_are_shown_after_every_step(loaded, monkeypatch):
    shown = []
    monkeypatch.setattr(module, "_in_notebook", lambda: False)
    monkeypatch.setattr("rich.live.Live.update", lambda self, what, refresh=False: shown.append(what.plain))
    serve_words(load_stage(4), REQUESTS[:1], model=loaded, live=True)
    assert len(shown) == 6
    assert shown[-1].startswith("Scheduler: 1 request in 6 steps")


def test_in_a_notebook_only_the_end_state_stays():
    source = (
        "from mini_vllm.viz.serve_words import WordRequest, serve_words\n"
        "from tests.engine.tiny_llm import tiny_loaded\n"
        "serve_words(requests=[WordRequest('A', 'one', 4)], model=tiny_loaded(), live=True)"
    )
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(nb, kernel_name="python3").execute()
    live, value = nb.cells[0].outputs
    assert (live.output_type, value.output_type) == ("display_data", "execute_result")
    assert live.data == {"text/plain": ""}
    assert value.data["text/plain"].startswith("Scheduler: 1 request in 4 steps")


@pytest.mark.model
def test_the_real_model_says_the_same_under_two_schedulers():
    runs = [serve_words(cls) for cls in (load_stage(4), StaticAdmission)]
    texts = [["".join(p[3] for p in lane.pieces) for lane in run.lanes.values()] for run in runs]
    assert texts[0] == texts[1]
    assert texts[0][0].startswith(" Rome")
    waits = [run.lanes["R4"].num_steps_waited for run in runs]
    assert 0 < waits[0] < waits[1]
    assert runs[0].lanes["R1"].longest_step > 200 > runs[1].lanes["R1"].longest_step
