"""The player without a browser: encoding, words, refusals, size. Knows records and bytes, no pixels."""

import copy
import html
import json
import re
from importlib import resources

import pytest

from benchmarks.player import large_run
from mini_vllm.errors import ConfigError, MiniVLLMError, TraceFormatError
from mini_vllm.sim.driver import simulate
from mini_vllm.sim.examples import five_requests
from mini_vllm.viz import StepPlayer
from mini_vllm.viz.player_data import changes, ranges, run_data
from mini_vllm.viz.records import read_trace
from mini_vllm.viz.timeline import build_timeline
from tests.viz.player_traces import RECORDINGS, SMALL, busy_trace, record, small_trace

HOSTILE = "</script><script>alert(1)</script><!--\"'&lt;\u2028\ud800]]></iframe>"


def timeline(trace):
    return build_timeline(*read_trace(trace))


def kinds(trace, rid: str) -> str:
    """One letter a step, "." for none; resumed and finished pieces are followed by r and f."""
    return " ".join(cell.kind + cell.marks if cell else "." for cell in timeline(trace).lane(rid).cells)


def trace_of(*records, **config):
    requests = {"A": {"prompt_len": 8, "max_tokens": 4}, "B": {"prompt_len": 4, "max_tokens": 4}}
    return {"header": {"config": config, "requests": requests}, "steps": list(records)}


# ---- from records to cells


def test_cells_of_the_small_run():
    trace = small_trace()
    assert kinds(trace, "A") == "p d d df . ."
    assert kinds(trace, "B") == "w p d x crf ."
    assert kinds(trace, "C") == ". p p x cr cf"


def test_rows_come_in_order_of_arrival():
    late_first = trace_of(record(0, [], arrivals=["B"]), record(1, [], arrivals=["A"]))
    assert [lane.id for lane in timeline(late_first).lanes] == ["B", "A"]


def test_a_request_that_runs_without_a_token_is_idle():
    assert kinds(trace_of(record(0, [["A", 8]]), record(1, [], running=["A"])), "A") == "p i"


def test_in_static_batching_a_finished_lane_stays_empty_until_the_batch_ends():
    steps = [
        record(0, [["A", 8], ["B", 4]], running=["A", "B"], finished=["B"]),
        record(1, [["A", 1]], running=["A"], waiting=["C"]),
        record(2, [["A", 1]], running=["A"], waiting=["C"], finished=["A"]),
    ]
    assert kinds(trace_of(*steps), "B") == "pf . ."
    assert kinds(trace_of(*steps), "C") == ". w w"


def test_a_cache_hit_moves_the_start_of_the_piece():
    line = timeline(trace_of(record(0, [["A", 2]], new=["A"], computed={"A": [0, 8]}, sampled={"A": [1]})))
    assert line.lane("A").cells[0].before == 6
    assert run_data(line)["lanes"][0]["jumps"] == "0:6"


def test_a_piece_is_recomputed_up_to_the_most_that_was_ever_lost():
    """A reached 8 tokens, came back, was evicted at 4: its pieces up to 8 are recomputed, the ninth is new."""
    pieces = [(0, 8), (0, 4), (0, 4), (4, 4), (8, 1)]
    steps = []
    for i, (before, n) in enumerate(pieces):
        if i in (1, 2):
            steps.append(record(2 * i - 1, [], preempted=["A"], waiting=["A"], running=[]))
        done = {"A": [0, before + n] if i in (1, 2) else [before, before + n]}
        steps.append(record(2 * i, [["A", n]], running=["A"], waiting=[], computed=done))
    assert kinds(trace_of(*steps), "A") == "p x c x c c d"


def test_a_swapped_request_keeps_what_it_computed():
    steps = [
        record(0, [["A", 8]], new=["A"], computed={"A": [0, 8]}, sampled={"A": [1]}),
        record(1, [], swapped_out=["A"], waiting=["A"], running=[]),
        record(2, [], waiting=["A"], running=[]),
        record(3, [["A", 1]], swapped_in=["A"], resumed=["A"], running=["A"], waiting=[], computed={"A": [8, 9]}),
    ]
    assert kinds(trace_of(*steps), "A") == "p xo s drb"
    assert "jumps" not in run_data(timeline(trace_of(*steps)))["lanes"][0]
    assert StepPlayer(trace_of(*steps)).events()[1:] == [
        "step 1: A swapped out.",
        "step 2: nothing to do.",
        "step 3: A is swapped in, decodes.",
    ]


def test_steps_can_be_counted_from_one():
    player = StepPlayer(small_trace(), count_from=1)
    assert player.events()[0].startswith("step 1: A, B arrive") and data(player)["steps"] == "1-6"
    assert player.text().splitlines()[1].strip() == "1"
    assert "step 0:" in StepPlayer(small_trace()).events()[0]


@pytest.mark.parametrize(
    ("values", "coded"),
    [
        (["", "", ""], ""),
        (["a", "a", "b", "b", "a"], "0:a;2:b;2:a"),
        (["", "3", "3,7", "3,7", ""], "1:3;1:+7;2:"),
        (["1", "12"], "0:1;1:12"),
        (["1,2", "1,2,9-11"], "0:1,2;1:+9-11"),
        (["11,12,13,14", "12,13,14"], "0:11,12,13,14;1:-1"),
        (["11,12,13,14", "13,14,15"], "0:11,12,13,14;1:-2+15"),
        (["11,12", "12,11"], "0:11,12;1:12,11"),
    ],
)
def test_changes_writes_a_value_only_where_it_changes(values, coded):
    assert changes(values) == coded


def test_ranges_keeps_the_order():
    assert ranges([1, 2, 3, 9, 8, 4, 5]) == "1-3,9,8,4-5"
    assert ranges([]) == ""


def test_cuts_count_as_javascript_does():
    """🙂 is one character to Python and two to a JavaScript string."""
    lane = run_data(timeline(small_trace()))["lanes"][2]
    assert (lane["text"], lane["cuts"]) == ("🙂 :-)", "3:2;3:4")  # the third step adds 2, the third after it 4


# ---- what a trace may leave out, and what is refused


@pytest.mark.parametrize("field", sorted(small_trace()["steps"][0].keys() - {"step", "scheduled"}))
def test_every_other_field_may_be_missing(field):
    trace = small_trace()
    for step in trace["steps"]:
        step.pop(field, None)
    player = StepPlayer(trace)
    assert "<iframe" in player.html() and player.text() and "<svg" in player.svg()


def test_step_and_scheduled_are_enough():
    bare = [record(s["step"], s["scheduled"]) for s in small_trace()["steps"]]
    assert "step 1: " in StepPlayer({"steps": bare}).events()[1]
    assert kinds({"header": small_trace()["header"], "steps": bare}, "C").startswith(". p p i")


def test_a_trace_may_be_an_object_or_a_file(tmp_path):
    class Trace:
        header, steps = small_trace()["header"], small_trace()["steps"]

    assert StepPlayer(Trace()).html() == StepPlayer(SMALL).html() == StepPlayer(str(SMALL)).html()


def broken(lines: list[str], number: int, text: str) -> str:
    return "\n".join([*lines[: number - 1], text, *lines[number:]]) + "\n"


@pytest.mark.parametrize(
    ("number", "text", "says"),
    [
        (1, '{"step": 0, "scheduled": []}', "expected the header"),
        (1, '{"format": "other", "version": 1}', "format 'other'"),
        (1, '{"format": "mini_vllm.trace", "version": 7}', "version 7"),
        (3, '{"step": 1, "sched', "not JSON"),
        (3, "[1, 2]", "needs an integer 'step'"),
        (4, '{"step": 2}', "needs 'scheduled'"),
        (4, '{"step": 2, "scheduled": [["A"]]}', "wrong shape"),
        (5, '{"step": 3, "scheduled": [], "computed": {"A": 3}}', "wrong shape"),
        (5, '{"step": 3, "scheduled": [], "blocks": {"A": ["x"]}}', "wrong shape"),
        (5, '{"step": 1, "scheduled": []}', "step 1 stands after step 2"),
    ],
)
def test_a_broken_line_is_refused_by_file_and_line(tmp_path, number, text, says):
    path = tmp_path / "run.jsonl"
    path.write_text(broken(SMALL.read_text(encoding="utf-8").splitlines(), number, text), encoding="utf-8")
    with pytest.raises(TraceFormatError) as caught:
        StepPlayer(path)
    assert f"run.jsonl, line {number}: " in str(caught.value) and says in str(caught.value)


def test_a_line_ends_at_a_newline_only(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(SMALL.read_text(encoding="utf-8").replace(", two", ", \u2028two"), encoding="utf-8")
    assert data(StepPlayer(path))["lanes"][0]["text"].startswith("One, \u2028two")


def test_bytes_that_are_no_text_are_refused_by_file(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(b"\xff\xfe{}")
    with pytest.raises(TraceFormatError, match=r"run\.jsonl is no UTF-8 text"):
        StepPlayer(tmp_path / "run.jsonl")


@pytest.mark.parametrize("trace", [{"header": {}, "steps": []}, {"header": {}}, 7])
def test_no_steps_is_refused(trace):
    with pytest.raises(MiniVLLMError):
        StepPlayer(trace)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([record(0, []), record(0, [])], "record 1: step 0 stands after step 0"),
        ([record(4, []), record(3, [])], "record 1: step 3 stands after step 4"),
        ([record(0, [["A"]])], "record 0: a field has the wrong shape"),
        ([{"step": 0}], "record 0: a step record needs 'scheduled'"),
        ([7], "record 0: not a JSON object"),
    ],
)
def test_a_broken_record_is_refused_by_number(steps, says):
    with pytest.raises(TraceFormatError, match=says):
        StepPlayer({"steps": steps})


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(SMALL.read_bytes()[:-40])
    with pytest.raises(TraceFormatError, match="line 7: the file is cut off here"):
        StepPlayer(path)


def test_a_recording_of_vllm_can_be_played(tmp_path):
    player = StepPlayer(RECORDINGS / "97_worked_example_first_chunk.json", count_from=1)
    assert "step 10: R4 evicted: R3 needs a third block, 0 free; R1, R2, R3 decode." in player.events()


def test_an_unknown_future_is_refused():
    with pytest.raises(ConfigError, match="dim, hide"):
        StepPlayer(small_trace(), future="bright")


# ---- what comes out


def document(player: StepPlayer) -> str:
    """The page as a browser takes it out of the attribute."""
    return html.unescape(re.search(r"srcdoc='([^']*)'", player.html()).group(1))


def data(player: StepPlayer) -> dict:
    """The run as the page has it."""
    return json.loads(re.search(r'id="data">(.*?)</script>', document(player), re.S).group(1))["runs"][0]


def test_the_attribute_holds_the_page_without_the_text_that_stands_around_it():
    player = StepPlayer(small_trace())
    assert document(player) == player.document().replace(html.escape(player.text()), "")


def test_the_same_trace_gives_the_same_bytes():
    shuffled = copy.deepcopy(small_trace())
    shuffled["steps"] = [dict(reversed(step.items())) for step in shuffled["steps"]]
    assert StepPlayer(small_trace()).html() == StepPlayer(shuffled).html()


def test_wall_times_are_left_out_unless_asked_for():
    later = small_trace()
    for step in later["steps"]:
        step["t_end"] += 0.001
    assert StepPlayer(small_trace()).html() == StepPlayer(later).html()
    assert data(StepPlayer(small_trace(), times=True))["times"][:2] == [[0, 0.5], [0.5, 0.75]]


def test_hostile_text_stays_text():
    trace = json.loads(json.dumps(small_trace()).replace('"A"', json.dumps(HOSTILE)))
    trace["header"]["requests"][HOSTILE]["prompt"] = HOSTILE
    trace["header"]["scheduler"] = HOSTILE
    trace["steps"][1]["pieces"]["B"] = HOSTILE
    player = StepPlayer(trace, title=HOSTILE)
    shown, kept = player.html(), HOSTILE.replace("\ud800", "?")
    assert shown.count("<iframe") == shown.count("</iframe") == 1 and "<script" not in shown
    assert document(player).count("</script>") == 3  # the guard's, the data's and the script's own ends
    assert data(player)["lanes"][0]["prompt"] == kept and kept in data(player)["lanes"][1]["text"]
    assert "<script" not in player.svg() and player.svg().encode("utf-8") and player.text().encode("utf-8")


def test_nothing_is_fetched_from_anywhere():
    page = StepPlayer(small_trace()).document().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|\bimport\b|@import|url\(|fetch\(|src=", page)


def test_mime_bundle():
    player = StepPlayer(small_trace(), title='A "title"', height=321)
    bundle = player._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert 'height="321"' in bundle["text/html"]
    assert 'title="Step player: A &quot;title&quot;"' in bundle["text/html"]
    assert set(player._repr_mimebundle_(include={"image/svg+xml"})) == {"image/svg+xml"}
    assert set(player._repr_mimebundle_(exclude={"text/html"})) == {"text/plain"}


def test_what_is_left_without_the_iframe_is_the_text_picture():
    """JupyterLab drops the iframe of an untrusted notebook and keeps what stands inside it."""
    left = re.sub(r"</?iframe[^>]*>", "", StepPlayer(small_trace()).html())
    assert "trusted notebook" in left and "B     .PdXF" in left


def test_the_keys_of_the_pictures_use_the_words_of_the_legend():
    legend = re.search(
        r'\["(evicted[^"]*)", \{kind: "x"\}\]',
        resources.files("mini_vllm.viz").joinpath("page.js").read_text(encoding="utf-8"),
    )[1]
    player = StepPlayer(small_trace())
    assert f"X {legend}  " in player.text() and f"× {legend} ·" in player.svg()


def test_text_picture_is_small():
    assert StepPlayer(small_trace()).text().splitlines()[1:6] == [
        "      0",
        "A     PddF",
        "B     .PdXF",
        "C      PPXRF",
        "key: . waiting  P prefill  d decode  - not scheduled  "
        "X evicted (preempted)  R resumed  C recompute  F finished",
    ]
    many = {"steps": [record(i, [[f"r{k}", 1] for k in range(90)]) for i in range(500)]}
    lines = StepPlayer(many).text().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 160


def test_a_busy_run_of_200_steps_fits_in_80_kb():
    bundle = StepPlayer(busy_trace(steps=200, seats=8, blocks=64))._repr_mimebundle_()
    assert sum(len(text.encode("utf-8")) for text in bundle.values()) <= 80_000


def test_large_pools_are_sent_as_shares():
    small, large = (run_data(timeline(busy_trace(steps=40, blocks=n))) for n in (64, 4096))
    assert "pool" not in small and "blocks" in small["lanes"][0]
    assert "pool" in large and "counts" in large["lanes"][0] and "blocks" not in large["lanes"][0]


def test_what_is_counted_of_a_large_pool():
    """B shares block 1 with A; C is evicted and loses 5, which B takes; block 9 is free but cached."""
    steps = [
        record(0, [["A", 1], ["C", 1]], blocks={"A": [1, 2], "C": [5]}, cached_blocks=[1]),
        record(1, [["A", 1], ["B", 1]], blocks={"A": [1, 2], "B": [1, 5]}, preempted=["C"], cached_blocks=[1, 9]),
        record(2, [["A", 1], ["B", 1]], blocks={"A": [1, 2, 3], "B": [1, 5]}, cached_blocks=[1, 9]),
    ]
    trace = trace_of(*steps, num_gpu_blocks=5000, enable_prefix_caching=True)
    assert run_data(timeline(trace))["pool"] == "0:0,0,3,0;1:1,1,0,1;1:1,1,1,0"


def test_the_large_run_fits_in_1500_kb():
    """The one that benchmarks/player.py times: about 2,000 steps, 200 requests, 4,096 blocks."""
    trace = large_run()
    assert len(trace.steps) >= 2000 and len(trace.header["requests"]) == 200
    bundle = StepPlayer(trace)._repr_mimebundle_()
    assert sum(len(text.encode("utf-8")) for text in bundle.values()) <= 1_500_000


@pytest.mark.parametrize("admission", ["full", "chunk"])
def test_the_five_requests_fit_in_80_kb(admission):
    bundle = StepPlayer(simulate(*five_requests(admission)))._repr_mimebundle_()
    assert sum(len(text.encode("utf-8")) for text in bundle.values()) <= 80_000


def test_save_writes_the_page(tmp_path):
    player = StepPlayer(small_trace())
    assert player.save(tmp_path / "run.html").read_text(encoding="utf-8") == player.document()
