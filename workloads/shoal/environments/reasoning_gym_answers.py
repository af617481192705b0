"""Answers that scorers of reasoning-gym may see: none that would run as Python, deceive the scorer by its spelling, or take it minutes.

Nine of the package's scorers give the answer to `eval`, four of them as a list and five through sympy. What ran there could change the score of
this answer and of every later one. So such an answer reaches them only as a plain expression: numbers, names, operators and some functions, or a list
of literals. Some other scorers make numbers of an answer, so that one of few characters takes hours, or `nan` is near to every number: theirs have a
form each (`FORMS`). Any other answer is scored as an empty answer. Pure; the time is linear in the text. Called by `reasoning_gym`.
"""

import ast
import math
import re
import warnings
from collections.abc import Callable, Collection
from fractions import Fraction

LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Generators whose scorers give an answer to `eval`, after comparing it with the right ones."""
ARITHMETIC = frozenset({"countdown", "puzzle24"})
"""Those whose scorers give it to `sympy.parse_expr`, which evaluates it, and make a number of what comes."""
INTEGRALS = frozenset({"intermediate_integration", "simple_integration"})
"""Those that simplify what it gives, which takes the most time."""
EXPRESSIONS = ARITHMETIC | INTEGRALS | {"polynomial_multiplication"}
"""All that give it to `sympy.parse_expr`."""
MOVES = frozenset({"rubiks_cube", "rush_hour"})
"""Generators whose scorers make a move as often as a number in the answer says."""
FUNCTIONS = frozenset(
    [
        "Abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "cot",
        "csc",
        "exp",
        "ln",
        "log",
        "sec",
        "sin",
        "sinh",
        "sqrt",
        "tan",
        "tanh",
    ]
)
CONSTANTS = frozenset({"E", "I", "pi"})
MOST_CHARACTERS = 1000
"""Of an expression, unless the right one is half as long."""
MOST_DIGITS = 20_000
"""Of the numbers in it when it is computed, by a bound from above."""
MOST_FLOAT = 1e15
"""Of a number with a point or exponent, which may become an integer. Its inverse is the least beside 0."""
MOST_POWER, MOST_NAMED_POWER = 20, 1000
"""Exponents of what has a name in it, and of a name alone."""
MOST_TERMS, MOST_INTEGRAL_TERMS = 2000, 30
"""Of an expression that is multiplied out, by a bound from above. Right ones have up to 70 and 6."""
MOST_INTEGRAL_NAMES = 2
"""Different ones in an integral: the variable and a constant."""
MOST_TURNS = 2000
"""That numbers in moves ask for."""
MOST_OFF = Fraction(1, 10_000)
"""Of a probability: what the package's scorer takes as the same."""
FORMS = {
    **dict.fromkeys(ARITHMETIC, re.compile(r"[0-9+\-*/() ]*")),
    "coin_flip": re.compile(r"[-+]?[0-9,]{0,40}([./][0-9,]{0,40})?([eE][-+]?[0-9]{1,3})?"),
    "complex_arithmetic": re.compile(r"[0-9.eEiIjJ+\-() ]*"),
    "number_sorting": re.compile(r"""[0-9.eE+\-,'"\[\]\s]*"""),
    **dict.fromkeys(MOVES, re.compile(r"(\D|\d{1,2}(?!\d))*")),
}
"""What an answer is made of, where its scorer reads it in two ways or makes an unbounded number of it.

An expression of integers hides none: a comment, point or base would, as the scorer looks for the numbers that are used in the text."""
_HIDDEN = re.compile(r"[^\x20-\x7e]|#|\b[0-9][0-9.]*_|\b0[xXoObB]|[0-9.][eE][-+]?[0-9]{3}")
"""What no other expression has either: comments, breaks, other spellings of numbers, and exponents of three digits."""
_SYMBOL = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")

OPENING, CLOSING = "<answer>", "</answer>"


def answer_of(completion: str) -> str | None:
    """The last answer between tags, without white space around it: what the package's own `extract_answer` finds, in linear time."""
    found, at = None, 0
    while (begins := completion.find(OPENING, at)) >= 0:
        begins += len(OPENING)
        ends = completion.find(CLOSING, begins)
        if ends < 0:
            break
        found, at = completion[begins:ends], ends + len(CLOSING)
    return None if found is None else found.strip()


def harmless(generator: str, answer: str, right: Collection[str], numbers: Collection[int] = ()) -> str:
    """The answer, or an empty one where the generator's scorer would run it as Python, or should not see it.

    `right`: answers that are compared before anything runs. `numbers`: those of the task, which the scorer of `puzzle24` does not look at.
    """
    return answer if _may_be_seen(generator, answer, right, numbers) else ""


def _may_be_seen(generator: str, answer: str, right: Collection[str], numbers: Collection[int]) -> bool:
    if generator in FORMS and not FORMS[generator].fullmatch(answer):
        return False
    if generator == "coin_flip" and right:
        return any(_is_near(answer, each) for each in right)
    if generator in EXPRESSIONS:
        if len(answer) > max(MOST_CHARACTERS, *(2 * len(each) for each in right), 0) or _HIDDEN.search(answer):
            return False
        if generator == "puzzle24" and sorted(map(int, re.findall("[0-9]+", answer))) != sorted(numbers):
            return False
        return _allowed(answer, lambda tree: _is_expression(tree, generator))
    if generator in MOVES:
        return sum(map(int, re.findall(r"\d+", answer))) <= MOST_TURNS
    if generator == "propositional_logic":
        return len(answer) <= MOST_CHARACTERS  # its parser takes time by the square
    return generator not in LISTS or answer in right or _allowed(answer, _is_literal)


def _is_near(answer: str, right: str) -> bool:
    """Whether two numbers are near; 0 is near to itself alone. For the scorer of `coin_flip` any text is right that the right one begins with."""
    try:
        number, wanted = (Fraction(text.replace(",", "")) for text in (answer, right))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(number - wanted) <= min(MOST_OFF, abs(wanted) / 10)


def _allowed(answer: str, allows: Callable[[ast.expr], bool]) -> bool:
    """Whether an answer is a Python expression, of the kind that is allowed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about the answer
            return allows(ast.parse(answer, mode="eval").body)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False


def _is_literal(tree: ast.expr) -> bool:
    """Lists and tuples of constants."""
    return all(
        isinstance(node, ast.List | ast.Tuple | ast.Constant | ast.UnaryOp | ast.USub | ast.Load)
        for node in ast.walk(tree)
    )


def _is_expression(tree: ast.expr, generator: str) -> bool:
    """Numbers, operators and, where an answer has them, names and functions; small enough to be computed."""
    if generator in INTEGRALS:
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS - CONSTANTS
        if len(names) > MOST_INTEGRAL_NAMES or _terms(tree) > MOST_INTEGRAL_TERMS:
            return False
    return _digits(tree, generator not in ARITHMETIC) <= MOST_DIGITS and _terms(tree) <= MOST_TERMS


def _digits(node: ast.expr, symbols: bool) -> float:
    """A bound on the digits of what an expression gives; infinite for one that is not allowed."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return len(str(abs(value)))
        case ast.Constant(value=float() as value) if value == 0 or 1 / MOST_FLOAT <= abs(value) <= MOST_FLOAT:
            return 16
        case ast.Name(id=name) if symbols and _SYMBOL.fullmatch(name):
            return 1
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _digits(operand, symbols)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return max(_digits(left, symbols), _digits(right, symbols)) + 1
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _digits(left, symbols) + _digits(right, symbols)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            size = _size(right, symbols)
            return _digits(left, symbols) * size if size <= _most_power(left) else float("inf")
        case ast.Call(func=ast.Name(id=name), args=[_, *more], keywords=[]) if symbols and len(more) <= 1:
            return sum(_digits(each, symbols) for each in node.args) if name in FUNCTIONS else float("inf")
    return float("inf")


def _size(exponent: ast.expr, symbols: bool) -> float:
    """A bound on the value of an exponent, at least 1."""
    match exponent:
        case ast.Constant(value=int() | float() as value):
            return max(abs(value), 1) if _digits(exponent, symbols) <= MOST_DIGITS else float("inf")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _size(operand, symbols)
        case ast.BinOp(left=ast.Constant(value=int() as above), op=ast.Div(), right=ast.Constant(value=int() as below)):
            return abs(above) // max(abs(below), 1) + 1
    digits = _digits(exponent, symbols)
    return 10.0**digits if digits <= 5 else float("inf")


def _terms(node: ast.expr) -> float:
    """A bound on the terms of an expression that is multiplied out; of a function's arguments, the most."""
    match node:
        case ast.UnaryOp(operand=operand):
            return _terms(operand)
        case ast.Call(args=args):
            return 1 if all(_terms(each) <= MOST_TERMS for each in args) else float("inf")
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _terms(left) + _terms(right) if _has_name(node) else 1
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _terms(left) * _terms(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            terms, size = _terms(left), _size(right, True)
            if max(terms, _terms(right)) > MOST_TERMS:
                return float("inf")
            if terms == 1:
                return 1
            return math.comb(int(terms) + math.ceil(size) - 1, math.ceil(size)) if size <= MOST_POWER else float("inf")
    return 1


def _has_name(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Name) for each in ast.walk(node))


def _most_power(base: ast.expr) -> int:
    """The greatest exponent, which may be a number that has names only as long as sympy has not shortened it."""
    match base:
        case ast.Name(id=name) if name != "E":
            return MOST_NAMED_POWER
        case ast.Name():
            return MOST_DIGITS
    return MOST_POWER if _has_name(base) else MOST_DIGITS
