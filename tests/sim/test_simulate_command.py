"""`mini-vllm simulate`: what it prints, writes and refuses."""

import json
import re

import pytest
from typer.testing import CliRunner

from mini_vllm.cli import app
from mini_vllm.errors import MiniVLLMError
from mini_vllm.sim.command import parse_changes, parse_slo, variant
from mini_vllm.sim.metrics import SLO, Metrics
from mini_vllm.sim.progress import Counting
from mini_vllm.sim.report import number
from mini_vllm.sim.scenario import Scenario
from mini_vllm.trace.reader import read_trace

FEW = ["simulate", "--requests", "40", "--model", "qwen3-0.6b"]


def run(*args, code=0):
    result = CliRunner().invoke(app, [*FEW, *args], env={"COLUMNS": "150"})
    assert result.exit_code == code or isinstance(result.exception, MiniVLLMError), result.output
    return result


def refused(*args):
    result = run(*args, code=1)
    assert isinstance(result.exception, MiniVLLMError), result.output
    return str(result.exception)


def test_one_run_shows_the_scenario_latencies_and_rates():
    output = run("--rate", "3", "--slo", "ttft=1000,tpot=50").output
    assert "qwen3-0.6b in float16 on A100-80GB-SXM: 40 requests of azure-conversation, poisson at 3/s, seed 0" in output
    assert re.search(r"time to first token, TTFT │ +[\d.]+ │", output)
    assert re.search(r"share within the SLO +│ 100.0 %", output)
    scenario = Scenario(model="qwen3-0.6b", num_requests=40, rate=3.0)
    assert f"{number(scenario.measure().output_tokens_per_s)} │" in output


def test_without_an_slo_its_rows_are_not_shown():
    assert "SLO" not in run().output


def test_two_runs_side_by_side():
    output = run("--compare", "vllm-v0", "sarathi", "--rate", "20").output
    assert output.count("poisson at 20/s") == 1
    assert re.search(r"^vllm-v0: .* and 40,960 tokens a step$", output, re.M)
    assert re.search(r"^sarathi: .* and 512 tokens a step$", output, re.M)
    assert output.count("p99") == 2 and re.search(r"┃ vllm-v0 ┃ vllm-v0 ┃ sarathi ┃ sarathi ┃", output)


def test_long_names_stand_once_and_the_columns_have_letters():
    long = "sarathi,max_num_batched_tokens=256"
    result = CliRunner().invoke(app, [*FEW, "--compare", "vllm-v0", long], env={"COLUMNS": "80"})
    output = result.output
    assert "A = vllm-v0: " in output and output.count(long) == 1 and f"B = {long}: " in output.replace("\n", " ")
    assert re.search(r"┃ +A ┃ +A ┃ +B ┃ +B ┃", output)
    assert "time to first token, TTFT │" in output and not re.search(r"\w…", output)  # nothing is cut


def test_what_two_runs_have_in_common_is_said_once_and_the_rest_of_each():
    output = run("--compare", "rate=4", "rate=8").output
    assert output.count("poisson at 4/s") == output.count("poisson at 8/s") == 1 and "at 2/s" not in output
    output = run("--compare", "arrivals=closed,users=3", "arrivals=at-once").output.replace("\n", " ")
    assert "closed with 3 users, seed 0" in output and "at-once, seed 0" in output


def test_the_lengths_of_a_random_workload_are_said():
    output = run("--workload", "random", "--prompt", "200", "--output", "30").output.replace("\n", " ")
    assert "40 requests of random lengths of 200 + 30 tokens, poisson" in output


def test_a_limit_can_be_set():
    assert "77 KV blocks of 16" in run("--set", "num_gpu_blocks=77", "--set", "max_model_len=1000").output


def test_unfinished_requests_are_counted_and_never_came():
    output = run("--rate", "50", "--until", "0.5", "--set", "max_num_seqs=1").output
    assert re.search(r"of them unfinished +│ +\d+", output) and "never" in output


def test_requests_that_can_never_fit_stop_the_run_or_are_counted():
    small_card = ("--set", "num_gpu_blocks=100")
    assert "or pass over such requests: --drop-unfittable" in refused(*small_card)
    row = next(line for line in run(*small_card, "--drop-unfittable").output.splitlines() if "never fit" in line)
    assert int("".join(filter(str.isdigit, row))) > 0


def test_scenario_and_metrics_go_into_a_file(tmp_path):
    path = tmp_path / "out.json"
    run("--json", str(path), "--rate", "3", "--set", "watermark=0.1")
    stored = json.loads(path.read_text())["vllm"]
    assert stored["scenario"]["rate"] == 3.0 and stored["scenario"]["limits"] == {"watermark": 0.1}
    assert Metrics.from_dict(stored["metrics"]).num_requests == 40


def test_a_trace_can_be_played(tmp_path):
    path = tmp_path / "run.jsonl"
    output = run("--trace-out", str(path), "--requests", "5")
    header, steps = read_trace(path)
    assert header["kind"] == "sim" and len(header["requests"]) == 5 and len(steps) > 100
    assert "mini-vllm play" in output.output


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    run("--plot", str(path), "--compare", "vllm", "vllm,max_num_seqs=2")
    assert "TTFT, vllm" in path.read_text() or path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--rate", "0"], "rate=0: nobody would ever come"),
        (["--rate", "nan"], "rate=nan"),
        (["--requests", "-3"], "num_requests=-3"),
        (["--model", "llama-2-70b"], "A100-80GB-SXM has 80.0 GB"),
        (["--system", "tgi"], "system 'tgi' is not one of"),
        (["--workload", "nowhere.csv"], "neither a file nor one of the samples"),
        (["--set", "num_gpu_blocks"], "--set 'num_gpu_blocks': give NAME=VALUE"),
        (["--set", "blocks=3"], "limits name 'blocks'"),
        (["--set", "num_gpu_blocks=0"], "num_gpu_blocks=0 must be a whole number"),
        (["--slo", "ttft"], "--slo 'ttft': give NAME=VALUE"),
        (["--slo", "speed=3"], "--slo speed=3: give one or more of ttft=MILLISECONDS"),
        (["--slo", "ttft=soon"], "--slo ttft='soon'"),
        (["--compare", "vllm", "vllm"], "--compare vllm vllm: both are the same"),
        (["--compare", "vllm", "max_seqs=3"], "has no 'max_seqs'"),
        (
            ["--compare", "vllm", "sarathi", "--trace-out", "x.jsonl"],
            "--trace-out writes one run and --compare makes two",
        ),
        (["--json", "no/such/folder.json"], "there is no folder no/such"),
        (["--warmup", "1e9"], "none after the warm-up"),
        (["--until", "0"], "0 arrived by 0 s, .* stop the run later"),
        (["--slo", ""], "--slo '': give NAME=VALUE"),
        (["--slo", "ttft=1,ttft=2"], "--slo gives ttft twice"),
        (["--set", "max_num_seqs=4", "--set", "max_num_seqs=5"], "--set gives max_num_seqs twice"),
        (["--set", "block_size=0"], "block_size=0 must be a whole number"),
        (["--workload", "random", "--spread", "1e200"], "cv=1e+200 must be a number from 0 to 100"),
        (["--prompt", "2000"], "--prompt 2000.0 changes nothing here: it needs --workload random"),
        (["--arrivals", "closed", "--rate", "4"], "--rate 4.0 changes nothing here: it needs arrivals with a rate"),
        (["--cv", "3"], "--cv 3.0 changes nothing here: it needs --arrivals gamma or bursty"),
        (["--users", "3", "--compare", "vllm", "lpm"], "--users 3 changes nothing here: it needs --arrivals closed"),
        (["--plot", "x.png", "--json", "./x.png"], "are one file"),
        (["--arrivals", "recorded", "--workload", "random"], "has no times of its own"),
    ],
)
def test_what_is_refused_and_why(args, reason):
    message = refused(*args)
    assert reason in message or re.search(reason, message)


def test_an_option_that_one_of_two_runs_reads_is_taken():
    output = run("--cv", "3", "--compare", "arrivals=gamma", "arrivals=poisson").output
    assert "gamma at 2/s" in output.replace("\n", " ")


def test_the_trace_that_is_read_is_not_written_over(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at_s,prompt_tokens,output_tokens\n0,5,3\n")
    assert "is the file that is read" in refused("--workload", str(path), "--json", str(path))


def test_a_plot_shows_whole_runs_only(tmp_path):
    pytest.importorskip("matplotlib")
    message = refused("--plot", str(tmp_path / "p.png"), "--rate", "50", "--until", "0.5", "--set", "max_num_seqs=1")
    assert "unfinished: leave out --until" in message


def test_the_help_names_what_there_is_and_shows_examples():
    output = CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "200"}).output
    for word in ("vllm-v0", "azure-conversation", "llama-3.1-8b", "H200", "--compare vllm-v0 sarathi"):
        assert word in output


@pytest.mark.parametrize("arrivals", ["poisson", "closed"])
def test_the_bar_counts_every_request_once(arrivals):
    scenario = Scenario(num_requests=40, users=5, arrivals=arrivals, model="qwen3-0.6b")
    came = []
    counting = Counting(scenario.requests(), lambda: came.append(1))
    result = scenario.simulator().run(counting)
    assert len(came) == len(result.log) == 40
    assert result == scenario.run()


def test_words_become_values():
    assert parse_changes(["a=1", "b=0.5", "c=true", "d=none", "e=fcfs"], "--set") == {
        "a": 1, "b": 0.5, "c": True, "d": None, "e": "fcfs",
    }  # fmt: skip
    assert parse_slo("ttft=1000,gap=200") == SLO(ttft_ms=1000, gap_ms=200)
    base = Scenario()
    assert variant(base, "sarathi,rate=4,max_num_seqs=8") == base.changed(system="sarathi", rate=4, max_num_seqs=8)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "–"), (float("inf"), "never"), (0.0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"),
        (99.96, "100"), (123.4, "123"), (12_345.6, "12,346"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value, shown):
    assert number(value) == shown
