"""From a dataset's raw files to prepared text, in steps that its YAML lists.

Text flows in shards of up to 50,000 lines (shards.py). Steps that look at one line or one pair at a time are fused and
run shard by shard on all cores (linewise.py); the others (split, deduplicate, learn BPE) see all of it (plan.py).
Memory does not grow with the corpus, but for two things: one byte a line while duplicates are looked for, and the word
types while BPE is learnt. Every shard is written whole or not at all and never made twice, whatever interrupts a run.
"""
