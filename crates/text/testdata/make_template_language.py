"""Remakes template_language.json beside this file: snippets of Jinja and what Python's jinja2 makes of them with
transformers' settings. pip install jinja2; python make_template_language.py"""

import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent

VARIABLES = {
    "n": 7, "neg": -3, "f": 2.5, "big": 12345678901234567890, "yes": True, "no": False, "nil": None, "e": "", "s": "Hello, World",
    "u": "h\u00e9llo w\u00f6rld \U0001f600 \u65e5\u672c", "ws": "  \t padded \n ", "lines": "one\ntwo\n\nthree\n", "html": "<a href=\"x\">'&'</a>",
    "quote": "it's", "both": "it's \"x\"\n\\", "ctl": "a\u0000\u001f\u007f\u00a0\u200b\u2028z", "csv": "a,b,,c", "l": [3, 1, 2], "ls": ["b", "A", "c", "a"],
    "nested": [[1, 2], [3, [4]], []], "d": {"b": 1, "a": "x", "C": [1, None, True]}, "empty": [], "ed": {}, "dd": {"items": 5, "keys": "k", "x y": 1},
    "people": [
        {"name": "Ann", "age": 30, "tags": ["x", "y"], "home": {"city": "Rome"}}, {"name": "bob", "age": 25, "tags": [], "home": {"city": "Oslo"}},
        {"name": "Cy", "age": 30, "tags": ["z"], "active": True}, {"name": "ann", "age": 41, "home": {"city": "oslo"}},
    ],
    "floats": [0.1, 1e16, 1e-5, 1.0, -0.0, 1e300, 123456.789], "mixed": [1, "1", 1.0, True, None, "a", [1], {"k": 1}],
}

EXPRESSIONS = """
1 + 2 * 3
(1 + 2) * 3
7 // 2 ~ '|' ~ -7 // 2 ~ '|' ~ 7 % 3 ~ '|' ~ -7 % 3 ~ '|' ~ 7 % -3
7.5 // 2 ~ '|' ~ -7.5 % 2 ~ '|' ~ 7 / 2 ~ '|' ~ 4 / 2
2 ** 10 ~ '|' ~ 2 ** -1 ~ '|' ~ 2 ** 0.5 ~ '|' ~ (-2) ** 2 ~ '|' ~ -2 ** 2
2 ** 3 ** 2
1 / 0
1 % 0
1.0 // 0
0 ** -1
n + f ~ '|' ~ n - neg ~ '|' ~ n * f
yes + yes ~ '|' ~ yes * 3 ~ '|' ~ -yes
- - 3 ~ '|' ~ +-+3 ~ '|' ~ -n|abs
-3|abs
-f
+s
'a' + 'b' * 3 ~ 2 * 'c' ~ 'd' * -1
'a' + 1
1 + 'a'
[1] + [2, 3] * 2
(1,) + (2,)
[1] + (2,)
1 ~ 2 ~ none ~ true ~ 1.0 ~ [1, 'a'] ~ missing
'a' 'b' "c"
'\\n\\t\\\\\\'\\x41\\u00e9\\101\\z'
"a\\"b"
1 < 2 < 3 ~ '|' ~ (1 < 3 < 2) ~ '|' ~ (1 == 1.0 == true)
'a' < 'b' ~ ('a' < 'B') ~ ('' < 'a')
[1, 2] < [1, 3] ~ ([1] < [1, 0])
1 < 'a'
none < 1
1 in l ~ (9 not in l) ~ ('ell' in s) ~ ('b' in d) ~ (3 in range(2, 9)) ~ ('' in '')
1 in 'abc'
1 in 5
1 in missing
not yes ~ not not yes ~ (not e) ~ (not l)
yes and 'x' ~ (no and 'x') ~ (no or 'y') ~ (e or nil) ~ (yes or missing.x)
1 if yes else 2
1 if no
'a' if no else 'b' if no else 'c'
(1 if no) is defined
n is odd and n is not even
n is divisibleby 7 and n is divisibleby(7)
missing is defined ~ missing is undefined ~ nil is none ~ n is none
n is number ~ f is number ~ yes is number ~ s is number ~ n is integer ~ yes is integer ~ f is float
s is string ~ l is string ~ d is mapping ~ l is mapping ~ l is sequence ~ s is sequence ~ d is sequence ~ n is sequence ~ missing is sequence
l is iterable ~ n is iterable ~ s is iterable ~ missing is iterable
yes is true ~ no is false ~ 1 is true ~ yes is boolean ~ 1 is boolean
'a' is lower ~ 'A' is upper ~ 'aB' is lower ~ '1' is lower ~ s is upper
n is eq 7 ~ n is equalto(7) ~ n is ne 7 ~ n is gt 6 ~ n is lt(6) ~ n is ge 7 ~ n is le 7 ~ n is in [7] ~ n is sameas 7
'upper' is filter ~ 'nope' is filter ~ 'odd' is test ~ range is callable ~ n is callable
n is nosuchtest
n|nosuchfilter
s is eq s ~ nil is sameas nil ~ yes is sameas true ~ 1 is sameas true
l[0] ~ l[-1] ~ l[9] ~ s[0] ~ s[-1] ~ u[1] ~ u[-1] ~ u[12]
l[9].x
l[0:2] ~ l[::-1] ~ l[1:] ~ l[:-1] ~ l[-2:] ~ l[::2] ~ l[5:] ~ l[2:0:-1] ~ l[-1:-4:-1]
s[1:4] ~ s[::-1] ~ s[-5:] ~ s[:-7] ~ u[1:3] ~ u[-4:-1] ~ u[::-2] ~ s[3:1] ~ s[-100:2]
(1, 2, 3)[1:] ~ (1,) ~ () ~ (1, 2)
l[::0]
range(5)[1:3]|list
d.a ~ d['a'] ~ d.missing ~ d['missing'] ~ d.b
d.missing.x
missing.x
missing['x']
missing()
n()
s.nosuch
s.nosuch()
dd.items is defined ~ dd.items is callable
dd['items'] ~ dd['x y']
dd.keys()|list
d.get('a') ~ d.get('z') ~ d.get('z', 5)
d.items()|list ~ d.keys()|list ~ d.values()|list
d.items()
d.keys() ~ d.values()
d|length ~ l|length ~ s|length ~ u|length ~ missing|length ~ range(4)|length
n|length
nil.x
none
floats
floats|tojson
floats|join(' ')
big ~ '|' ~ big + 1 ~ '|' ~ big|tojson
1e3 ~ '|' ~ 1.5e-7 ~ '|' ~ 0x1f ~ '|' ~ 0b101 ~ '|' ~ 0o17 ~ '|' ~ 1_000 ~ '|' ~ 1_0.5
d
nested
mixed
ctl ~ [ctl]
[quote, both, u, e, html]
{'a': 1, 'b': [1, {'c': none}], 1: 2, none: 3, 1.5: 'x', true: 4}
{'a': 1, 'a': 2}
{[1]: 2} == 1
{'a': 1,}|length ~ [1, 2,]|length
dict(a=1, b='x') ~ dict([['k', 1], ['j', 2]]) ~ dict(d, z=1)
range(3)|list ~ range(1, 7, 2)|list ~ range(5, 0, -2)|list ~ range(0) ~ range(3) ~ range(1, 9, 3)
range(1, 2, 0)
s|upper ~ s|lower ~ s|title ~ 'hello wORLD-foo (bar) it\\'s'|title ~ 'hELLO'|capitalize ~ 12|upper
ws|trim ~ '|' ~ 'xxhixx'|trim('x') ~ '|' ~ missing|trim ~ '|' ~ 'abcba'|trim('ab')
s|replace('l', 'L') ~ s|replace('l', 'L', 2) ~ s|replace('', '-') ~ s|replace('l', '', count=1) ~ 121|replace(1, 3)
s|replace('o')
lines|indent ~ '|' ~ lines|indent(2, true) ~ '|' ~ lines|indent('> ', first=true, blank=true) ~ '|' ~ ''|indent ~ '|' ~ 'a'|indent(width=3, first=true)
'a\\r\\nb\\x0bc'|indent(1)
s|center(20) ~ '|' ~ s|center(5) ~ '|' ~ 'ab'|center(5) ~ '|' ~ 'abc'|center(6)
s|truncate(8) ~ '|' ~ s|truncate(5, true) ~ '|' ~ s|truncate(5, true, '', 0) ~ '|' ~ 'a b c d e f g h'|truncate(9, leeway=0) ~ '|' ~ s|truncate(8, end='~', leeway=1)
'one two, three_4 it\\'s'|wordcount
html|e ~ html|escape ~ html|safe ~ 5|e ~ html|forceescape
html|safe + html
html + html|safe
'<' + ('>'|safe) + '&' + s
(html|safe) ~ html
html|safe|e ~ html|safe|forceescape ~ html|e|e
(html|safe) * 2 + '<'
(html|safe)[1:3] + '<' ~ (html|safe)[::2] + '<'
(html|safe)|upper + '<' ~ ((html|safe)|trim + '<')
(html|safe).replace('<', '<b>') ~ ((html|safe)|replace('<', '<b>') + '<')
('<%s>'|safe) % html ~ ('<%s %r %d>'|safe) % (html, html, 3) ~ ('<%(a)s>'|safe) % {'a': html}
'<%s>' % (html|safe) + '<'
('<{}>'|safe).format(html) ~ ('<{a}>'|safe).format(a=html|safe)
('<'|safe).join(['a', '<b>', 'c<'|safe, 5])
['<'|safe, '<']|join('<') + '<'
(html|safe).split(' ')[0] + '<' ~ ((html|safe).partition('=')|last + '<')
(html|safe) is string ~ (html|safe) is escaped ~ html is escaped ~ (html|e) is escaped
(html|safe) == html ~ (html in (html|safe)) ~ (html|safe)|length
(5|safe) + '<' ~ (nil|safe) + '<'
(html|safe)|string + '<' ~ (html|safe)|list|first + '<' ~ (html|safe)|first + '<'
'x\\ny'|safe|indent(2) + '<'
(html|safe)|tojson + '<' ~ [html|safe]|first + '<' ~ {'a': html|safe}.a + '<'
(html|safe).center(30, '<')
(html|safe).center(30, '-') + '<' ~ (html|safe)|truncate(5) + '<' ~ (html|safe)|title + '<' ~ (html|safe)|capitalize + '<'
(html|safe).startswith('<a') ~ (html|safe).find('>') ~ (html|safe).removeprefix('<') ~ (html|safe).strip('<')
(html|safe)|default('x') + '<'
'a b/c?d=\\xe9&'|urlencode ~ '|' ~ {'a b': 'c/d', 'e': 1}|urlencode
l|first ~ l|last ~ s|first ~ s|last ~ empty|first ~ empty|last ~ u|last
l|sort ~ ls|sort ~ ls|sort(true) ~ ls|sort(case_sensitive=true) ~ l|sort(reverse=true)
mixed|sort
people|sort(attribute='name')|map(attribute='name')|join(',')
people|sort(attribute='age,name')|map(attribute='name')|join(',')
l|reverse|list ~ s|reverse ~ ls|reverse|join
l|join ~ l|join('-') ~ ls|join(', ') ~ people|join(',', attribute='name') ~ s|join('.') ~ missing|join('x') ~ [1, none, 'a', [2]]|join('/')
l|sum ~ [1.5, 2]|sum ~ people|sum(attribute='age') ~ [[1], [2]]|sum(start=[]) ~ l|sum(start=10) ~ empty|sum
l|min ~ l|max ~ ls|min ~ ls|max ~ ls|max(case_sensitive=true) ~ (people|max(attribute='age')).name ~ empty|min
ls|unique|list ~ ['a', 'A', 'b', 'a']|unique|list ~ ['a', 'A']|unique(case_sensitive=true)|list ~ [1, 1.0, true, 2]|unique|list ~ people|unique(attribute='age')|map(attribute='name')|list
ls|map('upper')|list ~ people|map(attribute='home.city', default='-')|list ~ people|map(attribute='active')|list ~ nested|map('length')|list ~ ls|map('replace', 'a', 'Z')|list ~ [[1, 2], [3, 4]]|map(attribute=1)|list ~ [[1, 2]]|map(attribute='0')|list
ls|map('nosuch')|list
people|selectattr('active')|map(attribute='name')|list ~ people|selectattr('active', 'defined')|list|length ~ people|rejectattr('age', 'equalto', 30)|map(attribute='name')|list ~ people|selectattr('age', '>', 26)|list|length ~ people|selectattr('home.city', 'in', ['Rome'])|list|length
people|selectattr('name', 'nosuch')|list
nil|selectattr('x')|list ~ nil|rejectattr('x', 'equalto', 1)|list ~ nil|select('odd')|list ~ no|reject|list ~ nil|map('upper')|list ~ 0|map(attribute='x')|list|length
5|select|list
0|filesizeformat ~ '|' ~ 1|filesizeformat ~ '|' ~ 999|filesizeformat ~ '|' ~ 13000|filesizeformat ~ '|' ~ 4100000|filesizeformat ~ '|' ~ 2048|filesizeformat(true) ~ '|' ~ '1234567890'|filesizeformat ~ '|' ~ 1e30|filesizeformat
l|select('odd')|list ~ l|reject('odd')|list ~ mixed|select('string')|list ~ [0, 1, '', 'a', none]|select|list ~ [0, 1]|reject|list ~ l|select('gt', 1)|list ~ l|select('in', [1, 9])|list
people|groupby('age')|map(attribute='grouper')|list
people|groupby('home.city', default='?')|map('first')|list
people|groupby('name')|length
d|dictsort ~ d|dictsort(true) ~ d|dictsort(reverse=true) ~ {'a': 2, 'b': 1}|dictsort(by='value')
d|dictsort(by='x')
d|items|list ~ missing|items|list
l|items|list
[1, 2, 3, 4, 5]|batch(2)|list ~ [1, 2, 3, 4, 5]|batch(2, 'x')|list ~ [1, 2, 3, 4, 5]|slice(3)|list ~ [1, 2, 3, 4, 5]|slice(3, 'x')|list ~ [1, 2, 3, 4]|slice(3, 0)|list ~ empty|batch(3)|list
l|list ~ s|list ~ d|list ~ (1, 2)|list ~ range(3)|list
n|string + 'x' ~ none|string ~ l|string ~ 1.0|string
'3'|int + 1 ~ '3.7'|int ~ 'x'|int ~ 'x'|int(5) ~ 'ff'|int(0, 16) ~ '0x1F'|int(base=16) ~ 3.9|int ~ -3.9|int ~ true|int ~ ' 42 '|int ~ '1_000'|int ~ none|int ~ l|int
'3.5'|float ~ 'x'|float ~ 'x'|float(1.5) ~ 3|float ~ 'inf'|float ~ '1e3'|float ~ none|float
3.14159|round(2) ~ 2.5|round ~ 3.5|round ~ 2.675|round(2) ~ 7|round ~ 3.14159|round(2, 'floor') ~ 3.14159|round(1, 'ceil') ~ 7|round(method='ceil') ~ 1234|round(-2) ~ 0.5|round ~ -0.5|round ~ 1e20|round(2)
missing|default('x') ~ e|default('x') ~ e|default('x', true) ~ nil|default('x', boolean=true) ~ missing|d ~ n|d(1) ~ d.zz|default('none') ~ nil|default('x')
missing|upper ~ missing|list ~ missing|string ~ missing|e ~ missing|replace('a', 'b')
missing|tojson
missing + 1
1 + missing
missing > 1
missing == missing2 ~ (missing == 1) ~ (missing != none)
s|tojson ~ u|tojson ~ u|tojson(ensure_ascii=true) ~ both|tojson ~ ctl|tojson ~ html|tojson
d|tojson ~ d|tojson(indent=2) ~ d|tojson(sort_keys=true) ~ d|tojson(separators=(',', ':')) ~ nested|tojson(indent=1) ~ {}|tojson(indent=2) ~ []|tojson(indent=2)
{1: 2, none: 3, true: 4, 1.5: 5}|tojson ~ (1, 2)|tojson ~ [(1,)]|tojson ~ mixed|tojson
range(2)|tojson
l|map('abs')|tojson
d.items()|list|tojson
'%s is %d and %.2f' % ('a', 5, 2.346) ~ '%5s|%-5s|%05d|%+d|%x|%X|%o|%%' % ('a', 'b', 42, 7, 255, 255, 8) ~ '%r' % 'x' ~ '%s' % [1]
'%(a)s-%(b)d' % {'a': 1, 'b': 2} ~ '%e %E %g %g %g' % (12345.678, 0.5, 0.0001, 1e10, 100000) ~ '%c%c' % (65, 'b') ~ '%.3s' % 'abcdef' ~ '%*d' % (5, 42) ~ '%.4d' % 42 ~ '%#x' % 255
'%s' % (1, 2)
'%s %s' % 1
'%d' % 'x'
'%s %s'|format(1, 'b') ~ '%(x)s'|format(x=1) ~ '%s'|format([1, 2])
'%d%%'|format(5.7)
'{} {}'.format(1, 'a') ~ '{1}{0}'.format('a', 'b') ~ '{x}-{y}'.format(x=1, y=[2]) ~ '{0[0]}{0[1]}'.format([1, 2]) ~ '{a[k]}'.format(a={'k': 5}) ~ '{{}}'.format()
'{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#x}|{:b}|{:o}|{:e}|{:.2f}|{:%}|{:.1%}'.format('a', 'b', 'c', 'd', 42, 7, 1234567, 1234567, 255, 255, 5, 8, 1234.5, 3.14159, 0.25, 0.5)
'{:10.3f}|{:<10}|{:>10}|{!r}|{!s}|{:s}|{:d}|{:.3}|{:g}|{:,.2f}|{:08.2f}|{:>+6}'.format(3.14159, 1, 'x', 'q', 5, 'z', 3, 'abcdef', 1e-7, 1234567.891, -3.5, 4)
'{'.format()
'{}'.format()
'{:d}'.format('x')
ws.strip() ~ '|' ~ ws.lstrip() ~ '|' ~ ws.rstrip() ~ '|' ~ 'xyhixy'.strip('yx') ~ 'xxa'.lstrip('x') ~ 'axx'.rstrip('x') ~ 'a'.strip(none)
csv.split(',') ~ csv.split(',', 1) ~ csv.rsplit(',', 1) ~ ws.split() ~ ' a b  c '.split(none, 1) ~ ' a b  c '.rsplit(none, 1) ~ ''.split() ~ ''.split(',') ~ 'a'.split('a') ~ 'abc'.split(',') ~ csv.split(sep=',', maxsplit=2) ~ ' a b c '.split(' ') ~ 'a  b'.rsplit()
'a'.split('')
lines.splitlines() ~ lines.splitlines(true) ~ 'a\\r\\nb\\rc\\x0bd\\x85e'.splitlines() ~ ''.splitlines()
s.startswith('He') ~ s.startswith(('x', 'He')) ~ s.endswith('ld') ~ s.endswith(('a', 'b')) ~ s.startswith('ello', 1) ~ s.startswith('') ~ s.endswith('Hello', 0, 5)
s.startswith(['He'])
s.removeprefix('Hello') ~ s.removesuffix('World') ~ s.removeprefix('x')
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ s.replace('zz', 'y') ~ 'aaa'.replace('aa', 'b') ~ 'ab'.replace('', '-') ~ 'ab'.replace('', '-', 2)
s.find('o') ~ s.find('z') ~ s.rfind('o') ~ s.index('W') ~ s.count('l') ~ s.count('') ~ u.find('w') ~ s.find('o', 5) ~ u.rfind('\\u65e5') ~ 'aaa'.count('aa') ~ s.count('l', 4) ~ s.find('o', 0, 3)
s.index('z')
s.upper() ~ s.lower() ~ 'hello wORLD-foo it\\'s'.title() ~ 'hELLO wOrld'.capitalize() ~ s.swapcase() ~ 'stra\\u00dfe'.upper() ~ '\\u00c9'.lower() ~ 'A'.casefold()
', '.join(ls) ~ ''.join([]) ~ '-'.join('abc') ~ ','.join(d)
','.join([1])
'12'.isdigit() ~ ''.isdigit() ~ 'ab'.isalpha() ~ 'a1'.isalnum() ~ ' '.isspace() ~ 'AB'.isupper() ~ 'ab'.islower() ~ 'Ab Cd'.istitle() ~ '1a'.isidentifier() ~ '12'.isnumeric() ~ '12'.isdecimal() ~ 'a\\u00e9'.isascii() ~ 'a_b'.isidentifier()
'42'.zfill(5) ~ '-42'.zfill(5) ~ 'a'.ljust(3) ~ '|' ~ 'a'.rjust(3, '*') ~ 'a'.center(4, '-') ~ 'a'.center(5) ~ 'abc'.center(2)
'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=') ~ 'abc'.partition('=') ~ 'abc'.rpartition('=')
'a\\tb'.expandtabs() ~ 'a\\tb'.expandtabs(4)
l.count(1) ~ l.index(2) ~ (1, 1).count(1)
l.append(4)
d.update({'z': 1})
l.pop()
d.pop('a')
l.index(9)
2.5.is_integer() ~ 2.0.is_integer()
s.__class__
l.0 ~ l.1
people[0].home.city ~ people[0]['home']['city'] ~ people[-1].name
people[2].home.city
s|attr('upper') is callable ~ (d|attr('a')) is defined
(s|upper)[0] ~ (l|sort)[0] ~ s.upper()[0:2] ~ s|upper|lower|title
s|upper.x
'a,b'|list|length ~ ('a' ~ 'b')|length ~ 'a' ~ 'b'|length
[l|first, l|last] ~ {'k': l|length}
range(10)|select('even')|map('string')|join('-')
namespace(a=1).a ~ namespace().a ~ (namespace(a=1).b is defined)
cycler('a', 'b').next() ~ joiner()() ~ joiner('x')()
raise_exception('no: ' ~ n)
s.format(1) ~ 'x'.format()
true ~ True ~ false ~ False ~ none ~ None
l if l else 'empty'
(l, d)
1, 2
1,
'abc' in ['abc'] and 'a' not in {'b': 1}
not 1 in l ~ '|'
(not 1) in l
n == 7 and not (f > 3 or e)
"{{" ~ '}}' ~ "{%" ~ '%}' ~ '{#'
(people|selectattr('tags')|first).tags[0]
people|map(attribute='tags')|map('join', '+')|list
'\\u00df'|upper ~ '\\u0130'|lower|length ~ '\\u01c6'|title
10**20 ~ '|' ~ -10**20
""".strip("\n").split("\n")

TEMPLATES = [
    "plain text\nwith lines\n", "trailing\n\n", "{{ 1 }}\n{{ 2 }}\n", "a\r\nb\r{{ '\r\n' }}c", "", "\n", "{# c #}\nx", "a {# c #} b", "  {# c #}\nx\n  {#- c -#}  \ny",
    "{% if yes %}\nA\n{% endif %}\nB", "  {% if yes %}  \n  A\n  {% endif %}\n  B", "x  {% if yes %} A {% endif %}  y", "a\n  {%- if yes %} b {%- endif %}\n c", "a\n  {%+ if yes %} b {% endif +%}\n c",
    "a {%- if yes -%} b {%- endif -%} c", "{{- ' x ' -}} y", "a  {{- 1 -}}  b", "  {{ 1 }}\n  {{- 2 }}\n", "\t{% if yes %}x{% endif %}\t\n\t{{ 1 }}", "{% raw %}{{ x }}{% if %}{% endraw %}", "a\n  {% raw %}\n  {{ x }} \n  {% endraw %}\nb",
    "a {%- raw -%}  x {{ y }}  {%- endraw -%} b", "{% raw -%}  x{%+ endraw +%}\n y", "{% if no %}a{% elif nil %}b{% elif yes %}c{% else %}d{% endif %}", "{% if no %}{% else %}d{% endif %}",
    "{% for x in l %}{{ x }}{% endfor %}", "{% for x in empty %}{{ x }}{% else %}none{% endfor %}", "{% for x in missing %}x{% else %}none{% endfor %}", "{% for x in nil %}x{% endfor %}", "{% for x in 5 %}x{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in ls %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}", "{% for x in ls %}{{ loop.cycle('odd', 'even') }}{{ loop.changed(x|lower) }},{% endfor %}",
    "{% for x in range(9) if x is odd %}{{ x }}:{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}", "{% for x in l if loop.first %}{{ x }}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for x in range(9) if not ns.stop %}{{ x }}{% if x == 3 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}", "{% for x in [] %}{% else %}{% if yes %}e{% endif %}{% endfor %}",
    "{% for i in nested recursive %}{% if i is sequence %}[{{ loop(i) }}]{{ loop.depth }}{% else %}{{ i }},{% endif %}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [3, 4] %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set ns = namespace(n=0, s='') %}{% for i in l %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }}{{ ns.s }}", "{% set d.x = 1 %}", "{% set q.x = 1 %}", "{% set ns = namespace() %}{% set ns.a = ns.b %}{{ ns.a is defined }}", "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "{% set ns = namespace({'x': 1}, y=2) %}{{ ns.x }}{{ ns['y'] }}{{ ns.z }}",
    "{% set x %}block {{ n }}{% endset %}[{{ x }}]{{ x|length }}", "{% set x | upper | replace('B', '-') %}block {{ n }}{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}|{{ x }}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aXa{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% macro m(a, b=2, c='x' ~ a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=6) }}{{ m() }}{{ m(1, c=none) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}", "{% macro m(a=1, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(7) }}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in {{ n }}{% endcall %}",
    "{% macro m(l) %}{% for x in l %}<{{ caller(x, loop.index) }}>{% endfor %}{% endmacro %}{% call(x, i) m(l) %}{{ i }}:{{ x }}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}", "{% macro f() %}a{% endmacro %}{{ f()|upper ~ f() }}{{ f.name }}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ l|map('string')|map('upper')|join }}{{ f(*[1]) }}{{ f(**{'x': 2}) }}",
    "{% macro f(x='d') %}[{{ x }}]{% endmacro %}{{ f(d.absent) }}{{ f() }}{{ f(x=d.absent) }}{{ f(none) }}", "{% macro f(a, b=a, c=b) %}{{ a is defined }}{{ b }}{{ c }}{% endmacro %}{{ f(1, d.absent) }}{{ f(1, d.absent, 3) }}{{ f(d.absent, 2) }}",
    "{% macro f(x='d') %}{{ x }}{{ caller(d.absent) }}{% endmacro %}{% call(y='e') f(d.absent) %}<{{ y }}>{% endcall %}",
    "{% print 1, 'a' %}", "{% generation %}a{{ n }}{% endgeneration %}b", "a {%- generation -%} b {%- endgeneration -%} c", "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {} }}{{ {}}}", "{{ [{'a': 1}, {'b': {'c': 2}}]|tojson }}",
    "{% set t = 'a' %}{% set t = t ~ t %}{% set t = t + 'b' %}{{ t }}", "{% for m in people %}{{ m.name }}{{ ': ' ~ m.home.city if m.home is defined }}\n{% endfor %}", "{% set last = people|last %}{{ last.name }}", "{% set names = people|map(attribute='name')|list %}{{ names[0] }}{{ names[1:] }}",
    "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b', 'c') %}{% for x in range(5) %}{{ c.next() }}{% endfor %}{{ c.current }}", "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join('+') }};{% endfor %}", "{% for age, group in people|groupby('age') %}{{ age }}{{ group|length }}{% endfor %}",
    "{% for row in range(7)|batch(3, '-') %}{{ row|join }}|{% endfor %}", "{% if l|select('gt', 9) %}generators are true{% endif %}", "{% if l|select('gt', 9)|list %}x{% else %}lists are not{% endif %}", "{{ l|select('gt', 0)|length }}", "{% set x = l|map('string') %}{{ x|first }}", "{{ '{% raw %}' }}", "{{ 'a'\n~\n'b' }}",
    "{%- for m in people -%}\n  {%- if loop.first %}first: {% endif -%}\n  {{ m.name }}\n{%- endfor %}", "x{%- set a = 1 -%}   y", "  {%- set a = 1 %}\n  z", "{% if yes %}a\n{% endif %}\n\n{% if yes %}b{% endif %}\n", "a{{ '\\n' }}\n{% if yes %}\n\n{% endif %}b", "{%if yes%}x{%endif%}", "{{1}}{{-1}}{{- 1 -}}", "{{ 1 -}}\n\n 2", "{%\nif yes\n%}x{%\nendif\n%}",
    "{{ s }", "{{ s", "{% if yes %}", "{% for %}{% endfor %}", "{% endif %}", "{{ }}", "{% set %}", "{{ (1 }}", "{{ [1 }}", "{% nosuch %}", "{{ 'a }}", "{# a", "{% raw %}a", "{{ 1 + }}", "{{ a b }}", "{{ a..b }}", "{{ f(a=1, 2) }}", "{% macro %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% set 1 = 2 %}", "{{ a is }}", "{{ a | }}", "{{ 1 is odd is even }}", "{% for true in l %}{% endfor %}", "{% if a %}{% else %}{% else %}{% endif %}", "{{ a[] }}", "{{ } }}", "{{ ] }}", "{% block x %}{% endfor %}", "{{ a ? b }}",
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    def _generation(self, caller):
        return caller()


def raise_exception(words):
    raise jinja2.exceptions.TemplateError(words)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    cases = []
    for source in ["{{ " + expression + " }}" for expression in EXPRESSIONS] + TEMPLATES:
        case = {"template": source}
        try:
            case["text"] = environment.from_string(source).render(**VARIABLES)
        except Exception as error:
            case["error"] = f"{type(error).__name__}: {error}"[:160]
        cases.append(case)
    # Python's default reprs hold addresses.
    assert not any(" at 0x" in case.get("text", "") for case in cases), [c for c in cases if " at 0x" in c.get("text", "")]
    fixture = {"jinja2": jinja2.__version__, "variables": VARIABLES, "cases": cases}
    (HERE / "template_language.json").write_text(json.dumps(fixture, indent=1) + "\n")


if __name__ == "__main__":
    main()
