//! Parsed template: expressions and statements in two flat arenas, referenced by index, so that dropping one needs
//! no recursion. Chains (`a + b + c`, `a.b.c`, `a|f|g`, `not not a`, `elif`) are lists instead of nested nodes.

use std::{collections::HashMap, sync::Arc};

use super::{checks::Check, filters::Filter, text::Text};

/// Index of a variable's name.
pub(super) type NameId = u32;
/// Index in [`Tree::expressions`].
pub(super) type ExprId = u32;
/// Statements in order, by their indices in [`Tree::statements`].
pub(super) type Block = Box<[u32]>;

/// Parsed template.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) names: Vec<Arc<str>>,
    /// Indices of the names.
    pub(super) name_ids: HashMap<Arc<str>, NameId>,
    pub(super) expressions: Vec<Expr>,
    pub(super) statements: Vec<(u32, Statement)>,
    pub(super) macros: Vec<Macro>,
    pub(super) root: Block,
}

/// Expression.
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
    /// Operators applied from the left.
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
    /// Repeated `not`.
    Not {
        times: u32,
        of: ExprId,
    },
    /// Repeated signs; true is minus.
    Signed {
        signs: Box<[bool]>,
        of: ExprId,
    },
    Cond {
        then: ExprId,
        test: ExprId,
        otherwise: Option<ExprId>,
    },
    /// Suffixes of a value, from the left.
    Postfix {
        base: ExprId,
        steps: Box<[Postfix]>,
    },
}

/// Arithmetic operator.
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

/// Comparison operator.
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

/// Suffix of a value.
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

/// Filter with its arguments; `None` if no filter has the name.
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

/// Statement; the arena stores its line beside it.
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
    /// Block with its own variables.
    Scope(Block),
    Break,
    Continue,
}

/// `for` loop.
#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: ExprId,
    pub(super) only_if: Option<ExprId>,
    pub(super) recursive: bool,
    pub(super) body: Block,
    pub(super) otherwise: Block,
}

/// Assignment target.
#[derive(Debug)]
pub(super) enum Target {
    Name(NameId),
    Attribute(NameId, Arc<str>),
    Tuple(Box<[Target]>),
}

/// Names with their defaults.
pub(super) type Parameters = Box<[(NameId, Option<ExprId>)]>;

/// Macro, or the body of a `call` block.
#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) parameters: Parameters,
    pub(super) body: Block,
}
