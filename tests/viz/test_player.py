"""The player without a browser: encoding, words, refusals, size. Knows records and bytes, no pixels."""

import copy
import html
import json
import re

import pytest

from mini_vllm.errors import ConfigError, MiniVLLMError, TraceFormatError
from mini_vllm.viz import StepPlayer
from mini_vllm.viz.event_words import wait_words
from mini_vllm.viz.player_data import changes, player_data, ranges
from mini_vllm.viz.timeline import build_timeline, read_trace
from tests.viz.player_traces import SMALL, busy_trace, record, small_trace

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
    assert player_data(line)["lanes"][0]["jumps"] == "0:6"


@pytest.mark.parametrize(
    ("values", "coded"),
    [
        (["", "", ""], ""),
        (["a", "a", "b", "b", "a"], "0:a;2:b;2:a"),
        (["", "3", "3,7", "3,7", ""], "1:3;1:+7;2:"),
        (["1", "12"], "0:1;1:12"),
        (["1,2", "1,2,9-11"], "0:1,2;1:+9-11"),
    ],
)
def test_changes_writes_a_value_only_where_it_changes(values, coded):
    assert changes(values) == coded


def test_ranges_keeps_the_order():
    assert ranges([1, 2, 3, 9, 8, 4, 5]) == "1-3,9,8,4-5"
    assert ranges([]) == ""


def test_cuts_count_as_javascript_does():
    """🙂 is one character to Python and two to a JavaScript string."""
    lane = player_data(timeline(small_trace()))["lanes"][2]
    assert (lane["text"], lane["cuts"]) == ("🙂 :-)", "0:0;2:2;3:6")


# ---- words


def test_the_small_run_in_words():
    assert StepPlayer(SMALL).events() == [
        "step 0: A, B arrive; A enters, prefills 6 of 6, first token.",
        "step 1: C arrives; B enters, prefills 3 of 3, first token; C enters, prefills 2 of 4; A decodes.",
        "step 2: C prefills 2 (4 of 4, first token); A, B decode.",
        "step 3: C is preempted: A needed another block and 0 were free; "
        "B is preempted: it needed another block and 0 were free; A decodes; "
        "A finishes, its 3 blocks are free for the next step.",
        "step 4: B resumes, recomputes 5 of 5; C resumes, recomputes 1 of 5; "
        "B finishes, its 2 blocks are free for the next step.",
        "step 5: C recomputes 4 (5 of 5); C finishes, its 2 blocks are free for the next step.",
    ]


def test_long_lists_are_cut():
    many = [[f"r{k}", 1] for k in range(20)]
    (said,) = StepPlayer({"steps": [record(0, many)]}).events()
    assert said.endswith("; r7 prefills 1; 12 more catch up.")
    known = {"header": {"requests": {rid: {"prompt_len": 0} for rid, _ in many}}}
    (said,) = StepPlayer({**known, "steps": [record(0, many)]}).events()
    assert said == "step 0: r0, r1, r2, r3, r4, r5, r6, r7, 12 more decode."


@pytest.mark.parametrize(
    ("finished", "fields", "says"),
    [
        (["A"], {"free": 1, "free_end": 3}, "A finishes, its 2 blocks are free for the next step."),
        (["B"], {"free": 1, "free_end": 2}, "B finishes, its block is free for the next step."),
        (["A", "B"], {"free": 1, "free_end": 4}, "A, B finish, their 3 blocks are free for the next step."),
        (
            ["A"],
            {"free": 1, "free_end": 2},
            "A finishes, 1 of its 2 blocks is free for the next step.",
        ),  # shared
        (["A"], {"free": 1, "free_end": 1}, "A finishes."),  # a policy that keeps them
        (["A"], {"free": 1, "free_end": 9}, "A finishes."),  # somebody else's are among them
        (["A"], {"free": 1}, "A finishes."),
        (["A"], {"free_end": 3}, "A finishes."),
    ],
)
def test_what_becomes_of_the_blocks_of_who_finishes(finished, fields, says):
    step = record(0, [["A", 8], ["B", 4]], finished=finished, blocks={"A": [1, 2], "B": [3]}, **fields)
    (said,) = StepPlayer(trace_of(step)).events()
    assert said.endswith(f"; {says}")


def test_nobody_is_blamed_where_the_record_does_not_tell():
    trace = small_trace()
    del trace["steps"][3]["free_before"]
    assert "C, B are preempted; A decodes" in StepPlayer(trace).events()[3]


def test_under_priority_only_a_recorded_failure_is_believed():
    trace = small_trace()
    trace["header"]["config"]["policy"] = "priority"
    assert "C, B are preempted; A decodes" in StepPlayer(trace).events()[3]
    trace["steps"][3]["allocs"] = [["A", 1, 0], ["A", 1, 1], ["B", 1, 0]]
    assert "C is preempted: A needed more blocks than were free" in StepPlayer(trace).events()[3]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("max_num_seqs", "B waits: all 3 seats are taken (max_num_seqs)."),
        ("preempted_this_step", "B waits: nobody is admitted in a step that preempted."),
        ("token_budget", "B waits: all 6 tokens of the budget are spent."),
        ("kv_full_sequence", "B waits: its 3 known tokens need 1 block, 2 free."),
        ("kv_watermark", "B waits: it needs 1 block, 2 free, and the watermark must stay free."),
        ("kv_chunk", "B waits: its next piece needs more than the 2 free blocks."),
        ("batch_not_finished", "B waits: batch not finished."),
        (None, ""),
    ],
)
def test_blocked_reason_in_words(reason, words):
    trace = small_trace()
    trace["steps"][0]["blocked_reason"] = reason
    assert wait_words(timeline(trace), 0) == words


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "all 6 tokens of the budget are spent"),
        ({"running": ["A", "X", "Y"]}, "all 3 seats are taken"),
        ({"preempted": ["Z"]}, "nobody is admitted in a step that preempted"),
        ({"scheduled": [["A", 2]], "budget_used": 2, "free": 0}, "its 3 known tokens need 1 block, 0 free"),
    ],
)
def test_a_missing_blocked_reason_is_inferred(changed, words):
    trace = small_trace()
    del trace["steps"][0]["blocked_reason"]
    trace["steps"][0].update(changed)
    assert words in wait_words(timeline(trace), 0)


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


def test_an_unknown_future_is_refused():
    with pytest.raises(ConfigError, match="dim, hide"):
        StepPlayer(small_trace(), future="bright")


# ---- what comes out


def document(player: StepPlayer) -> str:
    """The page as a browser takes it out of the attribute."""
    return html.unescape(re.search(r"srcdoc='([^']*)'", player.html()).group(1))


def data(player: StepPlayer) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', document(player), re.S).group(1))


def test_the_attribute_holds_exactly_the_page():
    player = StepPlayer(small_trace())
    assert document(player) == player.document()


def test_the_same_trace_gives_the_same_bytes():
    shuffled = copy.deepcopy(small_trace())
    shuffled["steps"] = [dict(reversed(step.items())) for step in shuffled["steps"]]
    assert StepPlayer(small_trace()).html() == StepPlayer(shuffled).html()


def test_wall_times_are_left_out_unless_asked_for():
    later = small_trace()
    for step in later["steps"]:
        step["t_end"] += 0.001
    assert StepPlayer(small_trace()).html() == StepPlayer(later).html()
    assert data(StepPlayer(small_trace(), times=True))["times"] == [500, 250, 250, 250, 250, 500]


def test_hostile_text_stays_text():
    trace = json.loads(json.dumps(small_trace()).replace('"A"', json.dumps(HOSTILE)))
    trace["header"]["requests"][HOSTILE]["prompt"] = HOSTILE
    trace["header"]["scheduler"] = HOSTILE
    trace["steps"][1]["pieces"]["B"] = HOSTILE
    player = StepPlayer(trace, title=HOSTILE)
    shown, kept = player.html(), HOSTILE.replace("\ud800", "?")
    assert shown.count("<iframe") == shown.count("</iframe") == 1 and "<script" not in shown
    assert document(player).count("</script>") == 2  # the data's and the script's own ends
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


def test_text_picture_is_small():
    assert StepPlayer(small_trace()).text().splitlines()[1:6] == [
        "      0",
        "A     PddF",
        "B     .PdXF",
        "C      PPXRF",
        "key: . waiting  P prefill  d decode  - not scheduled  X preempted  R resumed  C recompute  F finished",
    ]
    many = {"steps": [record(i, [[f"r{k}", 1] for k in range(90)]) for i in range(500)]}
    lines = StepPlayer(many).text().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 160


def test_a_busy_run_of_200_steps_fits_in_80_kb():
    bundle = StepPlayer(busy_trace(steps=200, seats=8, blocks=64))._repr_mimebundle_()
    assert sum(len(text.encode("utf-8")) for text in bundle.values()) <= 80_000


def test_large_pools_are_sent_as_shares():
    small, large = (player_data(timeline(busy_trace(steps=40, blocks=n))) for n in (64, 4096))
    assert not small["waffle"] and "blocks" in small["lanes"][0]
    assert large["waffle"] and "counts" in large["lanes"][0] and "blocks" not in large["lanes"][0]


def test_save_writes_the_page(tmp_path):
    player = StepPlayer(small_trace())
    assert player.save(tmp_path / "run.html").read_text(encoding="utf-8") == player.document()
