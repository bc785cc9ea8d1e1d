//! A parsed template: expressions and statements in two flat arenas, referring to each other by number, so that
//! dropping one takes no recursion. Chains (`a + b + c`, `a.b.c`, `a|f|g`, `not not a`, `elif`) are lists and not
//! towers.

use std::{collections::HashMap, sync::Arc};

use super::{checks::Check, filters::Filter, text::Text};

/// A name of a variable, by number.
pub(super) type NameId = u32;
/// An expression, by its place in [`Tree::expressions`].
pub(super) type ExprId = u32;
/// Statements in order, by their places in [`Tree::statements`].
pub(super) type Block = Box<[u32]>;

/// A parsed template.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) names: Vec<Arc<str>>,
    /// Their numbers.
    pub(super) name_ids: HashMap<Arc<str>, NameId>,
    pub(super) expressions: Vec<Expr>,
    pub(super) statements: Vec<(u32, Statement)>,
    pub(super) macros: Vec<Macro>,
    pub(super) root: Block,
}

/// What has a value.
#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    Name(NameId),
    List(Box<[ExprId]>),
    Tuple(Box<[ExprId]>),
    Dict(Box<[(ExprId, ExprId)]>),
    /// One operator after another, from the left.
    Math {
        first: ExprId,
        rest: Box<[(Math, ExprId)]>,
    },
    Concat(Box<[ExprId]>),
    Compare {
        first: ExprId,
        rest: Box<[(Comparison, ExprId)]>,
    },
    And(Box<[ExprId]>),
    Or(Box<[ExprId]>),
    /// So many `not`.
    Not {
        times: u32,
        of: ExprId,
    },
    /// So many signs; true is minus.
    Signed {
        signs: Box<[bool]>,
        of: ExprId,
    },
    Cond {
        then: ExprId,
        test: ExprId,
        otherwise: Option<ExprId>,
    },
    /// What follows a value, from the left.
    Postfix {
        base: ExprId,
        steps: Box<[Postfix]>,
    },
}

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Math {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

/// A comparing operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// What stands behind a value.
#[derive(Debug)]
pub(super) enum Postfix {
    Attribute(Text),
    Item(ExprId),
    Slice([Option<ExprId>; 3]),
    Call(Args),
    Method(Text, Args),
    Filter(FilterUse),
    Test { name: Arc<str>, check: Option<Check>, args: Args, negated: bool },
}

/// A filter with its arguments; none where no filter has the name.
#[derive(Debug)]
pub(super) struct FilterUse {
    pub(super) name: Arc<str>,
    pub(super) filter: Option<Filter>,
    pub(super) args: Args,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Box<[ExprId]>,
    pub(super) named: Box<[(Arc<str>, ExprId)]>,
    /// `*values`.
    pub(super) spread: Option<ExprId>,
    /// `**values`.
    pub(super) spread_named: Option<ExprId>,
}

/// What is done; beside each stands its line.
#[derive(Debug)]
pub(super) enum Statement {
    Text(Text),
    Print(Box<[ExprId]>),
    If {
        branches: Box<[(ExprId, Block)]>,
        otherwise: Block,
    },
    For(Box<For>),
    Set(Target, ExprId),
    SetBlock {
        target: Target,
        filters: Box<[FilterUse]>,
        body: Block,
    },
    With {
        assignments: Box<[(Target, ExprId)]>,
        body: Block,
    },
    Macro {
        name: NameId,
        id: u32,
    },
    Call {
        call: ExprId,
        caller: u32,
    },
    Filter {
        filters: Box<[FilterUse]>,
        body: Block,
    },
    /// A block with variables of its own.
    Scope(Block),
    Break,
    Continue,
}

/// A loop.
#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: ExprId,
    pub(super) only_if: Option<ExprId>,
    pub(super) recursive: bool,
    pub(super) body: Block,
    pub(super) otherwise: Block,
}

/// What can be assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(NameId),
    Attribute(NameId, Arc<str>),
    Tuple(Box<[Target]>),
}

/// Names with their defaults.
pub(super) type Parameters = Box<[(NameId, Option<ExprId>)]>;

/// A macro, or the body of a `call` block.
#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) parameters: Parameters,
    pub(super) body: Block,
}
