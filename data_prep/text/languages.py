"""Language codes: the table of languages and scripts, for the rules of steps and for scores.

A code has two or three letters (ISO 639), and may be followed by a script or a country: ``fr``, ``fra_Latn``,
``zh-Hant``, ``pt_BR``. Rules use a code that the table lacks as it is, and its script is the one that follows it, if
any.
"""

import re

_CODES = {
    "Latn": """af/afr ca/cat cs/ces/cze/cz cy/cym/wel da/dan de/deu/ger en/eng es/spa et/est/ekk eu/eus/baq fi/fin
        fr/fra/fre ga/gle gl/glg hr/hrv hu/hun id/ind is/isl/ice it/ita lt/lit lv/lav/lvs ms/msa/may/zsm mt/mlt
        nl/nld/dut no/nor/nb/nob/nn/nno pl/pol pt/por ro/ron/rum sk/slk/slo sl/slv so/som sq/sqi/alb/als sv/swe
        sw/swa/swh tdt tl/tgl/fil tr/tur vi/vie""",
    "Latn Cyrl": "az/aze/azj bs/bos sr/srp tk/tuk uz/uzb/uzn",
    "Cyrl": "be/bel bg/bul kk/kaz ky/kir mk/mkd/mac mn/mon/khk ru/rus tg/tgk tt/tat uk/ukr",
    "Arab": "ar/ara/arb ckb fa/fas/per/pes/prs ps/pus/pbt sd/snd ug/uig ur/urd",
    "Armn": "hy/hye/arm",
    "Beng": "as/asm bn/ben",
    "Beng Mtei": "mni",
    "Deva": "hi/hin mr/mar ne/nep/npi sa/san",
    "Ethi": "am/amh ti/tir",
    "Geor": "ka/kat/geo",
    "Grek": "el/ell/gre",
    "Gujr": "gu/guj",
    "Guru": "pa/pan",
    "Hani": "zh/zho/chi/cmn yue wuu cdo cjy cpx czh czo gan hak hsn lzh mnp nan",
    "Hebr": "he/heb/iw yi/yid/ydd",
    "Jpan": "ja/jpn",
    "Khmr": "km/khm",
    "Knda": "kn/kan",
    "Kore": "ko/kor",
    "Laoo": "lo/lao",
    "Mlym": "ml/mal",
    "Mymr": "my/mya/bur shn",
    "Orya": "or/ori/ory",
    "Sinh": "si/sin",
    "Taml": "ta/tam",
    "Telu": "te/tel",
    "Thai": "th/tha",
    "Tibt": "bo/bod/tib dz/dzo",
}
"""Codes of each language by its scripts (ISO 15924). The first code of a language is the one that rules use."""

CHINESE = frozenset({"Hani", "Hans", "Hant", "Hanb", "Bopo"})
JAPANESE = frozenset({"Jpan", "Hira", "Kana", "Hrkt"})
KOREAN = frozenset({"Kore", "Hang"})
"""Scripts of these three languages (ISO 15924)."""
VARIANTS = {
    **dict.fromkeys(CHINESE, "Hani"),
    **dict.fromkeys(JAPANESE, "Jpan"),
    **dict.fromkeys(KOREAN, "Kore"),
    **{"Aran": "Arab", "Cyrs": "Cyrl", "Latf": "Latn", "Latg": "Latn"},
}
"""Scripts that are a part or a variant of another one, with the code of that one in the table."""

UNSPACED = {
    **dict.fromkeys(("Bopo", "Hani", "Hira", "Kana", "Yiii"), 2),
    **dict.fromkeys(("Khmr", "Laoo", "Mymr", "Thai", "Tibt"), 4),
    **dict.fromkeys(("Bali", "Batk", "Cham", "Java", "Lana", "Tale", "Talu", "Tavt"), 4),
}
"""Living scripts without spaces between words, with the number of letters and marks that count as one word.

A word has two characters in Chinese and Japanese, and four or five letters with their marks in the others, on average.
"""

PUBLISHED = ("en", "de", "fr", "zh")

SCRIPTS = tuple(dict.fromkeys(script for scripts in _CODES for script in scripts.split()))
"""The scripts in the table."""
_KNOWN = {*SCRIPTS, *UNSPACED, *VARIANTS}

_TABLE = {
    code: (codes.split("/")[0], tuple(scripts.split()))
    for scripts, languages in _CODES.items()
    for codes in languages.split()
    for code in codes.split("/")
}


def rules_of(language: str) -> str:
    """Return the code that rules use for a language: ``fr`` for ``fra_Latn``, ``zh`` for ``zho_Hant`` and ``zh_CN``."""
    code = _parts(language)[0]
    return _TABLE.get(code, (code, ()))[0]


def scripts_of(language: str) -> tuple[str, ...]:
    """Return the scripts of a language (ISO 15924): the one that its code names, or else those in the table, if any."""
    code, *rest = _parts(language)
    named = (part.title() for part in rest if part.title() in _KNOWN)
    return tuple(named) or _TABLE.get(code, (code, ()))[1]


def codes_of(script: str) -> list[str]:
    """List the languages in the table that use a script, by the codes that rules use."""
    return list(dict.fromkeys(rules for rules, scripts in _TABLE.values() if script in scripts))


def is_published(language: str) -> bool:
    """Return True for a language with published scores, whose text is prepared exactly as for these scores.

    In all other languages, words keep their marks and joiners, which Moses's scripts would split off.
    """
    return rules_of(language) in PUBLISHED


def _parts(language: str) -> list[str]:
    return re.split("[-_]", language.lower())
