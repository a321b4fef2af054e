"""Right answers and known mistakes of chapter 7. Never importable in a graded kernel. Chapter 7."""

from typing import Any

from mini_vllm.core.prefix_cache import extend_hashes
from mini_vllm.grading.reference.ch07_variants import entries_with, found_with, names_with, warm_first_with
from mini_vllm.grading.step_traces import run_scheduler
from mini_vllm.request import Request

BEYOND = 2**32  # token ids that no prompt holds


def found() -> dict:
    return found_with()


def block_names(requests: list[tuple], block_size: int) -> list[list[int]]:
    """By the hashes of the real cache, with a token of its own for every image, which no prompt can hold."""
    numbers: dict[bytes, int] = {}
    pictures: dict[str, int] = {}
    named = []
    for tokens, salt, adapter, images in requests:
        line = iter(images)
        seen = [token or BEYOND + pictures.setdefault(next(line), len(pictures)) for token in tokens]
        request = Request("r", seen, cache_salt=salt, adapter=adapter)
        names = extend_hashes(request, block_size, len(seen) // block_size)
        named.append([numbers.setdefault(name, len(numbers)) for name in names])
    return named


def warm_first(requests: list, config: Any, patience: int) -> list[dict]:
    return run_scheduler(warm_first_with(patience), requests, config)


def enter(prompts: list[list[int]], block_size: int) -> list[list[int]]:
    return entries_with(prompts, block_size)


ANSWERS = {
    "c07-e1": found,
    "c07-e2": block_names,
    "c07-e3": warm_first,
    "c07-b1": enter,
}


def _warm(**mistakes: Any):
    return lambda requests, config, patience: run_scheduler(warm_first_with(patience, **mistakes), requests, config)


def _entry(**mistakes: Any):
    return lambda prompts, size: entries_with(prompts, size, **mistakes)


def _names(**mistakes: Any):
    return lambda requests, size: names_with(requests, size, **mistakes)


MISTAKES = {
    "c07-e1": [
        (
            "G finds all of its blocks there. One token at least must be computed, and blocks are shared whole, so its "
            "last block is computed again.",
            lambda: found_with(most=lambda num_tokens: num_tokens // 4),
        ),
        (
            "Blocks go back with the head of a chain first there, so the start of a prompt is evicted before its end. "
            "The tail goes first.",
            lambda: found_with(head_first=True),
        ),
        (
            "A block without a name goes to the tail of the queue there. It is worth nothing, so it goes to the head "
            "and is taken first.",
            lambda: found_with(unnamed_last=True),
        ),
        (
            "Nothing is found there: the cached blocks are in the free queue, and can be.",
            lambda: found_with(caching=False),
        ),
    ],
    "c07-e2": [
        (
            "That names a block by its own tokens alone. What stands before it changes its KV: put the name of the "
            "block before into it.",
            _names(before=lambda blocks: None),
        ),
        (
            "That looks one block back and no further: blocks with the same two last blocks share a name, whatever "
            "stands before those. Put the *name* of the block before into it, not its tokens.",
            _names(before=lambda blocks: blocks[-2:-1]),
        ),
        ("The salt is in no name: one tenant finds another's blocks.", _names(root=lambda salt, adapter: adapter)),
        (
            "The adapter is in no name: KV that was computed with other weights is found.",
            _names(root=lambda salt, adapter: salt),
        ),
        (
            "Salt and adapter are joined without saying which is which: salt 'x' without an adapter has the name of "
            "adapter 'x' without a salt. Keep them apart, as a pair.",
            _names(root=lambda salt, adapter: (salt or "") + (adapter or "")),
        ),
        *(
            (
                f"Salt and adapter are joined by a sign that may stand in them: 'a{sign}a' and 'a' give the same text "
                f"as 'a' and 'a{sign}a'. Keep them apart, as a pair.",
                _names(root=lambda salt, adapter, sign=sign: f"{salt or ''}{sign}{adapter or ''}"),
            )
            for sign in ("/", "|", ":", "::", "-")
        ),
        (
            "The images are in no name: to the model the tokens are the same, and the pictures are not.",
            _names(shown=lambda image: 0),
        ),
        (
            "A block with k pictures is named by the first k of the prompt there. Go on where the one before ended.",
            _names(pictures=lambda images, before, k: images[:k]),
        ),
        (
            "The pictures of a block are sorted there: a cat before a dog has the name of a dog before a cat.",
            _names(pictures=lambda images, before, k: sorted(images[before : before + k])),
        ),
        (
            "Where there is a salt, the adapter is not in the name. Both belong into it, as a pair.",
            _names(root=lambda salt, adapter: salt or adapter),
        ),
        *(
            (
                "Salt and adapter are put into one text there. Whatever stands between them, and the word None, may "
                "stand in a salt, too. Keep them apart, as a pair.",
                _names(root=lambda salt, adapter, sign=sign: f"{salt}{sign}{adapter}"),
            )
            for sign in ("|", "/", ":", "::", "-", "")
        ),
        (
            "None is written as 'None' there, so no salt and a salt of that name are one.",
            _names(root=lambda salt, adapter: (str(salt), str(adapter))),
        ),
        (
            "The tokens of a block are written into one text without a sign between them: 1, 23 and 12, 3 give the "
            "same. Put the block as a tuple into the name.",
            _names(written=lambda block: "".join(map(str, block))),
        ),
        (
            "A picture is written as a token is: a picture called '6' cannot be told from token 6. Mark which it is.",
            _names(shown=str, written=lambda block: [str(token) for token in block]),
        ),
        (
            "Every block has a name of its own there, so nothing is ever found: equal KV must have equal names.",
            _names(own_names=True),
        ),
        (
            "All images of the prompt are in every name: blocks before an image hold the same KV whatever the image "
            "shows, and are not found any more.",
            _names(all_images=True),
        ),
        (
            "The length of the whole prompt is in every name: a longer prompt that begins alike finds nothing.",
            _names(whole_prompt=True),
        ),
        ("The last block has a name although it is not full. It will still change.", _names(partial=True)),
    ],
    "c07-e3": [
        (
            "That is the page's scheduler as it is: the head of the line always goes first.",
            _warm(worth=lambda self, found, request: 0),
        ),
        (
            "Of those who find equally much, the last in the line goes first. It is the one that came first.",
            _warm(last_of_equals=True),
        ),
        (
            "Those who have least left to compute go first there. Asked for is who finds most.",
            _warm(worth=lambda self, found, request: found * 4 - request.num_tokens),
        ),
        (
            "What each of them finds is looked up once a step there. Whoever enters leaves its blocks in the cache at "
            "once, so look again before every admission.",
            _warm(looks_once=True),
        ),
        (
            "Nobody's patience ever ends there: whoever finds nothing waits as long as warm prompts keep coming.",
            _warm(is_old=lambda self, request: False),
        ),
        (
            "One step of waiting too few: in the step in which it comes, a request has waited 0 steps.",
            _warm(counts_from_one=True),
        ),
        (
            "One step of waiting too many: whoever has waited `patience` steps goes first, not only from the next on.",
            _warm(beyond=True),
        ),
        *(
            ("If the chosen one must wait, others are tried there. It keeps its turn: return its reason.", warm)
            for warm in (
                _warm(skips=True),
                _warm(skips=True, is_old=lambda self, request: False),
                _warm(sorts_once=True),
                _warm(sorts_once=True, is_old=lambda self, request: False),
            )
        ),
        (
            "Waiting is counted at every try there. Count at the beginning of schedule_waiting: once a step.",
            _warm(counts_tries=True),
        ),
        (
            "The token budget is asked for all known tokens there. What is found need not be computed.",
            _warm(whole_prompt=True),
        ),
        (
            "The watermark is missing: while others run, an admission leaves config.watermark_blocks free, as on the "
            "page.",
            _warm(no_watermark=True),
        ),
        (
            "The token budget is asked for all known tokens, and the watermark is missing: both are on the page.",
            _warm(whole_prompt=True, no_watermark=True),
        ),
    ],
    "c07-b1": [
        ("That is the function as given.", _entry(most=lambda found, known, size: found)),
        (
            "That is the second patch of the incident: a full hit starts at the last token, in the middle of a block "
            "whose other slots nobody fills.",
            _entry(
                most=lambda found, known, size: found,
                start=lambda start, known: min(start, known - 1),
            ),
        ),
        (
            "That is the first patch of the incident: one token is computed after a full hit, but the start still "
            "stands behind the prompt, and the piece ends one token beyond it.",
            _entry(most=lambda found, known, size: found, num_new=lambda start, known: max(1, known - start)),
        ),
        (
            "The last block that was found is always given back, also where a tail is left to compute. Only a full hit "
            "must.",
            _entry(most=lambda found, known, size: max(0, found - 1)),
        ),
        (
            "Whenever all full blocks are found, one is given back, also where a tail is left to compute. A prompt "
            "with a tail may find all its full blocks.",
            _entry(most=lambda found, known, size: min(found, max(0, known // size - 1))),
        ),
        ("Nothing is put into the cache there, so nothing is ever found.", _entry(cached=lambda known, size: 0)),
        (
            "num_new is the whole prompt there. What stands before the start is not computed again.",
            _entry(num_new=lambda start, known: known),
        ),
        (
            "A full hit counts as no hit there: all is computed again. One block is enough.",
            _entry(most=lambda found, known, size: 0 if found * size == known else found),
        ),
        (
            "Whenever the length is a multiple of the block size a block is given back, even if the hit was not full.",
            _entry(most=lambda found, known, size: max(0, found - 1) if known % size == 0 else found),
        ),
        (
            "What may be found is right now, but the last block of a prompt without a tail is not cached any more: "
            "a longer prompt that begins alike finds one block less.",
            _entry(cached=lambda known, size: (known - 1) // size),
        ),
        (
            "The names are put into the cache before they are looked up, so every prompt finds itself.",
            _entry(cached_first=True),
        ),
    ],
}
