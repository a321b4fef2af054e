"""Endless questions: the same on every machine, one right option, every wrong one explained, and all of it true."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from mini_vllm.grading import progress_file, quiz
from mini_vllm.grading.quizzes import asking, block_tables, prefix_cache, roofline, schedules
from mini_vllm.grading.quizzes.question import Option, multiple_choice

from .conftest import ROOT

SEEDS = range(150)
TOPICS = list(asking.TOPICS)
ALL = pytest.mark.parametrize("topic", TOPICS)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(progress_file, "_state", {"passed": [], "predictions": {}, "quiz": {}})


@ALL
def test_every_question_has_one_right_option_and_reasons(topic):
    asked = set()
    for seed in SEEDS:
        question = asking.draw(topic, seed)
        texts = [option.text for option in question.options]
        assert 3 <= len(texts) <= 4 and len(set(texts)) == len(texts)
        assert all(len(option.why) > 20 and option.why.endswith((".", "?")) for option in question.options)
        assert question.asks.endswith(("?", ")")) and "?" in question.asks
        assert all(len(line) <= 84 for line in question.situation.splitlines())
        asked.add((question.situation, question.asks))
    assert len(asked) > 0.9 * len(SEEDS), "endless means that seeds differ"


@ALL
def test_the_right_option_stands_in_every_place(topic):
    places = [asking.draw(topic, seed).right for seed in SEEDS]
    assert all(places.count(place) > len(SEEDS) / 10 for place in range(3))


DIGEST = """
import hashlib, sys
from mini_vllm.grading.quizzes import asking
questions = [asking.draw(topic, seed) for topic in asking.TOPICS for seed in range(40)]
texts = [repr(asking.Asked(question, "")) + str(question.right) for question in questions]
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


def test_a_seed_gives_the_same_question_in_every_process():
    digests = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    texts = [
        repr(asking.Asked(asking.draw(t, s), "")) + str(asking.draw(t, s).right) for t in TOPICS for s in range(40)
    ]
    assert digests == {hashlib.sha256("".join(texts).encode()).hexdigest() + "\n"}


def test_a_seed_gives_the_same_question_on_every_machine_and_python():
    """Written down once; a difference here means that quiz(7) is another question than in somebody else's notes."""
    right = {}
    for topic in TOPICS:
        questions = [asking.draw(topic, seed) for seed in range(4)]
        right[topic] = [question.options[question.right].text for question in questions]
    assert right == json.loads((ROOT / "tests" / "grading" / "quiz_seeds.json").read_text(encoding="utf-8"))


# --- asking and answering -------------------------------------------------------------------------------------


def test_the_plain_text_tells_how_to_answer():
    text = repr(quiz(7))
    question = asking.draw("block tables", 7)
    assert text.startswith("quiz(7)\n\n") and question.situation in text and question.asks in text
    assert 'Your answer: quiz(7, "a"), or b, c' in text
    assert question.options[0].why not in text
    assert 'quiz(3, "a", topic="roofline")' in repr(quiz(3, topic="roofline"))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.opened, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)

    def handle_data(self, data):
        self.text += data


def test_the_page_s_twin_needs_no_kernel_and_no_script():
    for seed in range(12):
        page = quiz(seed)._repr_html_()
        tags = Tags()
        tags.feed(page)
        question = asking.draw(TOPICS[seed % 3], seed)
        assert tags.opened.count("details") == tags.opened.count("summary") == len(question.options)
        assert "script" not in page and "onclick" not in page and page.count("✓") == 1
        assert all(option.text in tags.text and option.why in tags.text for option in question.options)
        assert page == quiz(seed)._repr_html_()


def test_a_right_answer_says_why_the_others_are_wrong(capsys):
    question = asking.draw("schedules", 0)
    letter = "abcd"[question.right]
    assert quiz(0, letter) is None
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"✓ {letter}) ") and said.endswith("Next: quiz(1)")
    assert all(" ".join(option.why.split()) in said for option in question.options)


def test_a_wrong_answer_says_why_and_keeps_the_right_one_to_itself(capsys):
    for topic in TOPICS:
        for seed in range(30):
            question = asking.draw(topic, seed)
            for i, option in enumerate(question.options):
                if i == question.right:
                    continue
                quiz(seed, "abcd"[i], topic=topic)
                said = " ".join(capsys.readouterr().out.split())
                assert said.startswith(f"✗ {'abcd'[i]}) ") and option.why in said
                assert f'Another try: quiz({seed}, "…", topic="{topic}")' in said
                right = question.options[question.right]
                assert right.why not in said


def test_answers_are_letters_or_the_option_itself(capsys):
    question = asking.draw("roofline", 2)
    text = question.options[question.right].text
    for answer in ("abcd"[question.right].upper(), f" {'abcd'[question.right]}) ", text):
        quiz(2, answer)
        assert capsys.readouterr().out.startswith("✓")
    with pytest.raises(ValueError, match="'e' is none of the options; answer with a, b, c or d"):
        quiz(2, "e")


def test_the_first_try_counts(capsys):
    question = asking.draw("roofline", 2)
    quiz(2, "abcd"[(question.right + 1) % 3 if question.right < 3 else 0])
    quiz(2, "abcd"[question.right])
    assert progress_file.known()["quiz"] == {"roofline 2": False}


def test_without_a_seed_a_new_one_is_drawn_and_shown():
    text = repr(quiz())
    seed = int(re.match(r"quiz\((\d{4})\)", text)[1])
    assert repr(quiz(seed)) == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("seven",), "whole number as its seed"),
        ((True,), "whole number as its seed"),
        ((None, "b"), "lacks the seed"),
    ],
)
def test_bad_calls_are_told_what_to_write(arguments, says):
    with pytest.raises(ValueError, match=says):
        quiz(*arguments)
    with pytest.raises(ValueError, match="there is no topic 'gpus'; there are 'schedules', 'block tables', 'roofline'"):
        quiz(1, topic="gpus")


def test_too_many_options_that_agree_are_no_question():
    rng = random.Random(0)
    assert multiple_choice(rng, "", "", Option("1", "yes"), [Option("1", "no"), Option("2", "no")]) is None


def test_the_package_needs_only_the_standard_library_and_hides_nothing_by_itself():
    """In a graded kernel the scheduler is hidden: to import the checks must not reach for it."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import mini_vllm.grading as g\n"
        "for name in ('core', 'sim', 'roofline', 'grading.reference'):\n"
        "    assert not [m for m in sys.modules if m.startswith('mini_vllm.' + name)]\n"
        "[repr(g.quiz(seed)) for seed in range(3)]\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


# --- the right answers, by another road -----------------------------------------------------------------------


def situation_numbers(text: str, pattern: str) -> list[int]:
    return [int(number) for number in re.search(pattern, text).groups()]


def test_block_tables_by_hand():
    """Read the printed situation as a learner would, and compute."""
    kinds = set()
    for seed in range(300):
        question = asking.draw("block tables", seed)
        given, asks = question.situation, question.asks
        right = question.options[question.right].text
        size = situation_numbers(given, r"Blocks of (\d+) tokens")[0]
        tables = {n: (int(t), json.loads(b)) for n, t, b in re.findall(r"(?m)^([ABC]) +(\d+)   (\[.*\])$", given)}
        if asks.startswith("Which slot"):
            token, name = re.search(r"token (\d+) of ([ABC])", asks).groups()
            mine = tables[name][1][int(token) // size] * size + int(token) % size
        elif "How many new blocks" in asks:
            name, more = re.match(r"([ABC]) computes (\d+) more", asks).groups()
            tokens, table = tables[name]
            mine = 0
            while (len(table) + mine) * size < tokens + int(more):
                mine += 1
        elif "gives its blocks back" in asks:
            mine = f"block {tables[re.search('([ABC]) finishes', asks)[1]][1][-1]}"
        else:
            mine = sum(len(table) * size - tokens for tokens, table in tables.values())
        kinds.add(asks.split()[-1])
        assert right == str(mine), (given, asks)
    assert len(kinds) == 4


def test_the_rule_in_words_plans_what_the_real_scheduler_plans():
    for seed in range(60):
        run = schedules.draw_run(random.Random(seed))
        for index, record in enumerate(run.trace.steps):
            assert schedules.plan(*run.before(index), run.config) == schedules.as_text(record["scheduled"])


def test_reasons_and_victims_hold():
    seen = set()
    for seed in range(400):
        rng = random.Random(seed)
        question = schedules.ask_blocked(rng)
        if question:
            text, right = question.situation, question.options[question.right].text
            budget, seqs, size = situation_numbers(text, r"Token budget (\d+), max_num_seqs (\d+). Blocks of (\d+)")
            running = re.search(r"running +(.+)", text)[1].split()
            spent = sum(int(n) for n in re.findall(r":(\d+)", re.search(r"(?m)^  plan +(.+)", text)[1]))
            head, tokens = re.search(r"queue +(\w): (\d+) tokens", text).groups()
            free = situation_numbers(text, r"free +(\d+) blocks")[0]
            if len(running) >= seqs:
                mine = "all places are taken (max_num_seqs)"
            elif spent >= budget:
                mine = "the token budget is spent"
            else:
                assert -(-int(tokens) // size) > free
                mine = "its KV blocks are not free"
            seen.add(mine)
            assert right == mine and f"Why is {head}," in question.asks
        question = schedules.ask_victim(rng)
        if question:
            rows = re.findall(r"(?m)^  (\w) +(\d+) tokens computed", question.situation)
            assert question.options[question.right].text == f"{rows[-1][0]}, {rows[-1][1]} tokens"
            seen.add("victim")
    assert len(seen) == 4


def test_roofline_by_hand():
    machine = roofline.HardwareSpec("hand", {"bfloat16": 100e12}, 1e12, 80e9, "a test")
    # 7 billion weights in bf16 are 14 GB: 14 ms to read; 14 GFLOP a token: 200 of them take 28 ms.
    time = roofline.step_time(machine, 7e9, 200)
    assert (time.memory_ms, time.compute_ms, time.bound) == (pytest.approx(14), pytest.approx(28), "compute")


def test_roofline_questions_from_their_own_text():
    """Read the printed numbers as a learner would, and compute."""
    kinds = set()
    for seed in range(300):
        question = asking.draw("roofline", seed)
        right = question.options[question.right].text
        numbers = re.search(r": ([\d,.]+) TFLOP/s in bf16 at most, ([\d.]+) TB/s", question.situation).groups()
        peak, traffic = (float(number.replace(",", "")) for number in numbers)
        if intensity := re.search(r"does ([\d,]+) FLOP for each byte", question.asks):
            reach = float(intensity[1].replace(",", "")) * traffic
            assert right == f"{'memory' if reach < peak else 'compute'}-bound, {min(reach, peak):,.5g} TFLOP/s"
        elif tokens := re.search(r"computes ([\d,]+) token", question.asks):
            billions = int(re.search(r"(\d+) billion", question.situation)[1])
            read, compute = 2 * billions / traffic, 2 * billions * int(tokens[1].replace(",", "")) / peak
            bound, ms = re.match(r"(\w+)-bound, ([\d,.]+) ms", right).groups()
            assert bound == ("memory" if read > compute else "compute")
            assert float(ms.replace(",", "")) == pytest.approx(max(read, compute), rel=0.01)
        else:
            assert float(right.removeprefix("about ").replace(",", "")) == pytest.approx(peak / traffic, abs=1)
        kinds.add(question.asks[:9])
    assert len(kinds) == 3


def test_first_tokens_are_those_of_the_trace_by_a_plain_loop():
    for seed in range(200):
        question = schedules.ask_first_token(random.Random(seed))
        if not question:
            continue
        budget, seqs = situation_numbers(question.situation, r"Token budget (\d+), max_num_seqs (\d+)")
        rows = re.findall(r"(?m)^  (\w) +(\d+) +(\d+) +(\d+)$", question.situation)
        to_come = [(n, int(arrives), int(prompt), int(output)) for n, arrives, prompt, output in rows]
        name = re.search(r"does (\w) emit", question.asks)[1]
        running, waiting, step, first = [], [], 0, {}
        while to_come or waiting or running:
            waiting += [[n, p, o] for n, a, p, o in to_come if a == step]
            to_come = [r for r in to_come if r[1] != step]
            left, advanced = budget, []
            for request in list(running):
                piece = min(request[1], left)
                left -= piece
                advanced.append((request, piece))
            while waiting and left and len(running) < seqs:
                request = waiting.pop(0)
                running.append(request)
                piece = min(request[1], left)
                left -= piece
                advanced.append((request, piece))
            for request, piece in advanced:
                request[1] -= piece
                if request[1] == 0 and piece:
                    first.setdefault(request[0], step)
                    request[1], request[2] = 1, request[2] - 1
            running = [r for r in running if r[2] > 0]
            step += 1
        assert question.options[question.right].text == f"step {first[name]}"


def test_pools_are_scattered_and_kept_right():
    scattered = 0
    for seed in range(50):
        pool = block_tables.draw_pool(random.Random(seed))
        pool.manager.check_integrity()
        scattered += any(b != a + 1 for n in "ABC" for a, b in zip(pool.table(n), pool.table(n)[1:], strict=False))
    assert scattered > 25


# --- prefix cache: the same by plain texts, without a pool --------------------------------------------------------


def play(rows: list[tuple[str, str, str]]) -> tuple[list[int], dict[int, str], dict[str, list[int]]]:
    """Free queue, block -> the whole text up to its end, and tables, after requests (name, prompt, now)."""
    queue, texts, tables = list(range(1, prefix_cache.NUM_BLOCKS + 1)), {}, {}
    for name, prompt, now in rows:
        ends = [i + 1 for i, letter in enumerate(prompt) if letter.isupper()]
        table = []
        for end in ends if len(ends) < len(prompt) else ends[:-1]:
            held = [block for block, text in texts.items() if text == prompt[:end]]
            if not held:
                break
            table.append(held[0])
            if held[0] in queue:
                queue.remove(held[0])
        fresh = [queue.pop(0) for _ in range(len(ends) + (len(ends) < len(prompt)) - len(table))]
        for block in fresh:
            texts.pop(block, None)
        for block, end in list(zip([*table, *fresh], ends, strict=False))[len(table) :]:
            texts[block] = prompt[:end]
        tables[name] = [*table, *fresh]
        if now == "is done":
            others = {block for other, mine in tables.items() if other != name for block in mine}
            for block in reversed(tables.pop(name)):
                if block not in others:
                    queue.insert(len(queue) if block in texts else 0, block)
    return queue, texts, tables


def test_prefix_cache_questions_are_right_by_plain_texts():
    kinds = set()
    for seed in range(400):
        question = asking.draw("prefix cache", seed)
        shown = re.findall(r"^([A-D]) +(\S+) +(is done|runs)$", question.situation, re.MULTILINE)
        queue, _, _ = play(shown)
        assert re.findall(r"(\d+)\(", question.situation) == [str(block) for block in queue]
        said = question.options[question.right].text
        if found := re.search(r"the prompt (\w+)\. How many of its (\d+) tokens does it find", question.asks):
            before = {block for block, text in play(shown)[1].items()}
            _, _, tables = play([*shown, ("D", found[1], "runs")])
            texts = play(shown)[1]
            hits = [b for b, end in zip(tables["D"], range(1, 9), strict=False) if b in before
                    and texts[b] == found[1][:end]]  # fmt: skip
            kinds.add("found")
            assert said == str(4 * len(hits)), question
        elif again := re.search(r"The prompt of \w, (\w+), is sent once more\. How many of its (\d+)", question.asks):
            kinds.add("again")
            full = sum(letter.isupper() for letter in again[1])
            tail = len(again[1]) - full
            assert said == str(tail or 4) and int(again[2]) == 4 * full + tail
        elif new := re.search(r"D comes with (\d+) tokens that nobody", question.asks):
            kinds.add("taken")
            assert said == ", ".join(map(str, queue[: int(new[1]) // 4]))
        else:
            kinds.add("owners")
            prompt = re.search(r"with the prompt (\w+) and enters", question.asks)[1]
            _, _, tables = play([*shown, ("D", prompt, "runs")])
            assert said == str(sum(tables["D"][0] in table for table in tables.values()))
    assert len(kinds) == 4
