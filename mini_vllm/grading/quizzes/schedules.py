"""Questions about one step of a run, each from a run of the real scheduler. Knows step records. Chapters 4 to 9."""

import random
from dataclasses import dataclass

from mini_vllm.config import SchedulerConfig
from mini_vllm.grading.quizzes.question import Option, Question, multiple_choice
from mini_vllm.sim.driver import SimRequest, simulate
from mini_vllm.trace.recorder import Trace

RULES = "First come, first served; chunked prefill; KV blocks are plenty."


def limits(config: SchedulerConfig) -> str:
    return f"Token budget {config.token_budget}, max_num_seqs {config.max_num_seqs}."


@dataclass
class Pending:
    """A request before a step. `to_compute`: known tokens whose KV is not there yet; 1 in a decode."""

    name: str
    to_compute: int


@dataclass
class Run:
    """A simulated run, and the state before each of its steps."""

    requests: list[SimRequest]
    config: SchedulerConfig
    trace: Trace

    def before(self, index: int) -> tuple[list[Pending], list[Pending]]:
        """(running, waiting) as the scheduler finds them in step `index`, in its order."""
        record = self.trace.steps[index]
        known = {r.request_id: r.prompt_len for r in self.requests}
        computed = dict.fromkeys(known, 0)
        for past in self.trace.steps[:index]:
            for name, tokens in past["sampled"].items():
                known[name] += len(tokens)
            for name, (_, after) in past["computed"].items():
                computed[name] = after
        queues = record["running_before"], record["waiting_before"]
        running, waiting = ([Pending(n, known[n] - computed[n]) for n in queue] for queue in queues)
        return running, waiting

    def text(self, index: int) -> str:
        running, waiting = self.before(index)
        lines = [RULES, limits(self.config), "", f"Before step {index}, tokens still to be computed:"]
        for word, queue in (("running", running), ("waiting", waiting)):
            listed = "   ".join(f"{w.name}: {w.to_compute}" for w in queue)
            lines.append(f"  {word}   {listed or 'nobody'}")
        return "\n".join(lines)


def draw(rng: random.Random) -> Question | None:
    return rng.choice([ask_plan, ask_plan, ask_first_token, ask_blocked, ask_victim])(rng)


def draw_run(rng: random.Random, num_gpu_blocks: int = 200) -> Run:
    budget, arrival, requests = rng.choice([8, 12, 16]), 0, []
    for name in "ABCDE"[: rng.randint(3, 5)]:
        requests.append(SimRequest(name, rng.randint(2, 24), rng.randint(3, 9), arrival))
        arrival += rng.choice([0, 0, 1, 2])
    config = SchedulerConfig(
        max_num_seqs=rng.randint(2, 4), max_num_batched_tokens=budget, num_gpu_blocks=num_gpu_blocks, block_size=4
    )
    return Run(requests, config, simulate(requests, config))


def plan(first: list[Pending], then: list[Pending], config: SchedulerConfig, *, cut=True, has_budget=True) -> str:
    """The plan of a step by the rule, or with a mistake: another order, nothing is cut, or there is no budget."""
    left = config.token_budget if has_budget else 10**9
    pieces = []
    for place, request in enumerate([*first, *then]):
        if place >= config.max_num_seqs or left <= 0:
            break
        tokens = min(request.to_compute, left)
        if tokens < request.to_compute and not cut:
            break
        pieces.append((request.name, tokens))
        left -= tokens
    return as_text(pieces)


def as_text(pieces: list) -> str:
    return "  ".join(f"{name}:{tokens}" for name, tokens in pieces) or "nobody"


def ask_plan(rng: random.Random) -> Question | None:
    run = draw_run(rng)
    steps = [i for i, record in enumerate(run.trace.steps) if len(record["scheduled"]) > 1 and record["new"]]
    if not steps:
        return None
    index = rng.choice(steps)
    running, waiting = run.before(index)
    config, record = run.config, run.trace.steps[index]
    right = Option(
        as_text(record["scheduled"]),
        f"the running come first and take what they lack, then the queue in its order, until the budget of "
        f"{config.token_budget} is spent or {config.max_num_seqs} run. The last piece is cut to what is left.",
    )
    wrong = [
        Option(plan(running, waiting, config, has_budget=False), "that ignores the token budget."),
        Option(plan(running, waiting, config, cut=False), "that cuts nothing: with chunked prefill a prompt may enter "
               "with the part that fits."),
        Option(plan(waiting, running, config), "that serves the queue before those who run; a decode would wait for "
               "every newcomer."),
        Option(plan(running, [], config), "that lets nobody in although budget and places are left: static batching."),
        Option(as_text([(w.name, 1) for w in [*running, *waiting][: config.max_num_seqs]]), "that gives everybody one "
               "token: a prompt is computed many tokens at a time."),
    ]  # fmt: skip
    asks = f"What is the plan of step {index}? (request:tokens, in the scheduler's order)"
    return multiple_choice(rng, run.text(index), asks, right, wrong)


def ask_first_token(rng: random.Random) -> Question | None:
    run = draw_run(rng)
    request = rng.choice(run.requests)
    name, config = request.request_id, run.config
    step = run.trace.first_token_step()[name]
    pieces = [n for record in run.trace.steps for who, n in record["scheduled"] if who == name][: _chunks(run, name)]
    entered = next(r["step"] for r in run.trace.steps if name in r["new"])
    finish = run.trace.finish_step()
    prompt = f"in pieces of {' + '.join(map(str, pieces))} tokens" if len(pieces) > 1 else "in one piece"
    right = Option(
        f"step {step}",
        f"it enters in step {entered}, its prompt goes through {prompt}, and the step that computes the last prompt "
        "token samples the first token.",
    )
    alone = request.arrival_step - (-request.prompt_len // config.token_budget) - 1
    done_before = max((finish[r.request_id] for r in run.requests if r.request_id < name), default=-1)
    wrong = [
        Option(f"step {request.arrival_step}", "that is the step of its arrival: are place and budget free then?"),
        Option(f"step {alone}", "that is so for somebody who is alone; others take a part of the budget."),
        Option(f"step {entered}", "that is the step in which it enters; does its whole prompt fit into that step?"),
        Option(f"step {step + 1}", "one step late: the step that computes the last prompt token also samples."),
        Option(f"step {finish[name]}", "that is the step of its last token."),
        Option(f"step {done_before + 1}", "that waits until all before it are done, as static batching does."),
    ]
    table = [
        f"  {r.request_id:<7}   {r.arrival_step:>7}   {r.prompt_len:>13}   {r.max_tokens:>13}" for r in run.requests
    ]
    head = f"  {'request':<7}   {'arrives':>7}   {'prompt tokens':>13}   {'output tokens':>13}"
    situation = "\n".join([RULES, limits(config), "", head, *table])
    asks = f"In which step does {name} emit its first token? (The first step is step 0.)"
    return multiple_choice(rng, situation, asks, right, wrong)


def _chunks(run: Run, name: str) -> int:
    """Steps that compute a part of the prompt of `name`."""
    prompt_len = next(r.prompt_len for r in run.requests if r.request_id == name)
    starts = [record["computed"][name][0] for record in run.trace.steps if name in record["computed"]]
    return sum(start < prompt_len for start in starts)


def ask_blocked(rng: random.Random) -> Question | None:
    run = draw_run(rng, num_gpu_blocks=rng.choice([8, 10, 200]))
    known = ("max_num_seqs", "token_budget", "kv_full_sequence")
    steps = [r for r in run.trace.steps if r["blocked_reason"] in known and not r["preempted"]]
    if not steps:
        return None
    record, config = rng.choice(steps), run.config
    waiting = [w for w in run.before(record["step"])[1] if w.name in record["waiting"]]
    head, places, spent, free = waiting[0], len(record["running"]), record["budget_used"], record["free"]
    need, reason = config.blocks_for(head.to_compute), record["blocked_reason"]
    # reason -> (in words, does it hold?, the arithmetic); in the order in which the scheduler tests
    tests = {
        "max_num_seqs": ("all places are taken (max_num_seqs)", places >= config.max_num_seqs,
                         f"{places} run, max_num_seqs is {config.max_num_seqs}"),
        "token_budget": ("the token budget is spent", spent >= config.token_budget,
                         f"{spent} of {config.token_budget} tokens are handed out"),
        "kv_full_sequence": ("its KV blocks are not free", need > free,
                             f"{head.name} needs {need} blocks for {head.to_compute} tokens, {free} are free"),
    }  # fmt: skip
    right = Option(tests[reason][0], f"{tests[reason][2]}. Places, tokens, blocks: the first test that fails is named.")
    wrong = [
        Option(words, f"{arithmetic}{'; true, but an earlier test fails already' if true else ''}.")
        for other, (words, true, arithmetic) in tests.items()
        if other != reason
    ]
    wrong.append(Option("it arrives only later", f"{head.name} stands in the queue, so it is there."))
    lines = [
        f"{limits(config)} Blocks of {config.block_size} tokens.",
        "A request enters only if blocks for all its known tokens are free.",
        "",
        f"After the plan of step {record['step']}:",
        f"  plan      {as_text(record['scheduled'])}",
        f"  running   {'   '.join(record['running'])}",
        f"  queue     {'   '.join(f'{w.name}: {w.to_compute} tokens' for w in waiting)}",
        f"  free      {free} blocks",
    ]
    asks = f"Why is {head.name}, the head of the queue, not let in? (Tested in this order: places, tokens, blocks.)"
    return multiple_choice(rng, "\n".join(lines), asks, right, wrong)


def ask_victim(rng: random.Random) -> Question | None:
    run = draw_run(rng, num_gpu_blocks=rng.randint(8, 11))
    steps = [r for r in run.trace.steps if len(r["preempted"]) == 1 and len(r["running_before"]) > 2]
    if not steps:
        return None
    record, size = rng.choice(steps), run.config.block_size
    order, victim = record["running_before"], record["preempted"][0]
    computed = {name: next(r["computed"][name][1] for r in run.trace.steps[record["step"] - 1 :: -1]
                           if name in r["computed"]) for name in order}  # fmt: skip
    blocks = {name: run.config.blocks_for(tokens) for name, tokens in computed.items()}
    largest = max(order, key=lambda name: (computed[name], name))

    def option(name: str, tokens: int, why: str) -> Option:
        return Option(f"{name}, {tokens} tokens", why)

    right = option(
        victim,
        computed[victim],
        "the last of the running is evicted: it came last. All that was computed of it is computed again when it "
        "comes back, from the front of the queue.",
    )
    wrong = [
        option(victim, blocks[victim] * size, "the right one; but that counts its slots, and some hold no token."),
        option(victim, 0, "the right one; but its KV is gone with its blocks, and has to be computed again."),
        option(order[0], computed[order[0]], "it came first, so it is the last to be evicted."),
    ]
    if largest not in (victim, order[0]):
        wrong.append(option(largest, computed[largest], "it holds the most, but size plays no part."))
    lines = [
        f"Policy fcfs. {run.config.num_gpu_blocks} blocks of {size} tokens.",
        "",
        f"Before step {record['step']}, in the scheduler's order:",
        *(f"  {name}   {computed[name]:>2} tokens computed, {blocks[name]} blocks" for name in order),
        f"  free: {record['free_before']} blocks",
        "",
        "In this step somebody needs a block more than there are.",
    ]
    asks = "Who is evicted, and how many tokens will be computed again because of it?"
    return multiple_choice(rng, "\n".join(lines), asks, right, wrong)
