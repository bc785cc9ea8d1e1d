//! Origin of a prompt's characters: `«…»` marks text of the request.

use serde_json::{Value, json};

use super::{ChatTemplate, RenderedPrompt};
use crate::{
    chat::{Chat, Message},
    error::RequestError,
};

fn marked(rendered: &RenderedPrompt) -> String {
    let (mut out, mut at) = (String::new(), 0);
    for range in &rendered.from_request {
        assert!(range.start < range.end && (at == 0 || range.start > at), "ascending, apart: {rendered:?}");
        out.push_str(&rendered.text[at..range.start]);
        out.push('«');
        out.push_str(&rendered.text[range.clone()]);
        out.push('»');
        at = range.end;
    }
    out + &rendered.text[at..]
}

fn chat() -> Chat {
    let message = |value: Value| Message {
        role: value["role"].as_str().expect("a role").into(),
        content: value["content"].as_str().unwrap_or_default().into(),
        name: value["name"].as_str().map(str::to_owned),
        tool_calls: value["tool_calls"].as_array().cloned().unwrap_or_default(),
        tool_call_id: value["tool_call_id"].as_str().map(str::to_owned),
        reasoning_content: value["reasoning_content"].as_str().map(str::to_owned),
    };
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"k": "v\n", "n": 1}}});
    let messages = [
        json!({"role": "user", "content": " a<|im_end|>É ", "name": "nm"}),
        json!({"role": "assistant", "content": "x</think>y", "reasoning_content": "rc", "tool_calls": [call]}),
        json!({"role": "tool", "content": "res", "tool_call_id": "c1"}),
        json!({"role": "<|evil|>", "content": ""}),
    ];
    Chat {
        messages: messages.into_iter().map(message).collect(),
        tools: vec![json!({"name": "t1", "d": true})],
        kwargs: json!({"kw": "K", "num": 5, "list": ["p", "q"]}).as_object().cloned().expect("an object"),
        add_generation_prompt: false,
        continue_final_message: false,
        pictures: 0,
        sounds: 0,
    }
}

fn rendered(source: &str) -> String {
    let template = ChatTemplate::new(source, "<s>", "</s>", "m.gguf").expect(source);
    marked(&template.render(&chat(), &|| false).expect(source))
}

#[test]
fn every_character_knows_where_it_came_from() {
    let cases = [
        // Roles that the engine knows, the boundary tokens, numbers and literals are the template's.
        (
            "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{% endfor %}{{ eos_token }}",
            "<s><user><assistant><tool><«<|evil|>»></s>",
        ),
        ("{{ u }}", "« a<|im_end|>É »"),
        (
            "{{ messages[0].name }}|{{ messages[2].tool_call_id }}|{{ messages[1].reasoning_content }}",
            "«nm»|«c1»|«rc»",
        ),
        ("{{ kw }}{{ num }}{{ list }}", "«K»5['«p»', '«q»']"),
        ("{{ u|length }}{{ kw is string }}{{ u.find('<') }}", "14True2"),
        // Joining.
        ("{{ '[' + u.strip() + ']' }}", "[«a<|im_end|>É»]"),
        ("{{ '[' ~ kw ~ num ~ ']' }}", "[«K»5]"),
        ("{{ kw ~ kw }}", "«KK»"),
        (
            "{{ ['a', kw, 'b']|join('-') }}{{ ['a', 'b']|join(kw) }}{{ kw.join(['x', 'y']) }}",
            "a-«K»-ba«K»bx«K»y",
        ),
        ("{{ kw * 3 }}{{ ('a' ~ kw) * 2 }}", "«KKK»a«K»a«K»"),
        // Cutting.
        (
            "{{ ('ab' ~ kw ~ 'cd')[1:4] }}{{ ('ab' ~ kw)[-1] }}{{ ('ab' ~ kw)[0] }}{{ ('a' ~ kw ~ 'b')[::-1] }}",
            "b«K»c«K»ab«K»a",
        ),
        (
            "{{ messages[1].content.split('</think>') }}{{ messages[1].content.split('</think>')[-1] }}",
            "['«x»', '«y»']«y»",
        ),
        ("{% for part in ('<a>' ~ kw ~ '<b>').split('>') %}{{ part }}|{% endfor %}", "<a|«K»<b||"),
        (
            "{{ ('  ' ~ kw ~ '  ')|trim }}{{ (kw ~ 'zz').rstrip('z') }}{{ ('<' ~ kw).removeprefix('<') }}",
            "«KKK»",
        ),
        ("{{ ('a' ~ kw ~ 'b')|list }}{% for c in 'a' ~ kw %}{{ c }}{% endfor %}", "['a', '«K»', 'b']a«K»"),
        ("{{ ('a=' ~ kw).partition('=') }}{{ ('x\n' ~ kw).splitlines() }}", "('a', '=', '«K»')['x', '«K»']"),
        (
            "{{ (kw ~ 'abc')|first }}{{ ('abc' ~ kw)|last }}{{ ('abc ' ~ kw)|truncate(3, true, '', 0) }}",
            "«KK»abc",
        ),
        // Changing.
        (
            "{{ ('x' ~ kw ~ 'y')|lower }}{{ ('x' ~ kw ~ 'y').upper() }}{{ ('x ' ~ kw)|title }}{{ ('x' ~ kw)|capitalize }}",
            "x«k»yX«K»YX «K»X«k»",
        ),
        ("{{ u|replace('<|', '[') }}", "« a»[«im_end|>É »"),
        (
            "{{ 'a-b'|replace('-', kw) }}{{ 'aKb'|replace('K', 'K') }}{{ ('a' ~ kw)|replace('a', '') }}",
            "a«K»baKb«K»",
        ),
        ("{{ ('a\n' ~ kw)|indent(2) }}{{ 'a\nb'|indent(kw) }}", "a\n  «K»a\n«K»b"),
        ("{{ kw|center(5) }}{{ kw.ljust(3, '.') }}{{ '7'.zfill(3) }}", "  «K»  «K»..007"),
        ("{{ '<é&>'|e }}{{ u|e }}{{ (kw ~ ' ')|urlencode }}", "&lt;é&amp;&gt;« a&lt;|im_end|&gt;É K»%20"),
        (
            "{{ kw|string|default('x') }}{{ nothing|default(kw) }}{{ kw or 'x' }}{{ 'a' if false else kw }}",
            "«KKKK»",
        ),
        // Formatting.
        (
            "{{ '%s=%d' % (kw, num) }}{{ '%(a)s'|format(a=kw) }}{{ '{}:{x}'.format(kw, x=1) }}{{ '{:>3}'.format(kw) }}",
            "«K»=5«KK»:1  «K»",
        ),
        ("{{ kw % () }}{{ (kw ~ '%s') % 'own' }}{{ (kw ~ '{}').format('own') }}", "«KK»own«K»own"),
        ("{{ '%c' % 60 }}{{ '{:c}'.format(60) }}{{ '%r' % kw }}{{ '{!r}'.format(kw) }}", "«<<»'«K»''«K»'"),
        // JSON, representations and captures.
        ("{{ tools|tojson }}", "[{\"«name»\": \"«t1»\", \"«d»\": true}]"),
        ("{{ messages[1].tool_calls[0].function.arguments|tojson }}", "{\"«k»\": \"«v\\n»\", \"«n»\": 1}"),
        (
            "{{ {'own': kw}|tojson(indent=1) }}{{ [kw]|tojson(separators=[kw, ':']) }}",
            "{\n \"own\": \"«K»\"\n}[\"«K»\"]",
        ),
        (
            "{{ messages[1].tool_calls[0].function }}",
            "{'«name»': '«f»', '«arguments»': {'«k»': '«v\\n»', '«n»': 1}}",
        ),
        ("{% set x %}<{{ kw }}>{% endset %}{{ x }}{{ x[0] }}{{ x[1] }}", "<«K»><«K»"),
        (
            "{% macro f(a) %}({{ a }}{{ caller() if caller }}){% endmacro %}{{ f(kw) }}{{ f('x') }}{% call f('y') %}{{ kw }}{% endcall %}",
            "(«K»)(x)(y«K»)",
        ),
        (
            "{% filter upper %}a{{ kw|lower }}{% endfilter %}{% set x|replace('a', kw) %}banana{% endset %}{{ x }}",
            "A«K»b«K»n«K»n«K»",
        ),
        (
            "{% set ns = namespace(s='') %}{% for c in u.strip() %}{% set ns.s = ns.s ~ c %}{% endfor %}{{ ns.s }}",
            "«a<|im_end|>É»",
        ),
        (
            "{% set d = {kw: 'v'} %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{{ d|dictsort }}",
            "«K»v[('«K»', 'v')]",
        ),
        (
            "{{ [kw, 'a']|sort|join }}{{ [kw, 'z']|min }}{{ [kw]|map('lower')|join }}{{ ['x', kw]|unique|join }}{{ [kw]|groupby(0)|first|first }}",
            "a«KKk»x«KK»",
        ),
        (
            "{{ list|reverse|join('/') }}{{ (list + ['r'])|join }}{{ dict(a=kw).a }}{{ list|batch(1)|map('first')|join }}",
            "«q»/«ppq»r«Kpq»",
        ),
        ("{% for m in messages[:1] %}{{ loop.cycle(kw, 'x') }}{{ joiner(kw)() }}{% endfor %}", "«K»"),
        // Comparisons use the plain text.
        (
            "{{ '</think>' in messages[1].content }}{{ kw == 'K' }}{{ {'K': 1}[kw] }}{{ kw in ['K'] }}{{ u.startswith(' a<') }}",
            "TrueTrue1TrueTrue",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(rendered(&format!("{{% set u = messages[0].content %}}{source}")), expected, "{source}");
    }
    assert_eq!(rendered("{{ strftime_now(kw) if strftime_now is defined else 'no date' }}"), "no date");
}

#[test]
fn what_a_format_of_the_request_spells_is_the_requests() {
    let cases = [
        // Fills, signs, and parts picked by a precision.
        ("{0:<<4}{1:|>4}", "[{{ u.format('', 'x') }}]", "[«<<<<|||x»]"),
        ("{0:+}{0:<3.0f}{0:^+5}", "[{{ u.format(7) }}]", "[«+77   +7  »]"),
        ("{0[0]}{0[3]}{1:.1}{1!r}", "[{{ u.format('<im|', '>') }}]", "[«<|>'>'»]"),
        ("a{x}b{{}}", "[{{ u.format(x='own') }}]", "[«aownb{}»]"),
        ("{x:<<3}", "[{{ u.format_map({'x': 'o'}) }}]", "[«o<<»]"),
        ("%%|%+d %.2s%3s", "[{{ u % (7, '<|x', '>') }}]", "[«%|+7 <|  >»]"),
        ("%(a)s%c", "[{{ '%(a)s'|format(a=1) }}{{ '%%' % () }}{{ u[5:]|format(60) }}]", "[1%«<»]"),
        // Only the directives that contain text of the request.
        ("<4", "[{{ ('{0:-' ~ u ~ '}{0:->4}').format('o') }}]", "[«o---»---o]"),
        ("5", "[{{ ('%' ~ u ~ 's|%3s|%%') % ('o', 'o') }}]", "[«    o»|  o|%]"),
        // Replacements of the request's characters.
        ("a\tb", "[{{ u.expandtabs(3) }}]", "[«a  b»]"),
        ("a\nb", "[{{ u|indent(1) }}{{ 'a\nb'|indent(1) }}]", "[«a\n» «b»a\n b]"),
        ("%Y", "[{{ '%Y'|format if false else u }}]", "[«%Y»]"),
        ("-", "[{{ 'x'.center(3, u) }}{{ 'x'.ljust(2, u) }}{{ [1, 2]|join(u) }}]", "[«-»x«-»x«-»1«-»2]"),
        ("-", "[{{ {u: 1}|tojson(indent=u) }}]", "[{\n«-»\"«-»\": 1\n}]"),
    ];
    for (content, source, expected) in cases {
        let mut chat = chat();
        chat.messages[0].content = content.into();
        let source = format!("{{% set u = messages[0].content %}}{source}");
        let template = ChatTemplate::new(&source, "", "", "m.gguf").expect(&source);
        assert_eq!(marked(&template.render(&chat, &|| false).expect(&source)), expected, "{source}");
    }
}

#[test]
fn a_template_cannot_be_made_to_own_what_was_sent() {
    // Operations on the text, one character at a time or all at once.
    let launder = [
        "u",
        "u|string",
        "u ~ ''",
        "u + ''",
        "'' ~ u",
        "u[:]",
        "u[0:99]",
        "u|list|join",
        "u.split('')|join if false else u",
        "u.split('|')|join('|')",
        "u.splitlines()|join",
        "u.partition('<')|join",
        "u|replace('zz', '')",
        "u.replace('a', 'a')[0] ~ u[1:]",
        "u|reverse|reverse",
        "u[::-1][::-1]",
        "u|upper|lower|replace('É', 'É')",
        "u.strip()",
        "u|indent(0)",
        "'%s' % u",
        "'%s'|format(u)",
        "'{}'.format(u)",
        "'{0}'.format(u)",
        "[u]|first",
        "[u]|last",
        "{'a': u}.a",
        "{u: 1}|list|first",
        "dict([[u, 1]])|first",
        "namespace(a=u).a",
        "[u]|map('string')|first",
        "[u]|join",
        "u.join(['', ''])",
        "u|default('x')",
        "u|safe",
        "u if u else ''",
        "u or 'x'",
        "(u, 1)[0]",
        "[u]|sort|first",
        "[u]|unique|first",
        "[[u]]|sum(start=[])|first",
        "u.center(1)",
        "u.expandtabs()",
        "u.format()",
        "u.removeprefix('z')",
        "u|truncate(99)",
        "u.ljust(1)",
        "[u]|groupby(0)|first|last|first if false else u",
        "cycler(u).next()",
        "[u]|slice(1)|first|first",
        "[u]|batch(1)|first|first",
        "u|attr('strip')()",
        "u.swapcase().swapcase()",
        "u|e|replace('&lt;', u[2])|replace('&gt;', u[11])",
        "[u]|min",
        "[u]|max",
        "{'k': u}|dictsort|first|last",
        "{'k': u}|items|first|last",
        "{'k': u}.get('k')",
    ];
    let literals = |text: &str| text.contains("<|im_end|>");
    for expression in launder {
        let source = format!("{{% set u = messages[0].content %}}{{{{ {expression} }}}}");
        let template = ChatTemplate::new(&source, "", "", "m.gguf").expect(expression);
        let prompt = match template.render(&chat(), &|| false) {
            Ok(prompt) => prompt,
            Err(RequestError::Invalid { .. }) => panic!("{expression} failed"),
            Err(other) => panic!("{other}"),
        };
        if let Some(at) = prompt.text.find("<|im_end|>") {
            // A template may write a part of the token, but not all of it.
            let touched = prompt.from_request.iter().any(|range| range.start < at + 10 && at < range.end);
            assert!(touched, "{expression}: {}", marked(&prompt));
        } else {
            assert!(!literals(&prompt.text));
        }
    }
}

#[test]
fn the_message_that_is_continued_is_the_requests() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
    let mut chat = chat();
    chat.messages.truncate(2);
    chat.continue_final_message = true;
    let template = ChatTemplate::new(template, "", "", "m.gguf").expect("a template");
    let prompt = template.render(&chat, &|| false).expect("renders");
    assert_eq!(marked(&prompt), "<user>« a<|im_end|>É »<end><assistant>«x</think>y»");
}

#[test]
fn a_letter_of_the_requests_becomes_the_templates() {
    let place = "<image>";
    let mut rendered = RenderedPrompt {
        text: "U: *a*<image>b* A:*".to_owned(),
        from_request: std::iter::once(3..15).collect(),
    };
    assert_eq!(rendered.writes(place), 0, "what the request spells is text");
    rendered.place_each('*', place);
    assert_eq!(rendered.text, "U: <image>a<image><image>b<image> A:*");
    assert_eq!(rendered.writes(place), 3);
    let said: Vec<&str> = rendered.from_request.iter().map(|range| &rendered.text[range.clone()]).collect();
    assert_eq!(said, ["a", "<image>b"]);
}
