"""The text of an answer: its normal form, the number in it, and what can be refused at a glance.

Reads strings, returns values; no sympy, no evaluation, linear time. Policies, applied to the gold
answer and to the policy's alike:

- Numbers are exact: 0.5 is 1/2 and 0.\\overline{3} is 1/3, but 0.333333 is not. Thousands may be
  grouped by spaces, or by commas with exactly three digits and no space behind each: `1,000` is a
  number, `1, 000`, `1,00` and the pair `(100,200)` are not. Ordinals (`5^{th}`) are not numbers.
- A unit, a currency sign or the base of a numeral (`27_8`) is dropped where one side has none; two
  different units are different, and no unit is converted.
- A percent sign is a unit or a factor 1/100, whichever fits, where one side has none: 50% is 50
  and is 0.5. Two percentages are compared as they stand.
- A word that the gold answer does not have (other than a known unit) makes an answer wrong: the box
  holds the answer, not a sentence about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 1000
MAX_DIGITS = 400
"""Of one number. Longer ones stall verifiers (report §4.2)."""
MAX_NESTING = 20
"""Of brackets; the parser's time grows steeply with it."""

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2008\u2009\u200a\u202f\u3000\t\n\r", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/", "＋": "+"},
        **{"π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ", "％": "%"},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "≈": r"\approx "},
        **{"²": "^{2}", "³": "^{3}", "，": ",", "∪": r"\cup ", "∈": r"\in "},
        **{"（": "(", "）": ")", "′": "'"},
        **dict.fromkeys("€£¥₹", ""),
    }
)
_SPACING = re.compile(r"(\\\\)|\\[,;: ]|~|\\(?:quad|qquad|thinspace|medspace|enspace)(?![A-Za-z])")
_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits)(?![A-Za-z])|\\[()\[\]!$]|\$"
)
_GROUPING = re.compile(r"(?<=\d)(?<!\d{4})(?:\{,\}|,\\!)(?=\d{3}(?!\d))")
"""LaTeX's ways to set a comma that groups thousands and parts no list."""
_TEXT = re.compile(
    r"\\(?:text(?:bf|rm|it|sf|tt|normal)?|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*"
    r"\{([^{}]*)\}"
)
_REPEATING = re.compile(r"(\d{0,50})\.(\d{0,50})\\(?:overline|bar|dot) ?\{ ?(\d{1,50}) ?\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z(])")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}")
_MATH_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        """pi sqrt sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log exp gcd lcm max min
        mod inf infinity frac dfrac and det arg""",
    )
)
_SHORT_UNITS = {"m": "meter", "s": "second", "g": "gram", "h": "hour", "l": "liter", "L": "liter"}
_UNITS = frozenset(
    re.findall(
        "[a-z]+",
        """cm mm km nm meter metre kilometer kilometre centimeter centimetre millimeter in inch ft foot
        yd yard mile mi kg mg lb lbs gram kilogram milligram pound oz ounce ton tonne ml milliliter
        liter litre gallon quart pint cup sec second min minute hr hour day week month year dollar
        cent euro usd degree deg radian rad unit mph kph per square cubic sq cu""",
    )
)
_EXACT = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:(?P<whole>\d+) ?(?:\\frac\{{(?P<mn>\d+)\}}\{{(?P<md>\d+)\}}"
    rf"| (?P<mn2>\d+)/(?P<md2>\d+))"
    rf"|\\frac\{{(?P<n>-?(?:{_EXACT}))\}}\{{(?P<d>-?(?:{_EXACT}))\}}"
    rf"|(?P<n2>{_EXACT})(?: ?/ ?(?P<d2>\d+))?)"
    r"(?P<rest>.*)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainNumber:
    value: Fraction
    unit: str
    """Words after the number, singular, or empty."""
    is_percent: bool


def clean(text: str) -> str:
    """One spelling for what LaTeX and Unicode spell in several ways; text commands are kept."""
    text = text.translate(_CHARACTERS)
    text = _SPACING.sub(lambda match: match.group(1) or " ", text)
    text = _DROPPED.sub("", _GROUPING.sub("", text)).replace("{,}", ",").replace(r"\%", "%")
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\\frac ?(\d) ?(\d)", r"\\frac{\1}{\2}", text)
    text = _REPEATING.sub(_repeating_decimal, text)
    text = re.sub(r" {2,}", " ", text).strip()
    for _ in range(MAX_NESTING):
        if not (text.startswith("{") and text.endswith("}") and _closes_at_end(text)):
            break
        text = text[1:-1].strip()
    return text.removesuffix(".").strip()


def flatten(cleaned: str) -> str:
    """A cleaned text without text commands, with spaces only where they separate two words, or two
    numbers that would become one (`100, 200`)."""
    text = re.sub(r" {2,}", " ", _TEXT.sub(_unwrap_text, cleaned))
    text = re.sub(r"(?<![0-9A-Za-z.]) (?!(?<=\d, )\d{3}(?!\d))| (?![0-9A-Za-z.\\])", "", text)
    return text.removesuffix(".").strip()


def words(flat: str) -> list[str]:
    """Words of three letters and more that are neither mathematics nor units, in small letters."""
    found = [word.lower() for word in _WORD.findall(_ENVIRONMENT.sub("", flat))]
    return [word for word in found if word not in _MATH_WORDS and _singular(word) not in _UNITS]


def read_number(flat: str, *, with_any_unit: bool = False) -> PlainNumber | None:
    """The number that the whole text is, perhaps with a unit; None for anything else.

    `with_any_unit` takes any words for the unit: right for a gold answer (`10 students`) only.
    """
    match = _NUMBER.fullmatch(flat)
    if match is None or len(flat) > MAX_CHARS or longest_digit_run(flat) > MAX_DIGITS:
        return None
    rest = match["rest"].strip()
    is_percent = rest in ("%", "percent")
    unit = "" if is_percent or not rest else _read_unit(rest, with_any_unit=with_any_unit)
    value = _read_value(match)
    if unit is None or value is None:
        return None
    return PlainNumber(value=value, unit=unit, is_percent=is_percent)


def same_number(gold: PlainNumber, answer: PlainNumber) -> bool:
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.value == answer.value:
        return True
    if gold.is_percent == answer.is_percent:
        return False
    percentage, other = (gold, answer) if gold.is_percent else (answer, gold)
    return percentage.value / 100 == other.value


def fault(flat: str) -> str | None:
    """Why a text can be no final answer whatever it means, or None."""
    if not flat:
        return "the answer is empty"
    if len(flat) > MAX_CHARS:
        return f"the answer has {len(flat)} characters, more than {MAX_CHARS}"
    if longest_digit_run(flat) > MAX_DIGITS:
        return f"a number has more than {MAX_DIGITS} digits"
    if _nesting(flat) > MAX_NESTING:
        return f"brackets are nested deeper than {MAX_NESTING}"
    if re.search(r"(?<![_^\d.])[\d.]+ [\d.]", flat) and read_number(flat) is None:
        return "several numbers side by side"
    return None


def split_unit(cleaned: str) -> tuple[str, str]:
    """A cleaned text and the known unit that ends it as a text command, or an empty string."""
    match = re.search(rf"{_TEXT.pattern}(\^\{{?[23]\}}?)?$", cleaned)
    names = re.findall("[A-Za-z]+", match[1]) if match else []
    names = [_singular(_SHORT_UNITS.get(name, name).lower()) for name in names]
    if match is None or not names or not all(name in _UNITS for name in names):
        return cleaned, ""
    power = re.sub("[{}]", "", match[2] or "")
    return cleaned[: match.start()].strip(), " ".join(names) + power


def longest_digit_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"\d+(?:[, ]\d{3})*", text)), default=0)


def _read_value(match: re.Match[str]) -> Fraction | None:
    denominator = match["d"] or match["d2"] or match["md"] or match["md2"] or "1"
    numerator = match["n"] or match["n2"] or match["mn"] or match["mn2"]
    bottom = _exact(denominator)
    if bottom == 0:
        return None
    value = _exact(numerator) / bottom + int(match["whole"] or 0)
    return -value if match["sign"] == "-" else value


def _exact(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").removesuffix("."))


def _read_unit(rest: str, *, with_any_unit: bool) -> str | None:
    """The unit, singular, `degree` for the sign, the base of a numeral; None when it is no unit."""
    base = re.fullmatch(r"_\{?(\d+)\}?", rest)
    if base is not None:
        return f"base {base[1]}"
    if re.fullmatch(r"\^(?:\{ ?\\circ ?\}|\\circ)", rest):
        return "degree"
    plain = re.fullmatch(r"([A-Za-z]+(?:[ /.]+[A-Za-z]+)*\.?)(?:\^\{?[23]\}?)?", rest)
    if plain is None:
        return None
    names = [_singular(name) for name in re.findall("[A-Za-z]+", plain[1].lower())]
    known = all(name in _UNITS for name in names)
    if not known and (not with_any_unit or min(map(len, names)) < 3):
        return None
    return " ".join(names) + rest[len(plain[1]) :].replace("{", "").replace("}", "")


def _singular(word: str) -> str:
    irregular = {"inches": "inch", "feet": "foot"}
    return irregular.get(word, word[:-1] if len(word) > 3 and word.endswith("s") else word)


def _repeating_decimal(match: re.Match[str]) -> str:
    """`0.1\\overline{6}` as the fraction that it is."""
    whole, start, period = match.groups()
    cycles = 10 ** len(period) - 1
    value = Fraction(int(f"0{whole}{start}") * cycles + int(period), cycles * 10 ** len(start))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _unwrap_text(match: re.Match[str]) -> str:
    inner = match[1].strip()
    return f" {_SHORT_UNITS.get(inner, inner)} "


def _closes_at_end(text: str) -> bool:
    """Whether the brace that opens a text is closed by its last character."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return index == len(text) - 1
    return False


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
