//! Tests of specs, vocabularies and matchers, on a vocabulary of bytes and words.

use std::sync::Arc;

use super::*;

mod bounds;
mod gbnf;
mod schemas;

/// Vocabulary of every byte, some longer tokens, and control tokens at the end.
fn vocabulary() -> Arc<ConstraintVocabulary> {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let longer = ["{\"", "\":", "true", "null", " \"", "ab", "abc", "10", "é", "}}", "\n\n"];
    let words = bytes.iter().map(|byte| Word::Text(byte));
    let words = words.chain(longer.iter().map(|word| Word::Text(word.as_bytes())));
    let control = ["<|call|>", "<|end|>"].map(|name| Word::Control(name.as_bytes()));
    Arc::new(ConstraintVocabulary::new(words.chain(control)).unwrap())
}

fn grammar(spec: Spec) -> Arc<Grammar> {
    Grammar::compile(&spec, &vocabulary()).unwrap_or_else(|error| panic!("{spec:?}: {error}"))
}

fn refusal(spec: Spec) -> String {
    Grammar::compile(&spec, &vocabulary()).expect_err("it is refused").to_string()
}

/// Advances by tokens that spell a text.
fn say(matcher: &mut Matcher, text: &str) -> Result<(), Stuck> {
    matcher.spell(text).into_iter().try_for_each(|token| matcher.accept(token))
}

/// Whether a text satisfies a grammar, checked by mask, byte by byte.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; grammar.vocabulary().mask_words()];
    for byte in text.bytes() {
        matcher.allowed(&mut mask).unwrap();
        if mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 0 {
            return false;
        }
        matcher.accept(byte.into()).unwrap();
    }
    matcher.is_accepting()
}

#[track_caller]
fn check(spec: Spec, good: &[&str], bad: &[&str]) {
    let grammar = grammar(spec.clone());
    for text in good {
        assert!(accepts(&grammar, text), "{spec:?} should allow {text:?}");
    }
    for text in bad {
        assert!(!accepts(&grammar, text), "{spec:?} should not allow {text:?}");
    }
}

#[test]
fn an_expression_matches_all_of_the_text() {
    check(Spec::Regex(r"^\d{3}-[a-z]+$".into()), &["123-a", "999-zz"], &["12-a", "123-", "123-A", "x123-a"]);
    check(Spec::Regex(r"a\$".into()), &["a$"], &["a", "a\\"]);
    check(Spec::Regex(r"(é|/)+".into()), &["é/é"], &["e", ""]);
}

#[test]
fn choices_may_begin_alike_and_hold_anything() {
    let choices = ["a", "ab", "\"q\" \\ /", "zwei\nZeilen", "日本"].map(String::from).to_vec();
    check(
        Spec::Choices(choices),
        &["a", "ab", "\"q\" \\ /", "zwei\nZeilen", "日本"],
        &["b", "abc", "", "zwei"],
    );
}

#[test]
fn gbnf_means_what_llama_cpp_means_by_it() {
    let arithmetic = r#"
        root  ::= (expr "=" ws term ";" ws)+
        expr  ::= term ([-+*/] term)*  # a comment
        term  ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws
        num   ::= [0-9]+ ws
        ws    ::= [ \t\n]*
    "#;
    check(Spec::Gbnf(arithmetic.into()), &["a+(b*2)=7;", "x = 1;\ny=2;"], &["a+=7;", "a=7", "(a=7;"]);
    // If the parts were split into tokens as early as possible, "end" could only be read as letters.
    check(Spec::Gbnf("root ::= [a-z]* \"end\"".into()), &["end", "enend", "xend"], &["en", "xen"]);
    check(
        Spec::Gbnf("root ::= \"a\"{2,3}\n  | . \"\\x42\" | [^\\]a-z-]{1,}".into()),
        &["aa", "aaa", "\nB", "éB", "AZ"],
        &["a", "aaaa", "B]", "A-"],
    );
    check(Spec::Gbnf("root ::= \"(\" root \")\" | \"\"".into()), &["", "(())"], &["(()"]);
}

#[test]
fn gbnf_loses_no_text_between_rules() {
    // A name could be continued by what follows it, and one literal is the prefix of another.
    let names = "root ::= name root \"end\" | \"\"\nname ::= [a-z]+";
    check(Spec::Gbnf(names.into()), &["", "aend", "xyendend", "endend"], &["end", "a", "aen"]);
    let signs = "root ::= sum\nsum ::= num (\"+\" sum | \"+=\" sum)? | \"(\" sum \")\"\nnum ::= \"=\"? [0-9]+ sign?\nsign ::= \"+\"";
    check(Spec::Gbnf(signs.into()), &["1+=2", "1++2", "1++=2", "(1+)", "1+==2+"], &["1+=", "1=2", "+"]);
    let lines = "root ::= line+\nline ::= \"- \" (text \"\\n\" | root)\ntext ::= [^\\n]*";
    check(Spec::Gbnf(lines.into()), &["- \n", "- - a\n- é - \n"], &["- a", "a\n"]);
    let deep = "root ::= \"a\" root \"a\"* | [a-c]{0,3} \"ab\"";
    check(Spec::Gbnf(deep.into()), &["ab", "aab", "aabaa", "abcabaa", "aaaabab"], &["a", "abc", "ba"]);
}

#[test]
fn gbnf_keeps_the_lexemes_that_lose_none() {
    let json = r#"
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
        ws ::= | " " | "\n" [ \t]{0,20}
    "#;
    let lark = crate::gbnf::to_lark(json).unwrap();
    let named = |name: &str| lark.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((named("T"), named("r")), (3, 4), "{lark}");
    let good = ["{}", "{\"a\": [1, -2.5e3, \"x\\n\"],\n \"b\":null}", "{\"a\":{\"b\":[[]]}}"];
    check(Spec::Gbnf(json.into()), &good, &["{", "{a}", "{\"a\":01}", "[]"]);
}

#[test]
fn what_is_wrong_with_gbnf_is_said_with_its_place() {
    for (source, error) in [
        ("root ::= \"a", "line 1, column 10: a text is closed by \""),
        ("root ::= b\n", "line 1, column 10: there is no rule named b"),
        ("a ::= \"a\"", "there is no rule named root"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: there is another rule named root"),
        ("root ::= *", "line 1, column 10: there is nothing to repeat"),
        ("root ::= [z-a]", "line 1, column 11: 'z' comes after 'a'"),
        ("root ::= \"\\q\"", "line 1, column 11: there is no such escape"),
        ("root ::= \"a\"{5,2}", "line 1, column 17: a repetition's most is less than its least"),
        ("root ::= (\"a\"", "line 1, column 14: a group is closed by )"),
        ("root = \"a\"", "line 1, column 6: ::= follows a rule's name"),
        ("root ::= \"a\"{9999}", "line 1, column 14: a repetition is at most 4096"),
    ] {
        assert_eq!(refusal(Spec::Gbnf(source.into())), error);
    }
}

#[test]
fn lark_has_control_tokens_and_schemas_in_it() {
    let vocabulary = vocabulary();
    let call = vocabulary.control("<|call|>").unwrap();
    let schema = json_in_lark(r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}"#, &|| false).unwrap();
    let source = format!("start: <|call|> args <|end|>\nargs: %json {schema}\n");
    let grammar = Grammar::compile(&Spec::Lark(source), &vocabulary).unwrap();
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; vocabulary.mask_words()];
    matcher.allowed(&mut mask).unwrap();
    let allowed: Vec<u32> =
        (0..vocabulary.tokens() as u32).filter(|&t| mask[t as usize / 32] >> (t % 32) & 1 == 1).collect();
    assert_eq!(allowed, [call]);
    matcher.accept(call).unwrap();
    say(&mut matcher, "{\"n\": 12}").unwrap();
    assert!(!matcher.is_accepting());
    matcher.accept(vocabulary.control("<|end|>").unwrap()).unwrap();
    assert!(matcher.is_accepting() && matcher.is_stopped());
    matcher.allowed(&mut mask).unwrap();
    assert!(mask.iter().all(|&word| word == 0));
    // No text spells a control token.
    let mut matcher = grammar.matcher();
    assert!(say(&mut matcher, "<|call|>").is_err());
}

#[test]
fn what_was_accepted_can_be_taken_back() {
    let grammar = grammar(Spec::Regex("ab|ac".into()));
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; grammar.vocabulary().mask_words()];
    matcher.accept(b'a'.into()).unwrap();
    matcher.accept(b'b'.into()).unwrap();
    assert!(matcher.is_stopped());
    matcher.rollback(1).unwrap();
    assert!(!matcher.is_stopped() && !matcher.is_accepting());
    matcher.allowed(&mut mask).unwrap();
    assert_eq!(mask[3], 1 << (b'b' % 32) | 1 << (b'c' % 32));
    matcher.accept(b'c'.into()).unwrap();
    assert!(matcher.is_accepting());
    assert!(matcher.accept(b'x'.into()).is_err());
    assert!(matcher.rollback(1).is_err(), "nothing can be asked of it any more");
}

#[test]
fn matchers_of_one_grammar_know_nothing_of_each_other() {
    let grammar = grammar(Spec::JsonObject);
    let (mut one, mut other) = (grammar.matcher(), grammar.matcher());
    say(&mut one, "{\"a\": [1, 2").unwrap();
    say(&mut other, "{}").unwrap();
    assert!(other.is_stopped() && !one.is_accepting());
}
