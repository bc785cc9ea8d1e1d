//! Choice of the grammar parts that may be lexemes. A lexeme matches greedily. If it could end earlier, and
//! what may follow it there also continues the lexeme, valid texts would be lost. Such a lexeme is split, down
//! to single characters, which are always safe. The comparison treats all non-ASCII characters as one and takes
//! repetitions as unbounded. So it may split a lexeme without need, but never keeps an unsafe one.

use std::collections::{HashMap, HashSet};

use super::Expr;
use crate::limits::{
    LEXEME_EDGES_MAX, LEXEME_NESTING_MAX, LEXEME_PAIRS_MAX, LEXEME_PASSES_MAX, LEXEME_ROUNDS_MAX,
};

/// Choice of a grammar's lexemes.
#[derive(Debug)]
pub(super) struct Lexemes<'a> {
    /// By rule: it may be a lexeme, because no recursion and no control token can be reached from it.
    terminal: &'a [bool],
    /// By rule: it is split although it may be a lexeme.
    apart: Vec<bool>,
    /// Literals that are split into characters.
    literals: HashSet<&'a str>,
    all_literals: bool,
}

impl<'a> Lexemes<'a> {
    pub(super) fn of(rules: &'a [Expr], terminal: &'a [bool], root: usize) -> Lexemes<'a> {
        let apart = vec![false; rules.len()];
        let mut lexemes = Lexemes { terminal, apart, literals: HashSet::new(), all_literals: false };
        // A terminal root is matched as a whole.
        if terminal[root] {
            return lexemes;
        }
        for _ in 0..LEXEME_ROUNDS_MAX {
            match Round::run(rules, &lexemes) {
                Some(clashes) if clashes.is_empty() => return lexemes,
                Some(clashes) => clashes.into_iter().for_each(|key| lexemes.take_apart(key)),
                None => break,
            }
        }
        lexemes.apart.fill(true);
        lexemes.all_literals = true;
        lexemes
    }

    /// Whether rules use this rule as a lexeme.
    pub(super) fn is_rule(&self, rule: usize) -> bool {
        self.terminal[rule] && !self.apart[rule]
    }

    pub(super) fn is_literal(&self, text: &str) -> bool {
        !self.all_literals && !self.literals.contains(text)
    }

    fn take_apart(&mut self, key: Key<'a>) {
        match key {
            Key::Rule(rule) => self.apart[rule] = true,
            Key::Literal(text) => _ = self.literals.insert(text),
            Key::Class(..) => {}
        }
    }
}

/// Set of characters; all non-ASCII ones count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Chars {
    ascii: u128,
    other: bool,
}

impl Chars {
    fn one(c: char) -> Chars {
        match u32::from(c) {
            c @ 0..128 => Chars { ascii: 1 << c, other: false },
            _ => Chars { ascii: 0, other: true },
        }
    }

    fn class(negated: bool, ranges: &[(char, char)]) -> Chars {
        let mut chars = Chars::default();
        for &(first, last) in ranges {
            let ascii = u32::from(first)..=u32::from(last).min(127);
            chars.ascii |= ascii.fold(0, |all, c| all | 1 << c);
            chars.other |= !last.is_ascii();
        }
        if negated { Chars { ascii: !chars.ascii, other: true } } else { chars }
    }

    fn or(self, other: Chars) -> Chars {
        Chars { ascii: self.ascii | other.ascii, other: self.other || other.other }
    }

    fn meets(self, other: Chars) -> bool {
        self.ascii & other.ascii != 0 || self.other && other.other
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    Rule(usize),
    Literal(&'a str),
    Class(bool, &'a [(char, char)]),
}

/// First characters of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Begin {
    chars: Chars,
    /// The expression may match the empty text.
    nullable: bool,
}

/// Position automaton of a lexeme: its characters by position, and the positions that may follow each.
#[derive(Debug, Default)]
struct Automaton {
    chars: Vec<Chars>,
    after: Vec<Vec<usize>>,
    edges: usize,
    first: Vec<usize>,
    accepts: Vec<bool>,
    nullable: bool,
}

/// First and last positions of a subexpression.
#[derive(Clone, Default)]
struct PositionSets {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    /// Builds the automaton. None: it is too large.
    fn new(rules: &[Expr], key: Key<'_>) -> Option<Automaton> {
        let mut automaton = Automaton::default();
        let part = match key {
            Key::Rule(rule) => automaton.part(rules, &rules[rule], 0)?,
            Key::Literal(text) => automaton.literal(text)?,
            Key::Class(negated, ranges) => automaton.position(Chars::class(negated, ranges)),
        };
        automaton.accepts = vec![false; automaton.chars.len()];
        part.last.iter().for_each(|&at| automaton.accepts[at] = true);
        (automaton.first, automaton.nullable) = (part.first, part.nullable);
        Some(automaton)
    }

    fn position(&mut self, chars: Chars) -> PositionSets {
        let at = self.chars.len();
        self.chars.push(chars);
        self.after.push(Vec::new());
        PositionSets { first: vec![at], last: vec![at], nullable: false }
    }

    fn literal(&mut self, text: &str) -> Option<PositionSets> {
        let mut whole = PositionSets { nullable: true, ..PositionSets::default() };
        for c in text.chars() {
            let next = self.position(Chars::one(c));
            whole = self.joined(whole, next)?;
        }
        Some(whole)
    }

    fn part(&mut self, rules: &[Expr], expr: &Expr, depth: usize) -> Option<PositionSets> {
        if depth > LEXEME_NESTING_MAX {
            return None;
        }
        match expr {
            Expr::Literal(text) => self.literal(text),
            Expr::Class { negated, ranges } => Some(self.position(Chars::class(*negated, ranges))),
            Expr::Rule(rule) => self.part(rules, &rules[*rule], depth + 1),
            Expr::Control(_) => None,
            Expr::Sequence(parts) => {
                let mut whole = PositionSets { nullable: true, ..PositionSets::default() };
                for part in parts {
                    let next = self.part(rules, part, depth + 1)?;
                    whole = self.joined(whole, next)?;
                }
                Some(whole)
            }
            Expr::Alternatives(parts) => {
                let mut whole = PositionSets::default();
                for part in parts {
                    let part = self.part(rules, part, depth + 1)?;
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                    whole.nullable |= part.nullable;
                }
                Some(whole)
            }
            Expr::Repeat(part, least, most) => {
                let mut part = self.part(rules, part, depth + 1)?;
                if *most != Some(1) {
                    self.connect(&part.last, &part.first)?;
                }
                part.nullable |= *least == 0;
                Some(part)
            }
        }
    }

    fn joined(&mut self, mut before: PositionSets, next: PositionSets) -> Option<PositionSets> {
        self.connect(&before.last, &next.first)?;
        if before.nullable {
            before.first.extend(&next.first);
        }
        let mut last = next.last;
        if next.nullable {
            last.extend(&before.last);
        }
        Some(PositionSets { first: before.first, last, nullable: before.nullable && next.nullable })
    }

    fn connect(&mut self, from: &[usize], to: &[usize]) -> Option<()> {
        self.edges += from.len() * to.len() + 1;
        if self.edges > LEXEME_EDGES_MAX {
            return None;
        }
        from.iter().for_each(|&at| self.after[at].extend(to));
        Some(())
    }

    fn begin(&self) -> Begin {
        Begin { chars: self.chars_of(&self.first), nullable: self.nullable }
    }

    fn chars_of(&self, positions: &[usize]) -> Chars {
        positions.iter().fold(Chars::default(), |all, &at| all.or(self.chars[at]))
    }

    /// Whether `other` can continue, with a character of `follow`, where this lexeme may end.
    fn ends_within(&self, follow: Chars, other: &Automaton, pairs: &mut usize) -> bool {
        let mut seen = HashSet::new();
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut reach = |open: &mut Vec<(usize, usize)>, here: &[usize], there: &[usize]| {
            for &at in here {
                for &their in there {
                    *pairs += 1;
                    if self.chars[at].meets(other.chars[their]) && seen.insert((at, their)) {
                        open.push((at, their));
                    }
                }
                if *pairs > LEXEME_PAIRS_MAX {
                    return false;
                }
            }
            true
        };
        if !reach(&mut open, &self.first, &other.first) {
            return true;
        }
        while let Some((at, their)) = open.pop() {
            if self.accepts[at] && other.chars_of(&other.after[their]).meets(follow) {
                return true;
            }
            if !reach(&mut open, &self.after[at], &other.after[their]) {
                return true;
            }
        }
        false
    }
}

struct Round<'a, 'b> {
    rules: &'a [Expr],
    lexemes: &'b Lexemes<'a>,
    automata: HashMap<Key<'a>, Option<Automaton>>,
    begins: Vec<Begin>,
    follows: Vec<Chars>,
    lexeme_follows: HashMap<Key<'a>, Chars>,
}

impl<'a, 'b> Round<'a, 'b> {
    /// Finds the lexemes that match too much. None: a bound was reached first.
    fn run(rules: &'a [Expr], lexemes: &'b Lexemes<'a>) -> Option<Vec<Key<'a>>> {
        let nothing = Begin { chars: Chars::default(), nullable: false };
        let mut round = Round {
            rules,
            lexemes,
            automata: HashMap::new(),
            begins: vec![nothing; rules.len()],
            follows: vec![Chars::default(); rules.len()],
            lexeme_follows: HashMap::new(),
        };
        let parts: Vec<usize> = (0..rules.len()).filter(|&rule| !lexemes.is_rule(rule)).collect();
        round.settle(|round| {
            let mut changed = false;
            // A used rule tends to come after its users, so the reverse order converges faster.
            for &rule in parts.iter().rev() {
                let begin = round.begin(&rules[rule]);
                changed |= std::mem::replace(&mut round.begins[rule], begin) != begin;
            }
            changed
        })?;
        round.settle(|round| {
            let before = round.follows.clone();
            for &rule in &parts {
                let after = round.follows[rule];
                round.walk(&rules[rule], after);
            }
            before != round.follows
        })?;
        let large = round.automata.iter().filter(|(_, automaton)| automaton.is_none());
        let mut clashes: HashSet<Key<'a>> = large.map(|(&key, _)| key).collect();
        let mut pairs = 0;
        let all = || round.automata.iter().filter_map(|(&key, made)| Some((key, made.as_ref()?)));
        for (key, automaton) in all() {
            let follow = round.lexeme_follows.get(&key).copied().unwrap_or_default();
            for (other, theirs) in all() {
                pairs += 1;
                if automaton.ends_within(follow, theirs, &mut pairs) {
                    clashes.insert(other);
                }
                if pairs > LEXEME_PAIRS_MAX {
                    return None;
                }
            }
        }
        Some(clashes.into_iter().collect())
    }

    fn settle(&mut self, mut pass: impl FnMut(&mut Self) -> bool) -> Option<()> {
        (0..LEXEME_PASSES_MAX).any(|_| !pass(self)).then_some(())
    }

    /// Lexeme that the expression is, if any.
    fn key(&self, expr: &'a Expr) -> Option<Key<'a>> {
        match expr {
            Expr::Literal(text) if self.lexemes.is_literal(text) => Some(Key::Literal(text)),
            Expr::Class { negated, ranges } => Some(Key::Class(*negated, ranges)),
            Expr::Rule(rule) if self.lexemes.is_rule(*rule) => Some(Key::Rule(*rule)),
            _ => None,
        }
    }

    fn begin(&mut self, expr: &'a Expr) -> Begin {
        if let Some(key) = self.key(expr) {
            let rules = self.rules;
            let automaton = self.automata.entry(key).or_insert_with(|| Automaton::new(rules, key));
            let unknown = Begin { chars: Chars { ascii: u128::MAX, other: true }, nullable: true };
            return automaton.as_ref().map_or(unknown, Automaton::begin);
        }
        let empty = Begin { chars: Chars::default(), nullable: true };
        match expr {
            Expr::Literal(text) => {
                text.chars().next().map_or(empty, |c| Begin { chars: Chars::one(c), nullable: false })
            }
            Expr::Rule(rule) => self.begins[*rule],
            Expr::Class { .. } | Expr::Control(_) => Begin { nullable: false, ..empty },
            Expr::Sequence(parts) => {
                let mut whole = empty;
                for part in parts {
                    let next = self.begin(part);
                    whole = Begin { chars: whole.chars.or(next.chars), nullable: next.nullable };
                    if !next.nullable {
                        break;
                    }
                }
                whole
            }
            Expr::Alternatives(parts) => {
                let nothing = Begin { nullable: false, ..empty };
                parts.iter().fold(nothing, |whole, part| {
                    let next = self.begin(part);
                    Begin { chars: whole.chars.or(next.chars), nullable: whole.nullable || next.nullable }
                })
            }
            Expr::Repeat(part, least, _) => {
                let once = self.begin(part);
                Begin { nullable: once.nullable || *least == 0, ..once }
            }
        }
    }

    /// Records what may follow the lexemes and rules of an expression that is followed by `after`. Returns how
    /// it begins.
    fn walk(&mut self, expr: &'a Expr, after: Chars) -> Begin {
        if let Some(key) = self.key(expr) {
            let follow = self.lexeme_follows.entry(key).or_default();
            *follow = follow.or(after);
            return self.begin(expr);
        }
        match expr {
            Expr::Rule(rule) => {
                self.follows[*rule] = self.follows[*rule].or(after);
                self.begins[*rule]
            }
            Expr::Literal(_) | Expr::Class { .. } | Expr::Control(_) => self.begin(expr),
            Expr::Sequence(parts) => {
                let mut whole = Begin { chars: Chars::default(), nullable: true };
                for part in parts.iter().rev() {
                    let follow = if whole.nullable { whole.chars.or(after) } else { whole.chars };
                    let next = self.walk(part, follow);
                    whole = match next.nullable {
                        true => Begin { chars: whole.chars.or(next.chars), ..whole },
                        false => next,
                    };
                }
                whole
            }
            Expr::Alternatives(parts) => {
                let mut whole = Begin { chars: Chars::default(), nullable: false };
                for part in parts {
                    let next = self.walk(part, after);
                    whole = Begin {
                        chars: whole.chars.or(next.chars),
                        nullable: whole.nullable || next.nullable,
                    };
                }
                whole
            }
            Expr::Repeat(part, least, most) => {
                let again = if *most == Some(1) { Chars::default() } else { self.begin(part).chars };
                let once = self.walk(part, after.or(again));
                Begin { nullable: once.nullable || *least == 0, ..once }
            }
        }
    }
}
