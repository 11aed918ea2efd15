"""The stepwise length penalty of section 5.2."""

import math


class LengthPenalty:
    """lp(Y) = ((5 + |Y|) / 6) ** alpha, of Wu et al. (2016), section 7; |Y| counts the end.

    fairseq divides a score by ``length ** len_penalty``; with this as len_penalty it divides by lp.

    Stepwise, a hypothesis Y has the score s(Y) = log P(Y | X) / lp(Y), ended or not. At each step the candidates of the
    step and all hypotheses that ended before stand in one order by s. The beam is the first places of this order. A
    candidate without a place is dropped; one with a place ends or goes on. The search of a sentence is over when no
    candidate goes on. Its result is the best hypotheses that ended. ``ops.search_step`` does so.

    Section 5.2 says no more than "a stepwise length penalty (Paulus et al., 2017; Fan et al., 2017; Wu et al., 2016)".
    The formula is that of the third. The candidates of one step are equally long, so a penalty at every step can only
    tell them from shorter hypotheses that have ended; hence the common order. Another reading would divide the running
    sum itself, s_t = (s_(t-1) + log p(y_t)) / lp(t). Then the penalties of all steps multiply, and the score is not the
    one that Wu et al. define.

    fairseq's --lenpen has no part in its search. The first hypotheses to end are the result, and only their order is by
    log P(Y | X) / |Y| ** lenpen.
    """

    def __init__(self, alpha: float) -> None:
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"--stepwise-length-penalty is {alpha}, expected a number from 0 on")
        self.alpha = alpha

    def __rpow__(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha
