//! GBNF against an enumeration of the texts of random grammars.

use std::collections::BTreeSet;

use super::*;

const ALPHABET: [&str; 4] = ["a", "b", "é", "\n"];
const LENGTH_MAX: usize = 4; // characters
const RULES: usize = 4;

enum Node {
    Text(&'static str),
    Class(&'static str, &'static [&'static str]),
    Rule(usize),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, usize, Option<usize>),
}

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn node(&mut self, depth: usize) -> Node {
        let kind = self.below(if depth == 0 { 6 } else { 10 });
        let some = |random: &mut Random| {
            let count = 2 + random.below(2);
            (0..count).map(|_| random.node(depth - 1)).collect()
        };
        match kind {
            0 | 1 => Node::Text(["a", "b", "ab", "ba", "aab", "é", "\\n", "éa", ""][self.below(9)]),
            2 | 3 => match self.below(3) {
                0 => Node::Class("[ab]", &["a", "b"]),
                1 => Node::Class("[^a\\n]", &["b", "é"]),
                _ => Node::Class("[é\\n]", &["é", "\n"]),
            },
            4 | 5 => Node::Rule(self.below(RULES)),
            6 | 7 => Node::Sequence(some(self)),
            8 => Node::Either(some(self)),
            _ => {
                let (least, most) = [(0, None), (1, None), (0, Some(1)), (1, Some(2))][self.below(4)];
                Node::Repeat(Box::new(self.node(depth - 1)), least, most)
            }
        }
    }
}

impl Node {
    fn source(&self) -> String {
        let all = |nodes: &[Node], between: &str| {
            format!("({})", nodes.iter().map(Node::source).collect::<Vec<String>>().join(between))
        };
        match self {
            Node::Text(text) => format!("\"{text}\""),
            Node::Class(source, _) => (*source).to_owned(),
            Node::Rule(0) => "root".to_owned(),
            Node::Rule(rule) => format!("r{rule}"),
            Node::Sequence(nodes) => all(nodes, " "),
            Node::Either(nodes) => all(nodes, " | "),
            Node::Repeat(node, least, None) => format!("({}){}", node.source(), ["*", "+"][*least]),
            Node::Repeat(node, least, Some(most)) => format!("({}){{{least},{most}}}", node.source()),
        }
    }

    /// Texts that match, if the texts of rules are `rules`.
    fn texts(&self, rules: &[BTreeSet<String>]) -> BTreeSet<String> {
        match self {
            Node::Text(text) => [text.replace("\\n", "\n")].into(),
            Node::Class(_, texts) => texts.iter().map(|text| (*text).to_owned()).collect(),
            Node::Rule(rule) => rules[*rule].clone(),
            Node::Sequence(nodes) => {
                nodes.iter().fold([String::new()].into(), |whole, node| joined(&whole, &node.texts(rules)))
            }
            Node::Either(nodes) => nodes.iter().flat_map(|node| node.texts(rules)).collect(),
            Node::Repeat(node, least, most) => {
                let once = node.texts(rules);
                let mut whole: BTreeSet<String> = [String::new()].into();
                let mut all = BTreeSet::new();
                for count in 0..=most.unwrap_or(LENGTH_MAX + 1) {
                    if count >= *least {
                        all.extend(whole.iter().cloned());
                    }
                    whole = joined(&whole, &once);
                }
                all
            }
        }
    }
}

fn joined(before: &BTreeSet<String>, after: &BTreeSet<String>) -> BTreeSet<String> {
    let pairs = before.iter().flat_map(|one| after.iter().map(move |other| format!("{one}{other}")));
    pairs.filter(|text| text.chars().count() <= LENGTH_MAX).collect()
}

#[test]
fn random_grammars_allow_the_texts_that_they_say() {
    let mut every = vec![String::new()];
    for from in 0.. {
        if every[from].chars().count() == LENGTH_MAX {
            break;
        }
        every.extend(ALPHABET.map(|c| format!("{}{c}", every[from])));
    }
    let (mut random, mut recursive, mut compared) = (Random(7), 0, 0);
    let vocabulary = vocabulary();
    for _ in 0..300 {
        let nodes: Vec<Node> = (0..RULES).map(|_| random.node(2)).collect();
        let name = |rule: usize| if rule == 0 { "root".to_owned() } else { format!("r{rule}") };
        let rules = nodes.iter().enumerate();
        let source: String =
            rules.map(|(rule, node)| format!("{} ::= {}\n", name(rule), node.source())).collect();
        let mut texts = vec![BTreeSet::new(); RULES];
        loop {
            let more: Vec<BTreeSet<String>> = nodes.iter().map(|node| node.texts(&texts)).collect();
            if more == texts {
                break;
            }
            texts = more;
        }
        // A rule that never ends matches no text, and a grammar that reaches it fails.
        let ends = texts.iter().all(|texts| !texts.is_empty());
        let Ok(grammar) = Grammar::compile(&Spec::Gbnf(source.clone()), &vocabulary) else {
            assert!(!ends, "{source}");
            continue;
        };
        if !ends {
            continue;
        }
        compared += 1;
        recursive += usize::from(source.matches("root").count() > 1);
        for text in &every {
            let allowed = accepts(&grammar, text);
            assert_eq!(
                allowed,
                texts[0].contains(text),
                "{text:?} of\n{source}{:?}",
                crate::gbnf::to_lark(&source)
            );
        }
    }
    assert!(recursive > 30 && compared > 100, "{recursive} of {compared} are recursive");
}
