"""The stepwise length penalty of section 5.2."""

import math


class LengthPenalty:
    """lp(Y) = ((5 + |Y|) / 6) ** alpha, of Wu et al. (2016), section 7; |Y| counts the end.

    fairseq divides a score by ``length ** len_penalty``. If ``len_penalty`` is an object of this class, it divides by
    lp.

    With the stepwise penalty, a hypothesis Y, finished or not, has the score s(Y) = log P(Y | X) / lp(Y). Each step
    ranks its candidates and all hypotheses that have already finished together, by s. The beam is the best of them. A
    candidate outside the beam is dropped; a candidate in the beam ends or continues. The search of a sentence is over
    when no candidate continues. Its result is the best finished hypotheses. ``ops.search_step`` implements this.

    Section 5.2 says only "a stepwise length penalty (Paulus et al., 2017; Fan et al., 2017; Wu et al., 2016)". The
    formula is from the third of these papers. All candidates of a step have the same length, so a penalty at every step
    matters only between them and shorter, finished hypotheses; hence the joint ranking. Another reading would divide
    the running sum itself, s_t = (s_(t-1) + log p(y_t)) / lp(t). Then the penalties of all steps would multiply, and
    the score would not be the one that Wu et al. define.

    fairseq's --lenpen does not influence its search. The result is the first hypotheses to end, and only their order
    depends on log P(Y | X) / |Y| ** lenpen.
    """

    def __init__(self, alpha: float) -> None:
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"--stepwise-length-penalty is {alpha}, expected a number from 0 on")
        self.alpha = alpha

    def __rpow__(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha
