"""The schema, the page in the book and what is really written say the same, field by field.

`jsonschema` is the judge of schema.json; our own check, which the reader uses, is compared with it on broken rows.
"""

import copy
import inspect
import json
import random
import re
from functools import cache, partial
from pathlib import Path

import jsonschema
import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core import admission, scheduler
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_loop import StepLoop
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.sim.fake_runner import FakeModelRunner
from mini_vllm.trace.convert import from_vllm_recording, replayed
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.schema import FORMAT, VERSION, checker, schema, step_fields
from mini_vllm.trace.trace import Trace
from mini_vllm.viz import wait_words
from tests.core.paged_worker import Job, run_jobs
from tests.core.recordings import FOLDER, RECORDINGS
from tests.repo.repository import ROOT
from tests.trace.runs import random_trace, tiny_trace

PAGE = (ROOT / "book" / "trace-format.md").read_text(encoding="utf-8")
KINDS = ("sim", "engine", "vllm")


def definitions(name):
    return schema()["$defs"][name]["properties"]


def writers(field):
    by = definitions("step")[field]["x-by"]
    return KINDS if by == "all" else tuple(by.split(", "))


@cache
def judge(name):
    return jsonschema.Draft202012Validator({**schema(), "anyOf": [{"$ref": f"#/$defs/{name}"}]})


def valid(trace, every=1):
    """Our check takes every step, the judge, who is slow, one in `every`."""
    assert checker("header")(trace.header) == ""
    judge("header").validate(trace.header)
    for i, record in enumerate(trace.steps):
        assert checker("step")(record) == ""
        if i % every == 0:
            judge("step").validate(record)


# --- the schema and the page ---


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert (definitions("header")["format"]["const"], definitions("header")["version"]["const"]) == (FORMAT, VERSION)
    assert f"version {VERSION}" in schema()["title"] and f"version {VERSION};" in PAGE


def table_after(heading, nth=0):
    """Rows of the nth table after a heading, as lists of cells."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE[PAGE.index(heading) :], re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in tables[nth].splitlines()]
    return rows[2:]


@pytest.mark.parametrize(("name", "nth"), [("header", 0), ("request", 1)])
def test_the_page_lists_the_header(name, nth):
    assert table_after("### Header", nth) == [[f"`{n}`", each["description"]] for n, each in definitions(name).items()]


def test_the_page_lists_every_field_of_a_step():
    expected = []
    for name, each in definitions("step").items():
        when = "" if each["x-when"] == "always" else f": {each['x-when']}"
        in_vllm = f"<br>vLLM: `{each['x-vllm']}`" if each["x-vllm"] else ""
        expected.append([f"`{name}`", each["description"] + in_vllm, each["x-by"] + when])
    assert table_after("### A step") == expected


def test_the_page_lists_every_blocked_reason():
    reasons = definitions("step")["blocked_reason"]["x-values"]
    assert table_after("### A step", nth=1) == [[f"`{name}`", text] for name, text in reasons.items()]
    assert list(reasons) == list(wait_words._REASONS), "the player has a sentence for each, in the scheduler's order"
    source = "".join(Path(inspect.getfile(module)).read_text(encoding="utf-8") for module in (admission, scheduler))
    for name in reasons:
        assert f'"{name}"' in source, name


def test_no_other_reason_is_written(written):
    met = {s["blocked_reason"] for kind in ("sim", "engine") for t in written[kind] for s in t.steps}
    assert met - {None} and met - {None} <= definitions("step")["blocked_reason"]["x-values"].keys()


def test_a_replay_carries_no_reason():
    ours = replayed(FOLDER / "97_worked_example_first_chunk.json")
    assert not any("blocked_reason" in record for record in ours.steps) and "it carries no `blocked_reason`" in PAGE


def test_the_shapes_that_the_page_says_are_those_of_the_schema():
    step = definitions("step")
    for name, text in (("sampled", "{request: [token ids]}"), ("hits", "{request: tokens}"), ("finished", "[request]")):
        assert text in step[name]["description"]
    assert (
        checker("step")({"step": 0, "scheduled": [], "sampled": {"A": [7]}, "hits": {"A": 4}, "finished": ["A"]}) == ""
    )


def test_what_the_page_shows_as_code_runs(tmp_path, monkeypatch):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    hands, server, two_runs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert value_of_last_line(hands) is True
    assert value_of_last_line(server) is None
    assert value_of_last_line(two_runs) == "preempted"
    assert '# "preempted"' in two_runs.splitlines()[-1] and "# None" in two_runs


def value_of_last_line(code):
    names: dict = {}
    exec(code, names)
    last = code.splitlines()[-1]
    return None if re.match(r"\w+ = ", last) else eval(last, names)


def test_the_lines_on_the_page_mean_what_the_page_says(tmp_path):
    first, second = re.search(r"```text\n(.*)\n(.*)\n```", PAGE).groups()
    rows = [json.loads(line.replace(", …}", ', "scheduled": []}')) for line in (first, second)]
    file = tmp_path / "run.jsonl"
    file.write_text("\n".join(map(json.dumps, [{"format": FORMAT, "version": VERSION}, *rows])))
    assert Trace.load(file).steps[1]["blocks"] == {"A": [1, 4, 5], "B": [2]}


def test_the_commands_on_the_page_exist():
    from typer.testing import CliRunner

    from mini_vllm.cli import app

    commands = re.findall(r"`(\w+(?: \w+)?) [A-Z]", " ".join(row[0] for row in table_after("# The trace format")))
    assert commands[:2] == ["play", "trace show"] and len(commands) == 6
    for command in commands:
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command


# --- the schema and what is written ---


def engine_trace():
    """A run of kind "engine" on a stand-in for the model, with text."""
    config = SchedulerConfig(num_gpu_blocks=4, enable_prefix_caching=True)
    ticks = iter(range(1000))
    loop = StepLoop(Scheduler(config), config, FakeModelRunner().execute, kind="engine", clock=lambda: next(ticks) / 8)
    for request_id in ("R1", "R2"):
        loop.add_request(Request(request_id, [1, 2, 3, 4, 5], SamplingParams(max_tokens=6), priority=1), "hello")
    while loop.has_unfinished_requests():
        loop.step()
        loop.recorder.add_pieces({"R1": "hi"})
    return loop.trace


def sim_traces():
    drafts = SchedulerConfig(num_speculative_tokens=2, num_lookahead_tokens=2, num_gpu_blocks=20)
    with_drafts = run_jobs([Job("A", [1, 2, 3], 9), Job("B", [4, 5], 9)], drafts).trace
    caching = SchedulerConfig(enable_prefix_caching=True)
    caching_trace = simulate([SimRequest("A", 9, 2)], caching)
    return [tiny_trace(), with_drafts, caching_trace, *map(random_trace, range(10)), cut_trace()]


def cut_trace():
    """Only the latest steps; before them one request was evicted, and all had tokens."""
    make_recorder = partial(TraceRecorder, keep_steps=3)
    config = SchedulerConfig(num_gpu_blocks=5, block_size=4)
    loop = StepLoop(
        Scheduler(config), config, FakeModelRunner().execute, kind="sim", clock=None, make_recorder=make_recorder
    )
    for request_id in "AB":
        loop.add_request(Request(request_id, [1, 2, 3, 4, 5], SamplingParams(max_tokens=9, ignore_eos=True)))
    while loop.has_unfinished_requests():
        loop.step()
    return loop.trace


@pytest.fixture(scope="module")
def written():
    """Per kind, all traces of it."""
    return {"sim": sim_traces(), "engine": [engine_trace()], "vllm": [from_vllm_recording(path) for path in RECORDINGS]}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_valid(written, kind):
    for trace in written[kind]:
        assert trace.header["kind"] == kind
        valid(trace, every=1 if kind == "engine" else 9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_in_the_schema_under_its_writer(written, kind):
    names = {name for trace in written[kind] for record in trace.steps for name in record}
    promised = {name for name in step_fields() if kind in writers(name)}
    assert names - promised == set(), "written, but the schema does not say so"
    # The one engine run here has no drafts; that part of the recorder is the same for both kinds.
    assert promised - names == ({"spec", "computed_end"} if kind == "engine" else set()), "promised, but never written"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_always_written_is_in_every_step(written, kind):
    always = {n for n, each in definitions("step").items() if kind in writers(n) and each["x-when"] == "always"}
    for trace in written[kind]:
        for record in trace.steps:
            assert always <= record.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_fields_stand_in_the_order_of_the_schema(written, kind):
    for trace in written[kind]:
        for record in trace.steps:
            assert list(record) == [name for name in step_fields() if name in record]


def test_every_header_field_is_written_by_somebody(written):
    traces = [trace for each in written.values() for trace in each]
    assert {name for trace in traces for name in trace.header} == definitions("header").keys()
    requests = [facts for trace in traces for facts in trace.header["requests"].values()]
    assert {name for facts in requests for name in facts} == definitions("request").keys()


def test_fields_of_files_are_written_into_files(tmp_path):
    trace = tiny_trace()
    rows = [json.loads(line) for line in trace.save(tmp_path / "run.jsonl").read_text().splitlines()[1:]]
    for row in rows:
        judge("step").validate(row)
    assert {"same", "blocks_change"} <= {name for row in rows for name in row} - {n for s in trace.steps for n in s}
    assert [n for n in step_fields() if writers(n) == ("file",)] == ["requests", "same", "blocks_change"]


def test_nobody_writes_what_is_reserved(written):
    reserved = {name for name in step_fields() if writers(name) == ("reserved",)}
    assert reserved == {"swapped_out", "swapped_in"}
    assert not reserved & {n for each in written.values() for trace in each for record in trace.steps for n in record}


# --- our check and the judge ---

VALUES = [None, True, False, -1, 0, 3, 2.5, "x", "", [], [1], ["a"], [["a", 1]], [["a", 1, 1]], {}, {"a": 1},
          {"a": [1]}, {"a": [1, 2]}, {"a": "x"}, {"a": None}, {"a": [0, [1]]}, {1: 2}]  # fmt: skip


def places(value, path=()):
    """Every place in a value: (path of keys)."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def broken(value, rng):
    """A copy with something replaced, dropped or added at a random place."""
    path = rng.choice(list(places(value)))
    changed = copy.deepcopy(value)
    if not path:
        return rng.choice(VALUES)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    act = rng.random()
    if act < 0.2 and isinstance(inside, dict):
        del inside[path[-1]]
    elif act < 0.3 and isinstance(inside, list):
        inside.append(rng.choice(VALUES))
    else:
        inside[path[-1]] = rng.choice(VALUES)
    return changed


@pytest.mark.parametrize("name", ["header", "step"])
def test_our_check_agrees_with_the_judge(name):
    rng = random.Random(name)
    recorded = [from_vllm_recording(FOLDER / f"{n}.json") for n in ("53_spec_preempt_lookahead", "47_async_preempt")]
    rows = {
        "header": [recorded[0].header, engine_trace().header],
        "step": [*recorded[0].steps[:4], *recorded[1].steps[:4], *engine_trace().steps[:2],
                 {"step": 4, "scheduled": [["a", 2]], "same": ["waiting"], "blocks_change": {"a": [1, [2]], "b": None},
                  "swapped_out": ["a"], "requests": {"a": {"arrival_step": 1, "prompt": "x"}}}],
    }[name]  # fmt: skip
    verdicts = []
    for _ in range(800):
        row = json.loads(json.dumps(broken(rng.choice(rows), rng)))
        is_valid = judge(name).is_valid(row)
        problem = checker(name)(row)
        assert (problem == "") == is_valid, (row, problem)
        verdicts.append(is_valid)
    assert 80 < sum(verdicts) < 720, "both verdicts are met"


@pytest.mark.parametrize("name", ["header", "step"])
def test_every_field_is_checked(name):
    for field in definitions(name):
        row = {"format": FORMAT, "version": VERSION} if name == "header" else {"step": 0, "scheduled": []}
        wrong = {"nested": object} if field != "config" else 3
        assert checker(name)({**row, field: wrong}), field
