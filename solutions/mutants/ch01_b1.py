"""Wrong answers to c01-b1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 1."""

from tools.mutant_table import Mutant

MUTANTS = {
    "b1-rows-only": Mutant(
        "c01-b1",
        "joins by rows, but serves unfinished prompts",
        "whose prompt is not through is sampled too",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return dict(zip(rows, sampled))
""",
    ),
    "b1-prompts-only": Mutant(
        "c01-b1",
        "leaves out unfinished prompts, but joins by the plan",
        "in the plan's order",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return {name: token for name, token in zip(plan, sampled) if not prompt_left[name]}
""",
    ),
    "b1-none-for-nothing": Mutant(
        "c01-b1",
        "sends None to whoever has no token yet",
        "leave out whoever has none",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return {name: token if prompt_left[name] == 0 else None for name, token in zip(rows, sampled)}
""",
    ),
    "b1-sorted-ids": Mutant(
        "c01-b1",
        "sorts the ids, which looks right in a log that starts with A B C",
        "Sorted ids look right only",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    return {name: token for name, token in zip(sorted(plan), sampled) if not prompt_left[name]}
""",
    ),
    "b1-filtered-before-zip": Mutant(
        "c01-b1",
        "takes unfinished prompts out of the rows first, so that all tokens after them move up",
        "every token after them moves up",
        """
# EXERCISE c01-b1
def deliver(plan, rows, sampled, prompt_left):
    ready = [name for name in rows if prompt_left[name] == 0]
    return dict(zip(ready, sampled))
""",
    ),
}
