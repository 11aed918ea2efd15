"""From a dataset's raw files to prepared text, in passes over it that its YAML's steps make (plan.py, engine.py).

Between two passes a split is a file a language (corpus.py), or several one after the other where it comes from several
sources. Steps that look at one line or one pair at a time are fused and run on all cores (engine.py); the others see
all of the text (filter.py, learn.py). A pass reads and writes some lines at a time, so memory does not grow with the
corpus, but for two things: 100 bytes a line while duplicates are looked for, and the word types while BPE is learnt. A
pass is complete or is made anew, whatever interrupts a run.
"""
