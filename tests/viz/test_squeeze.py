"""Comments and blanks are taken out of scripts and styles, and nothing else. Knows tokens of JavaScript and CSS."""

import pytest

from mini_vllm.viz.player_page import SCRIPTS, _asset
from mini_vllm.viz.squeeze import squeeze_script, squeeze_style


@pytest.mark.parametrize(
    ("code", "squeezed"),
    [
        ("const a = 1; // one\nlet b;", "const a=1;let b;\n"),
        ("a = b\nc = d", "a=b\nc=d\n"),  # without a semicolon the line's end is one
        ("f(a,\n  b)\n  .c()", "f(a,b).c()\n"),
        ("x = a + +b - -c", "x=a+ +b- -c\n"),
        ("s = \"a  // b\"; t = 'c  /* d */'", "s=\"a  // b\";t='c  /* d */'\n"),
        ("s = `a  ${ b + `c  ${ d }` }  // e`", "s=`a  ${b+`c  ${d}`}  // e`\n"),
        ("r = /a  [/] \\/ b/.test(x) / y", "r=/a  [/] \\/ b/.test(x)/y\n"),
        ("if (a) { /* nothing */ } else b()", "if(a){}else b()\n"),
        ("return x ? {a: 1} : null", "return x?{a:1}:null\n"),
        ("/* a\n   b */ f()", "f()\n"),
    ],
)
def test_scripts(code, squeezed):
    assert squeeze_script(code) == squeezed


def test_styles():
    style = "/* c */\n.a > .b:not(.c, .d) { color: red; width: calc(100% - 16px) }\n"
    style += "@media (max-width: 5px) { .a { x: y; } }"
    assert squeeze_style(style) == (
        ".a>.b:not(.c,.d){color:red;width:calc(100% - 16px)}@media (max-width:5px){.a{x:y}}"
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_squeezed_script_stays_as_it_is(name):
    once = squeeze_script(_asset(name))
    assert squeeze_script(once) == once and "  " not in once.replace('"  "', "")
