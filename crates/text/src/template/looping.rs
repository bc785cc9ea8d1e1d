//! `loop`: state of a `for` block. Values that the loop's `if` skips are only looked for when needed, because the
//! body may change what the `if` sees.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

use super::{
    compare,
    eval::CallArgs,
    meter::{Outcome, fail},
    run::Run,
    tree::Statement,
    value::{Items, Value},
};

/// Running loop.
pub(super) struct Loop {
    source: RefCell<Items>,
    /// Number of values read from the source.
    seen: Cell<usize>,
    /// Values read, but not visited yet.
    ahead: RefCell<VecDeque<Value>>,
    /// Number of values visited, the current one included.
    index: Cell<usize>,
    before: RefCell<Option<Value>>,
    current: RefCell<Option<Value>>,
    changed: RefCell<Option<Vec<Value>>>,
    /// Statement, and the scope it runs in.
    pub(super) statement: u32,
    pub(super) scope: u32,
    pub(super) depth: usize,
}

impl Loop {
    pub(super) fn new(source: Items, statement: u32, scope: u32, depth: usize) -> Loop {
        Loop {
            source: RefCell::new(source),
            seen: Cell::new(0),
            ahead: RefCell::default(),
            index: Cell::new(0),
            before: RefCell::default(),
            current: RefCell::default(),
            changed: RefCell::default(),
            statement,
            scope,
            depth,
        }
    }

    /// Drops all values.
    pub(super) fn end(&self) {
        *self.source.borrow_mut() = Items::Made(Vec::new());
        self.ahead.borrow_mut().clear();
        *self.before.borrow_mut() = None;
        *self.current.borrow_mut() = None;
        *self.changed.borrow_mut() = None;
    }
}

impl<'a> Run<'a> {
    /// Advances to a loop's next value.
    pub(super) fn next_item(&mut self, state: &Loop) -> Outcome<Option<Value>> {
        let ahead = state.ahead.borrow_mut().pop_front();
        let next = match ahead {
            Some(item) => Some(item),
            None => self.pull(state)?,
        };
        if next.is_some() {
            state.index.set(state.index.get() + 1);
            let last = state.current.replace(next.clone());
            state.before.replace(last);
        }
        Ok(next)
    }

    /// Next value of the source that the loop's `if` accepts.
    fn pull(&mut self, state: &Loop) -> Outcome<Option<Value>> {
        loop {
            let item = state.source.borrow().get(state.seen.get());
            let Some(item) = item else { return Ok(None) };
            state.seen.set(state.seen.get() + 1);
            let (_, Statement::For(each)) = &self.tree.statements[state.statement as usize] else {
                return fail("not a loop");
            };
            let Some(only_if) = each.only_if else { return Ok(Some(item)) };
            let before = self.open(state.scope);
            self.assign(&each.target, item.clone())?;
            let is_wanted = self.eval(only_if)?.is_true();
            self.close(before);
            if is_wanted {
                return Ok(Some(item));
            }
        }
    }

    /// Value after the current one.
    fn peek(&mut self, state: &Loop) -> Outcome<Option<Value>> {
        if state.ahead.borrow().is_empty() {
            let next = self.pull(state)?;
            state.ahead.borrow_mut().extend(next);
        }
        Ok(state.ahead.borrow().front().cloned())
    }

    fn length(&mut self, state: &Loop) -> Outcome<usize> {
        let (_, Statement::For(each)) = &self.tree.statements[state.statement as usize] else {
            return fail("not a loop");
        };
        if each.only_if.is_some() {
            while let Some(item) = self.pull(state)? {
                self.meter.values(1)?;
                state.ahead.borrow_mut().push_back(item);
            }
            return Ok(state.index.get() + state.ahead.borrow().len());
        }
        Ok(state.source.borrow().len())
    }

    /// `loop.name`; `None` for attributes that a loop does not have.
    #[inline(never)]
    pub(super) fn loop_attribute(&mut self, state: &Loop, name: &str) -> Outcome<Option<Value>> {
        let number = |number: usize| Value::Int(number as i128);
        let index = state.index.get();
        Ok(Some(match name {
            "index" => number(index),
            "index0" => number(index.saturating_sub(1)),
            "first" => Value::Bool(index == 1),
            "last" => Value::Bool(self.peek(state)?.is_none()),
            "length" => number(self.length(state)?),
            "revindex" => number(self.length(state)?.saturating_sub(index) + 1),
            "revindex0" => number(self.length(state)?.saturating_sub(index)),
            "depth" => number(state.depth + 1),
            "depth0" => number(state.depth),
            "previtem" => match &*state.before.borrow() {
                Some(item) => item.clone(),
                None => Value::undefined("there is no previous item"),
            },
            "nextitem" => match self.peek(state)? {
                Some(item) => item,
                None => Value::undefined("there is no next item"),
            },
            _ => return Ok(None),
        }))
    }

    /// `loop.cycle(…)` and `loop.changed(…)`.
    #[inline(never)]
    pub(super) fn loop_method(&mut self, state: &Loop, name: &str, args: CallArgs) -> Outcome<Value> {
        let values = args.positional;
        match name {
            "cycle" if values.is_empty() => fail("no items for cycling given"),
            "cycle" => Ok(values[state.index.get().saturating_sub(1) % values.len()].clone()),
            "changed" => {
                if values.iter().any(Value::holds_objects) {
                    return fail("changed() cannot keep a namespace or a loop");
                }
                let (new, last) = (Value::tuple(values.clone())?, state.changed.take());
                let is_same = match last {
                    Some(last) => compare::equal(self.meter, &Value::tuple(last)?, &new)?,
                    None => false,
                };
                *state.changed.borrow_mut() = Some(values);
                Ok(Value::Bool(!is_same))
            }
            _ => fail(format!("'LoopContext object' has no attribute '{name}'")),
        }
    }
}
