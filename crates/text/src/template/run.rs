//! Run of a template over a conversation: scopes, statements and output. The meter limits resources; the depth of
//! any recursion is counted here.

use std::{mem, rc::Rc, sync::Arc};

use super::{
    looping::Loop,
    meter::{Fault, Meter, Outcome, fail},
    print,
    text::{Text, TextBuilder},
    tree::{FilterUse, NameId, Statement, Target, Tree},
    value::{FailedLookup, Items, Object, Value},
};
use crate::limits::{TEMPLATE_DEPTH_MAX, TEMPLATE_OUTPUT_BYTES_MAX};

/// How a block ended.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Flow {
    On,
    Break,
    Continue,
}

/// Variables of a block.
pub(super) struct Scope {
    parent: u32,
    /// Distinguishes a scope from earlier ones at the same index.
    serial: u64,
    variables: Vec<(NameId, Value)>,
}

/// Names that blocks set themselves, if the template uses them.
pub(super) struct OwnNames {
    the_loop: Option<NameId>,
    pub(super) caller: Option<NameId>,
    pub(super) varargs: Option<NameId>,
    pub(super) kwargs: Option<NameId>,
}

/// State of a run.
pub(super) struct Run<'a> {
    pub(super) tree: &'a Tree,
    pub(super) meter: &'a Meter<'a>,
    /// Time in seconds since 1970, if the request states it.
    pub(super) now: Option<i64>,
    /// Current output: the prompt or a captured string.
    out: TextBuilder<'a>,
    captures: usize,
    globals: Vec<Option<Value>>,
    pub(super) own_names: OwnNames,
    scopes: Vec<Scope>,
    pub(super) current: u32,
    serial: u64,
    depth: usize,
    pub(super) macros: usize,
    /// Line of the current statement.
    pub(super) line: u32,
}

impl<'a> Run<'a> {
    /// Creates a run with these variables.
    pub(super) fn new(
        tree: &'a Tree,
        meter: &'a Meter<'a>,
        variables: Vec<(&str, Value)>,
        now: Option<i64>,
    ) -> Self {
        let mut globals = vec![None; tree.names.len()];
        for (name, value) in variables {
            if let Some(&id) = tree.name_ids.get(name) {
                globals[id as usize] = Some(value);
            }
        }
        let id = |name| tree.name_ids.get(name).copied();
        let own_names = OwnNames {
            the_loop: id("loop"),
            caller: id("caller"),
            varargs: id("varargs"),
            kwargs: id("kwargs"),
        };
        let root = Scope { parent: 0, serial: 0, variables: Vec::new() };
        Run {
            tree,
            meter,
            now,
            out: TextBuilder::new(meter),
            captures: 0,
            globals,
            own_names,
            scopes: vec![root],
            current: 0,
            serial: 0,
            depth: 0,
            macros: 0,
            line: 1,
        }
    }

    /// Runs the whole template. Returns the prompt, or the fault and its line.
    pub(super) fn finish(mut self) -> Result<TextBuilder<'a>, (Box<Fault>, u32)> {
        let tree = self.tree;
        match self.block(&tree.root) {
            Ok(_) => Ok(self.out),
            Err(fault) => Err((fault, self.line)),
        }
    }

    /// Counts a level of recursion; [`Run::leave`] ends it. After an error the run is over, so levels need not be
    /// ended.
    #[inline]
    pub(super) fn enter(&mut self) -> Outcome<()> {
        self.depth += 1;
        if self.depth > TEMPLATE_DEPTH_MAX { fail("too deep a recursion") } else { Ok(()) }
    }

    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Opens a scope inside another and makes it current. Returns the previous one.
    pub(super) fn open(&mut self, parent: u32) -> u32 {
        self.serial += 1;
        self.scopes.push(Scope { parent, serial: self.serial, variables: Vec::new() });
        mem::replace(&mut self.current, self.scopes.len() as u32 - 1)
    }

    /// Closes the newest scope and returns to another.
    pub(super) fn close(&mut self, before: u32) {
        self.scopes.pop();
        self.current = before;
    }

    /// Serial number of the current scope.
    pub(super) fn serial(&self) -> u64 {
        self.scopes[self.current as usize].serial
    }

    /// Whether the scope with this serial number still exists.
    pub(super) fn is_open(&self, scope: u32, serial: u64) -> bool {
        self.scopes.get(scope as usize).is_some_and(|scope| scope.serial == serial)
    }

    /// Value of a variable.
    pub(super) fn lookup(&self, name: NameId) -> Outcome<Value> {
        let mut at = self.current as usize;
        loop {
            let Scope { parent, variables, .. } = &self.scopes[at];
            if variables.len() > 16 {
                self.meter.steps(variables.len() as u64 / 16)?;
            }
            if let Some((_, value)) = variables.iter().find(|(own, _)| *own == name) {
                return Ok(value.clone());
            }
            if at == 0 {
                break;
            }
            at = *parent as usize;
        }
        Ok(match &self.globals[name as usize] {
            Some(value) => value.clone(),
            None => Value::Undefined(FailedLookup::Name(self.tree.names[name as usize].clone())),
        })
    }

    /// Sets a variable of the current scope.
    pub(super) fn set(&mut self, name: NameId, value: Value) -> Outcome<()> {
        let variables = &mut self.scopes[self.current as usize].variables;
        self.meter.steps(1 + variables.len() as u64 / 16)?;
        match variables.iter_mut().find(|(own, _)| *own == name) {
            Some((_, old)) => *old = value,
            None => {
                // Charged as the scope grows; a loop reuses its scope for each value.
                if variables.len() == variables.capacity() {
                    self.meter.bytes(size_of::<(NameId, Value)>() * (variables.len() + 4))?;
                }
                variables.push((name, value));
            }
        }
        Ok(())
    }

    /// Clears the current scope's variables.
    pub(super) fn clear(&mut self) {
        self.scopes[self.current as usize].variables.clear();
    }

    /// Assigns to a name, a namespace's attribute, or several.
    pub(super) fn assign(&mut self, target: &'a Target, value: Value) -> Outcome<()> {
        match target {
            Target::Name(name) => self.set(*name, value),
            Target::Attribute(name, attribute) => {
                let namespace = self.lookup(*name)?;
                let Value::Object(object) = &namespace else {
                    namespace.defined()?;
                    return fail("cannot assign attribute on non-namespace object");
                };
                let Object::Namespace(entries) = &**object else {
                    return fail("cannot assign attribute on non-namespace object");
                };
                if value.holds_objects() {
                    return fail("a namespace cannot hold a namespace or a loop");
                }
                let mut entries = entries.borrow_mut();
                self.meter.steps(1 + entries.len() as u64 * (1 + attribute.len() as u64 / 64) / 4)?;
                match entries.iter_mut().find(|(own, _)| own == attribute) {
                    Some((_, old)) => *old = value,
                    None => {
                        self.meter.bytes(size_of::<(Arc<str>, Value)>())?;
                        entries.push((attribute.clone(), value));
                    }
                }
                Ok(())
            }
            Target::Tuple(targets) => {
                value.defined()?;
                let items = Items::of(self.meter, &value)?;
                if items.len() != targets.len() {
                    let (found, wanted) = (items.len(), targets.len());
                    return fail(format!("{found} values to unpack, expected {wanted}"));
                }
                for (at, target) in targets.iter().enumerate() {
                    let item = items.get(at).unwrap_or(Value::None);
                    self.assign(target, item)?;
                }
                Ok(())
            }
        }
    }

    /// Runs statements in order.
    pub(super) fn block(&mut self, block: &'a [u32]) -> Outcome<Flow> {
        self.enter()?;
        for &id in block {
            let (line, statement) = &self.tree.statements[id as usize];
            self.line = *line;
            self.meter.steps(1)?;
            let flow = match statement {
                Statement::Text(text) => {
                    self.write(text)?;
                    Flow::On
                }
                Statement::Print(printed) => {
                    for &id in printed {
                        self.print(id)?;
                    }
                    Flow::On
                }
                Statement::Set(target, value) => {
                    let value = self.eval(*value)?;
                    self.assign(target, value)?;
                    Flow::On
                }
                Statement::If { branches, otherwise } => {
                    let mut taken = otherwise;
                    for (test, body) in branches {
                        if self.eval(*test)?.is_true() {
                            taken = body;
                            break;
                        }
                    }
                    self.block(taken)?
                }
                Statement::For(each) => {
                    let over = self.eval(each.over)?;
                    self.run_loop(id, &over, 0, self.current)?;
                    Flow::On
                }
                Statement::Break => Flow::Break,
                Statement::Continue => Flow::Continue,
                other => self.rare(other)?,
            };
            if flow != Flow::On {
                self.leave();
                return Ok(flow);
            }
        }
        self.leave();
        Ok(Flow::On)
    }

    /// Runs rare statements. They are separate because every level of recursion pays for the frame's size.
    #[inline(never)]
    fn rare(&mut self, statement: &'a Statement) -> Outcome<Flow> {
        match statement {
            Statement::SetBlock { target, filters, body } => {
                let text = self.capture(|run| run.scoped(body))?;
                let value = self.filtered(Value::Text(text), filters)?;
                self.assign(target, value)?;
            }
            Statement::Filter { filters, body } => {
                let text = self.capture(|run| run.scoped(body))?;
                let value = self.filtered(Value::Text(text), filters)?;
                self.write_value(&value)?;
            }
            Statement::With { assignments, body } => {
                // Values are evaluated in the outer block, although the names belong to the inner one.
                let mut values = Vec::new();
                for (_, value) in assignments {
                    values.push(self.eval(*value)?);
                }
                let before = self.open(self.current);
                for ((target, _), value) in assignments.iter().zip(values) {
                    self.assign(target, value)?;
                }
                let flow = self.block(body)?;
                self.close(before);
                return Ok(flow);
            }
            Statement::Scope(body) => return self.scoped(body),
            Statement::Macro { name, id } => {
                let value = self.macro_here(*id);
                self.set(*name, value)?;
            }
            Statement::Call { call, caller } => {
                let caller = self.macro_here(*caller);
                let value = self.eval_call_with(*call, caller)?;
                self.write_value(&value)?;
            }
            _ => {}
        }
        Ok(Flow::On)
    }

    fn macro_here(&self, id: u32) -> Value {
        Value::Object(Rc::new(Object::Macro { id, scope: self.current, serial: self.serial() }))
    }

    fn scoped(&mut self, body: &'a [u32]) -> Outcome<Flow> {
        let before = self.open(self.current);
        let flow = self.block(body)?;
        self.close(before);
        Ok(flow)
    }

    fn filtered(&mut self, mut value: Value, filters: &'a [FilterUse]) -> Outcome<Value> {
        for filter in filters {
            value = self.apply_filter(value, filter)?;
        }
        Ok(value)
    }

    /// Captures the output of `write` as a string.
    pub(super) fn capture(&mut self, write: impl FnOnce(&mut Self) -> Outcome<Flow>) -> Outcome<Text> {
        let outer = mem::replace(&mut self.out, TextBuilder::new(self.meter));
        self.captures += 1;
        write(self)?;
        self.captures -= 1;
        mem::replace(&mut self.out, outer).finish()
    }

    /// Writes a string.
    #[inline]
    pub(super) fn write(&mut self, text: &Text) -> Outcome<()> {
        if self.captures == 0 && self.out.len() + text.len() > TEMPLATE_OUTPUT_BYTES_MAX {
            return Err(Box::new(Fault::Output));
        }
        self.out.push_text(text)
    }

    /// Writes a value.
    pub(super) fn write_value(&mut self, value: &Value) -> Outcome<()> {
        if let Value::Text(text) = value {
            return self.write(text);
        }
        print::print(value, &mut self.out)?;
        if self.captures == 0 && self.out.len() > TEMPLATE_OUTPUT_BYTES_MAX {
            return Err(Box::new(Fault::Output));
        }
        Ok(())
    }

    /// Runs a loop's body over values, in a scope inside `scope`.
    pub(super) fn run_loop(&mut self, id: u32, over: &Value, depth: usize, scope: u32) -> Outcome<()> {
        let (_, Statement::For(each)) = &self.tree.statements[id as usize] else {
            return fail("not a loop");
        };
        let state = Loop::new(Items::of(self.meter, over)?, id, scope, depth);
        let object = Value::Object(Rc::new(Object::Loop(state)));
        let Value::Object(shared) = &object else { return fail("not a loop") };
        let Object::Loop(state) = &**shared else { return fail("not a loop") };
        let loop_name = self.own_names.the_loop;
        let before = self.open(scope);
        let mut is_empty = true;
        while let Some(item) = self.next_item(state)? {
            is_empty = false;
            self.clear();
            self.meter.steps(6)?;
            self.assign(&each.target, item)?;
            if let Some(name) = loop_name {
                self.set(name, object.clone())?;
            }
            if self.block(&each.body)? == Flow::Break {
                break;
            }
        }
        state.end();
        self.close(before);
        if is_empty && !each.otherwise.is_empty() {
            let before = self.open(scope);
            self.block(&each.otherwise)?;
            self.close(before);
        }
        Ok(())
    }
}
