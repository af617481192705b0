"""Whether a Python program prints the same on every machine: whole numbers, texts, lists, conditions and loops, and nothing else.

In: source. Out: yes or no, by its syntax alone; nothing is run. What such a program prints follows from the language's definition. It has no
floating point, because the C library rounds powers, and no object that prints an address. It has no import, attribute, function, class or exception
of its own, and calls a few functions of Python alone. It is ASCII, and its texts are, without `%`, which formats: which other characters are
printed as they are differs between versions. So whoever claims another output lies. Called by `interpreter`; a program that is not exact is judged
more gently.
"""

import ast

FUNCTIONS = frozenset(
    {
        "abs",
        "all",
        "any",
        "bool",
        "divmod",
        "int",
        "len",
        "list",
        "max",
        "min",
        "print",
        "range",
        "sorted",
        "str",
        "sum",
        "tuple",
    }
)
LONGEST_EXACT = 4000
"""Characters; the parser takes far deeper nesting than fits into these."""
LARGEST_POWER = 10_000

_PLAIN = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.Load, ast.Store, ast.BoolOp, ast.boolop, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE,
    ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.UnaryOp, ast.unaryop, ast.If, ast.IfExp, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass, ast.List,
    ast.Tuple, ast.Subscript, ast.Slice, ast.ListComp, ast.comprehension, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow,
)  # fmt: skip


def is_exact(source: str) -> bool:
    """See the module's page. False also where the source is not a program."""
    if len(source) > LONGEST_EXACT or not source.isascii():
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return all(_is_exact(node, called) for node in ast.walk(tree))


def _is_exact(node: ast.AST, called: set[int]) -> bool:
    match node:
        case ast.Constant(value=value):
            if isinstance(value, str):
                return value.isascii() and "%" not in value
            return value is None or type(value) in (int, bool)
        case ast.Name(id=name, ctx=ctx):
            function = name in FUNCTIONS
            return (
                not name.startswith("_")
                and (id(node) in called if function else id(node) not in called)
                and not (function and isinstance(ctx, ast.Store))
            )
        case ast.Call(func=ast.Name(), keywords=keywords):
            return all(each.arg in ("end", "sep") for each in keywords)
        case ast.keyword():
            return True
        case ast.BinOp(op=ast.Pow(), right=right):  # a negative power is a floating-point number
            return isinstance(right, ast.Constant) and type(right.value) is int and 0 <= right.value <= LARGEST_POWER
        case ast.AugAssign(op=ast.Pow()):
            return False
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            return isinstance(op, _PLAIN)
        case _:
            return isinstance(node, _PLAIN)
