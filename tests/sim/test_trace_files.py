"""Trace files: the samples that come with the package, and everything that can be wrong with a file of one's own."""

import csv
import gzip
import itertools
import json
import statistics
import time

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, TraceFormatError
from mini_vllm.sim.arrivals import Poisson
from mini_vllm.sim.clock import FixedClock
from mini_vllm.sim.simulator import Simulator
from mini_vllm.sim.trace_files import DATA, MOONCAKE_BLOCK, SAMPLES, TraceWorkload, load_trace, unlimited_hit_rate
from mini_vllm.sim.workloads import Arrival, start


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_there_and_whole(name):
    trace = load_trace(name)
    assert len(trace) == 2000
    assert all(row.prompt_tokens >= 1 and row.output_tokens >= 1 for row in trace.rows)
    assert trace.rows[0].arrived_s == 0.0


def test_the_azure_sample_is_what_the_file_says():
    with (DATA / SAMPLES["azure-conversation"]).open() as file:
        rows = list(csv.DictReader(file))
    trace = load_trace("azure-conversation")
    assert trace.rows[1] == Arrival(4.3146, 396, 109)
    assert statistics.fmean(row.prompt_tokens for row in trace.rows) == statistics.fmean(
        int(row["prompt_tokens"]) for row in rows
    )
    assert trace.rate == pytest.approx(1999 / float(rows[-1]["arrived_at_s"]))


def test_code_completion_comes_in_bursts_and_conversation_does_not():
    """Azure's two services, in the sample as in the whole trace (gap cv 13 and 1.1)."""

    def cv(name):
        times = [row.arrived_s for row in load_trace(name).rows]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        return statistics.stdev(gaps) / statistics.fmean(gaps)

    assert cv("azure-code") > 2.5 * cv("azure-conversation") > 1


def test_lengths_without_times_must_be_given_some():
    arxiv = load_trace("arxiv-summarization")
    assert not arxiv.has_times
    with pytest.raises(ConfigError, match=r"no arrival times .*; give it some: \.arriving\(Poisson\(rate=2\)\)"):
        start(arxiv)
    rows = list(start(arxiv.arriving(Poisson(2), 50)).arrivals)
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == list(arxiv.lengths.rows[:50])


def test_a_trace_can_be_stretched_to_a_rate():
    trace = load_trace("azure-conversation").first(500)
    faster = trace.at_rate(10)
    assert faster.rate == pytest.approx(10)
    assert [row[1:] for row in faster.rows] == [row[1:] for row in trace.rows]
    ratio = faster.rows[100].arrived_s / trace.rows[100].arrived_s
    assert faster.rows[400].arrived_s == pytest.approx(ratio * trace.rows[400].arrived_s)


def test_too_long_requests_can_be_shortened_with_their_content():
    trace = load_trace("mooncake-conversation").fitted(4096)
    assert max(row.prompt_tokens + row.output_tokens for row in trace.rows) == 4096
    for row in trace.rows:
        assert sum(tokens for _, tokens in row.segments) == row.prompt_tokens
        assert all(tokens > 0 for _, tokens in row.segments)


def test_a_trace_has_no_more_than_it_has():
    with pytest.raises(ConfigError, match="has 2000 requests, not 2001"):
        load_trace("azure-code").first(2001)


# --- Mooncake ---


@pytest.mark.parametrize("name", ["mooncake-conversation", "mooncake-synthetic"])
def test_the_unlimited_hit_rate_is_that_of_the_raw_file(name):
    """Counted again from the JSON, by Mooncake's own rule: blocks from the front that somebody had before."""
    seen, hits, tokens = set(), 0, 0
    for line in (DATA / SAMPLES[name]).read_text().splitlines():
        row = json.loads(line)
        new = [block in seen for block in row["hash_ids"]]
        leading = new.index(False) if False in new else len(new)
        hits += min(leading, row["input_length"] // MOONCAKE_BLOCK) * MOONCAKE_BLOCK
        tokens += row["input_length"]
        seen.update(row["hash_ids"])
    assert unlimited_hit_rate(load_trace(name)) == pytest.approx(hits / tokens, rel=1e-12)


def test_a_block_after_another_beginning_is_no_hit():
    first = Arrival(0.0, 1024, 1, segments=((1, 512), (2, 512)))
    other = Arrival(1.0, 1024, 1, segments=((3, 512), (2, 512)))
    assert unlimited_hit_rate(TraceWorkload("two", (first, other))) == 0.0
    assert unlimited_hit_rate(TraceWorkload("two", (first, first))) == 0.5


def test_hit_rates_of_the_mooncake_samples():
    """The first 2,000 requests find less than the whole traces do (36.6 and 64.0 %), since their cache begins empty.

    Source: FAST25-release/traces in kvcache-ai/Mooncake; the rates of the whole traces were counted from its files.
    """
    assert unlimited_hit_rate(load_trace("mooncake-conversation")) == pytest.approx(0.294, abs=0.001)
    assert unlimited_hit_rate(load_trace("mooncake-synthetic")) == pytest.approx(0.336, abs=0.001)
    # Of the last quarter of the sample, with a history behind it, the conversation trace is where the whole one is.
    rows = load_trace("mooncake-conversation").rows
    whole, before = (sum(hit_tokens(rows[:n])) for n in (2000, 1500))
    assert (whole - before) / sum(row.prompt_tokens for row in rows[1500:]) == pytest.approx(0.366, abs=0.02)


def hit_tokens(rows):
    seen = set()
    for row in rows:
        leading = True
        for content, tokens in row.segments:
            leading = leading and content in seen
            if leading and tokens == MOONCAKE_BLOCK:
                yield tokens
            seen.add(content)


def test_the_simulator_finds_what_an_unlimited_cache_holds():
    """With a pool that nothing leaves and a server faster than the users, the scheduler's hits are the trace's."""
    trace = load_trace("mooncake-conversation").first(300)
    config = SchedulerConfig(
        max_num_seqs=256,
        max_num_batched_tokens=200_000,
        max_model_len=200_000,
        num_gpu_blocks=20_000,
        block_size=MOONCAKE_BLOCK,
        enable_prefix_caching=True,
    )
    result = Simulator(config, FixedClock(1e-6)).run(trace)
    found = sum(result.log.column("hit_tokens")) / sum(result.log.column("prompt_tokens"))
    assert found == pytest.approx(unlimited_hit_rate(trace), abs=1e-3)
    assert found > 0.05


def test_a_small_cache_finds_less():
    trace = load_trace("mooncake-conversation").first(300)
    rates = []
    for blocks in (300, 3000, 20_000):
        config = SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=200_000,
            max_model_len=130_000,
            num_gpu_blocks=blocks,
            block_size=MOONCAKE_BLOCK,
            enable_prefix_caching=True,
        )
        result = Simulator(config, FixedClock(1e-3)).run(trace)
        rates.append(sum(result.log.column("hit_tokens")) / sum(result.log.column("prompt_tokens")))
    assert rates[0] < rates[1] < rates[2]


# --- files of one's own ---


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azures_own_columns_are_read(tmp_path):
    path = write(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n",
    )
    trace = load_trace(path)
    assert [row[:3] for row in trace.rows] == [(0.0, 374, 44), (pytest.approx(0.052, abs=1e-5), 396, 109)]


def test_vidurs_own_columns_are_read(tmp_path):
    path = write(tmp_path, "v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,10,4\n2.5,20,5\n")
    assert load_trace(str(path)).rows == (Arrival(0.0, 10, 4), Arrival(1.0, 20, 5))


def test_dates_may_have_a_zone_and_any_number_of_digits(tmp_path):
    """Azure's traces of 2024 do: 2024-05-10 00:00:00.009930+00:00."""
    rows = "2024-05-10 00:00:00.5+00:00,374,44\n2024-05-10 00:00:01.0099301+00:00,374,44\n2024-05-10 00:00:02,1,1\n"
    path = write(tmp_path, "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert [row.arrived_s for row in load_trace(path).rows] == pytest.approx([0, 0.50993, 1.5], abs=1e-6)


def test_dates_do_not_depend_on_the_zone_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        # At 3 o'clock on this day the clocks there were set back to 2.
        rows = "2023-10-29 01:59:59,374,44\n2023-10-29 03:00:01,374,44\n"
        path = write(tmp_path, "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
        assert load_trace(path).rows[1].arrived_s == 3602
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_mark_of_a_spreadsheet_hides_no_column(tmp_path):
    trace = load_trace(write(tmp_path, "t.csv", "\ufeff" + HEAD + "2.5,5,3\n"))
    assert trace.has_times and trace.rows[1].arrived_s == 2.5


def test_what_is_no_text_is_said(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(HEAD.encode()))
    with pytest.raises(TraceFormatError, match=r"t\.csv\.gz is no text in UTF-8"):
        load_trace(path)


HEAD = "arrived_at_s,prompt_tokens,output_tokens\n0.0,5,3\n"
JSON_ROW = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("t.csv", "arrived_at_s,prompt\n0.0,5\n", r"t.csv:2: no column prompt_tokens or .*; there are arrived_at_s, "),
        ("t.csv", "arrived_at_s,prompt_tokens\n0.0,5\n", "no column output_tokens"),
        ("t.csv", HEAD + "2.0,5,3\n1.0,5,3\n", r"t.csv:4: arrives 1 s before the row above; sort by time"),
        ("t.csv", HEAD + "1.0,-5,3\n", r"t.csv:3: prompt_tokens='-5' must be a whole number of tokens, at least 1"),
        ("t.csv", HEAD + "1.0,0,3\n", "prompt_tokens='0'"),
        ("t.csv", HEAD + "1.0,nan,3\n", "prompt_tokens='nan'"),
        ("t.csv", HEAD + "1.0,5,2.5\n", "output_tokens='2.5'"),
        ("t.csv", HEAD + "1.0,5\n", "output_tokens=None"),
        ("t.csv", HEAD + "soon,5,3\n", r"t.csv:3: arrived_at_s='soon' is no time"),
        ("t.csv", HEAD + "nan,5,3\n", "arrived_at_s='nan' is no time"),
        ("t.csv", "arrived_at_s,prompt_tokens,output_tokens\n", "holds no request"),
        ("t.csv", "", "holds no request"),
        ("t.jsonl", JSON_ROW + "{\n", r"t.jsonl:2: no JSON"),
        ("t.jsonl", JSON_ROW + "[1]\n", r"t.jsonl:2: \[1\] is no JSON object"),
        ("t.jsonl", JSON_ROW.replace("[1, 2]", "[1]"), "hash_ids must be 2 whole numbers, one for each 512 of 600"),
        ("t.jsonl", JSON_ROW.replace("[1, 2]", '[1, "x"]'), "hash_ids must be 2 whole numbers"),
        ("t.jsonl", JSON_ROW.replace("[1, 2]", "[1, -2]"), "hash_ids must be 2 whole numbers"),
        ("t.jsonl", JSON_ROW.replace("[1, 2]", "7"), "hash_ids must be 2 whole numbers"),
        ("t.jsonl", JSON_ROW.replace("[1, 2]", f"[1, {2**63 - 1}]"), f"tokens, from 0 to {2**63 - 2}"),
        ("t.jsonl", JSON_ROW.replace("600", "true"), "input_length=True"),
        ("t.jsonl", JSON_ROW.replace("600", "1e999"), "input_length=inf"),
        ("t.jsonl", "[" * 100_000, "t.jsonl:1: no JSON"),
        ("t.jsonl", JSON_ROW + JSON_ROW.replace('"timestamp": 0, ', ""), r"t.jsonl:2: some rows have a time and some"),
        ("t.jsonl", JSON_ROW.replace('"input_length": 600', '"input_length": 600.5'), "input_length=600.5"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_with_row_and_reason(tmp_path, name, text, reason):
    with pytest.raises(TraceFormatError, match=reason):
        load_trace(write(tmp_path, name, text))


@pytest.mark.parametrize("wrong", [5, None, str])
def test_what_is_no_name_of_a_trace_is_refused(wrong):
    with pytest.raises(ConfigError, match="give a file, or one of the samples azure-conversation"):
        load_trace(wrong)


def test_an_unknown_trace_lists_the_samples():
    with pytest.raises(ConfigError, match="'azure' is neither a file nor one of the samples azure-conversation"):
        load_trace("azure")


def test_a_trace_that_knows_no_content_has_no_hit_rate():
    with pytest.raises(ConfigError, match="says nothing about the content"):
        unlimited_hit_rate(load_trace("azure-code"))
