"""Known mistakes of c02-e1, the intensity of a decode step. Never importable in a graded kernel. Chapter 2."""

from mini_vllm.grading.reference.ch02_variants import intensity_with

INTENSITY_MISTAKES = [
    (
        "That takes heads for kv_heads everywhere, as if no head were shared. Query heads share heads of keys and "
        "values: the matrices K and V, and the KV of a token, have kv_heads of them.",
        lambda c, t, b: intensity_with(c | {"kv_heads": c["heads"]}, t, b),
    ),
    (
        "The matrices are right, but the KV of a token is counted with heads. Several query heads share one head "
        "of keys and values: kv_heads are kept.",
        lambda c, t, b: intensity_with(c, t, b, kv_heads="heads"),
    ),
    (
        "That reads one tensor of KV a token. K and V are two: a key and a value for every KV head of every layer.",
        lambda c, t, b: intensity_with(c, t, b, kv_tensors=1),
    ),
    (
        "The FLOP of attention are missing: a new token looks at `context` tokens, in every layer, with every "
        "query head.",
        lambda c, t, b: intensity_with(c, t, b, looks=None),
    ),
    (
        "Looking at a token is counted with half its FLOP. There is a key and a value, and for every number of "
        "both a multiplication and an addition.",
        lambda c, t, b: intensity_with(c, t, b, look_flop=2),
    ),
    (
        "The embedding table is counted as read. It is looked up, one row a token; the head alone is read in full.",
        lambda c, t, b: intensity_with(c, t, b, embedding_read=True),
    ),
    (
        "The output head is missing, FLOP and bytes. Every decode draws a token: the step computes and reads it.",
        lambda c, t, b: intensity_with(c, t, b, head=False),
    ),
    (
        "That is the intensity of a batch of 1, whatever `batch` is: it is forgotten, or the weights are counted "
        "once for every request. They are read once a step, however many requests are in it.",
        lambda c, t, b: intensity_with(c, t, b, weights_read=b),
    ),
    ("That takes 4 bytes a number. 16 bits are 2 bytes.", lambda c, t, b: intensity_with(c, t, b, item=4)),
    (
        "A weight costs 2 FLOP a token, one multiplication and one addition; this counts 1.",
        lambda c, t, b: intensity_with(c, t, b, flop_per_weight=1),
    ),
    (
        "The FLOP of attention are counted with kv_heads. Sharing saves bytes, not arithmetic: every query head "
        "looks for itself.",
        lambda c, t, b: intensity_with(c, t, b, looks="kv_heads"),
    ),
    (
        "The KV is counted for one request. Nobody shares it: together they read `batch` times `context` tokens.",
        lambda c, t, b: intensity_with(c, t, b, kv_requests=1),
    ),
    (
        "The FLOP are those of one request. Each of the `batch` requests computes a token of its own.",
        lambda c, t, b: intensity_with(c, t, b) / b,
    ),
    (
        "That counts two matrices of the feed-forward part. There are three: gate, up and down.",
        lambda c, t, b: intensity_with(c, t, b, mlp_matrices=2),
    ),
    ("That is bytes per FLOP, the other way round.", lambda c, t, b: 1 / intensity_with(c, t, b)),
    ("That takes 1 byte a number. 16 bits are 2 bytes.", lambda c, t, b: intensity_with(c, t, b, item=1)),
    (
        "That looks at context + 1 tokens. `context` counts the new token already.",
        lambda c, t, b: intensity_with(c, t + 1, b),
    ),
    (
        "The output head is counted in every layer. There is one, behind the last layer.",
        lambda c, t, b: intensity_with(c, t, b, head=c["layers"]),
    ),
    (
        "The matrices of one layer are counted, not those of all layers.",
        lambda c, t, b: intensity_with(c, t, b, matrix_layers=1),
    ),
    (
        "Attention's look at the context is missing, FLOP and bytes: only the matrices are counted.",
        lambda c, t, b: intensity_with(c, t, b, looks=None, kv_tensors=0),
    ),
    (
        "Attention's own matrices are missing: Q, K, V and output of every layer.",
        lambda c, t, b: intensity_with(c, t, b, attention_matrices=0),
    ),
]
