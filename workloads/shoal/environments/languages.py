"""In which language a text is, well enough for an instruction to answer in one: by its script, and where languages share one by common words.

Pure, and the same on every machine, which language models of other libraries are not. Called by `instruction_checks`.
"""

# ruff: noqa: RUF001 (words of other alphabets are meant)

import re
import unicodedata
from collections import Counter

SCRIPTS: dict[str, str] = {
    "th": "THAI", "ko": "HANGUL", "he": "HEBREW", "ta": "TAMIL", "te": "TELUGU", "kn": "KANNADA", "ml": "MALAYALAM", "pa": "GURMUKHI",
    "gu": "GUJARATI", "bn": "BENGALI", "ja": "HIRAGANA",
}  # fmt: skip
"""Languages that have a script to themselves among those of IFEval, by the first word of its letters' Unicode names."""
JAPANESE = ("HIRAGANA", "KATAKANA", "CJK")

WORDS: dict[str, dict[str, str]] = {
    "LATIN": {
        "en": "the of and to in is that it for you with are be this on not",
        "es": "el los las que del para una con por es se como más su pero y en",
        "pt": "o os as que do da para uma com por é não como mais em um ao são e",
        "fr": "le les des et est que pour une dans qui sur pas avec vous il ce du au",
        "de": "der die das und ist nicht ein eine zu den mit auf für von sich sie es im",
        "it": "il di che è per una con non del della sono gli un la nel alla anche più",
        "pl": "i w na z się nie jest do że to o jak co dla od przez są oraz",
        "vi": "và là của có không được cho một các những trong với người này để khi tôi bạn",
        "fi": "ja on ei että se joka mutta myös hän ovat kun niin kuin voi sen tai olla ole",
        "sw": "na ya wa kwa ni katika la za hii kuwa cha kama hiyo yake watu pia au lakini",
    },
    "CYRILLIC": {
        "ru": "и в не на что это как с по он она из для все был но ы от",
        "uk": "і в не на що це як з та до у він вона для від але є ї",
        "bg": "и в не на че това как с по той тя за от да се са е ще",
    },
    "DEVANAGARI": {
        "hi": "है हैं का की के में और को से यह नहीं एक पर कि था लिए",
        "mr": "आहे आहेत आणि च्या मध्ये हे ही तो या नाही एक पण की होते साठी",
        "ne": "छ छन् र को मा हो यो पनि लाई एक गर्न भएको थियो हुन्छ लागि",
    },
    "ARABIC": {
        "ar": "في من على إلى أن هذا هذه التي الذي لا ما و كان مع عن هو هي",
        "fa": "در از به که این را است با برای آن و می های یک بود شد شما",
        "ur": "ہے میں کے کی کا اور سے کو یہ نہیں ایک پر ہیں تھا کہ بھی",
    },
}  # fmt: skip
"""Languages that share a script, each with words of its own that hardly any text of it is without."""

LEAST_OF_SCRIPT = 0.6
"""Share of a text's letters that must be of the language's script: names and terms may be in another."""


def is_written_in(language: str, text: str) -> bool:
    """Whether a text is in `language` (ISO 639-1). A text without letters is in none. KeyError for a language that is not known here."""
    shared = next((script for script, languages in WORDS.items() if language in languages), None)
    if shared is None and language not in SCRIPTS:
        raise KeyError(language)
    letters = Counter(_script(character) for character in text if character.isalpha())
    wanted = {shared} if shared is not None else set(JAPANESE) if language == "ja" else {SCRIPTS[language]}
    if not letters or sum(letters[script] for script in wanted) < LEAST_OF_SCRIPT * letters.total():
        return False
    if shared is None:
        return language != "ja" or letters["HIRAGANA"] > 0
    said = Counter(re.findall(r"[^\W\d_]+(?:[\u0900-\u0963][^\W\d_]*)*", unicodedata.normalize("NFC", text.lower())))
    words = {other: sum(said[word] for word in own.split()) for other, own in WORDS[shared].items()}
    return words[language] == max(words.values()) and (words[language] > 0 or (language == "en" and said.total() < 8))


def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0]
