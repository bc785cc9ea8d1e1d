//! Python pickles, read as data: only the parts that weight files need. No function that a pickle calls is run; the
//! few that weights are made of are known here, and any other is refused by name.
//!
//! Memory is bounded whatever the bytes. Values are flat, and containers are rows of tables that refer to each other
//! by number, so nothing nests. The numbers of objects and values are limited ([`PICKLE_OBJECTS_MAX`],
//! [`PICKLE_VALUES_MAX`]), because an instruction of one byte may copy a whole list.

use std::cmp::Ordering;
use std::ops::Range;

use hanzo_engine_ops::DType;

use crate::limits::{PICKLE_OBJECTS_MAX, PICKLE_VALUES_MAX, TENSOR_DIMENSIONS_MAX};

/// Value of a pickle. Containers are indices of rows in [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A number with a fraction, or one that is too long: weights need neither.
    Number,
    /// UTF-8 text at this position in the pickle.
    Text(usize, usize),
    Tuple(usize),
    List(usize),
    Dict(usize),
    Storage(usize),
    Tensor(usize),
    Global(Global),
    Mark,
}

/// Functions and classes that a weight file names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`.
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`.
    RebuildParameter,
    /// `torch.FloatStorage` and similar; `None` if no tensor here can have such elements, as for `torch.BoolStorage`.
    Storage(Option<DType>),
}

/// Storage: a run of numbers of one type that tensors are views of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Storage {
    /// Element type; `None` if no tensor here can have it.
    pub(super) dtype: Option<DType>,
    /// Name in the pickle.
    pub(super) key: Range<usize>,
    /// Number of elements.
    pub(super) elements: usize,
}

/// View of a storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) storage: usize,
    /// Index of the first element.
    pub(super) first: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// A parsed pickle.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    memo: Vec<Value>,
    /// Number of values ever put into a container, on the stack or into the memo.
    values: usize,
    tuples: Vec<Vec<Value>>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    pub(super) storages: Vec<Storage>,
    pub(super) views: Vec<View>,
}

/// Error of reading a pickle, with its position.
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) reason: String,
}

type Read<T> = Result<T, Fault>;

impl<'a> Pickle<'a> {
    /// Reads the pickle at the start of `bytes`, and returns its value.
    pub(super) fn read(bytes: &'a [u8]) -> Read<(Self, Value)> {
        let mut pickle = Self {
            bytes,
            at: 0,
            stack: Vec::new(),
            memo: Vec::new(),
            values: 0,
            tuples: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            storages: Vec::new(),
            views: Vec::new(),
        };
        while pickle.step()? {}
        let value = pickle.pop()?;
        Ok((pickle, value))
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> usize {
        self.at
    }

    pub(super) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        match value {
            Value::Dict(dict) => Some(&self.dicts[dict]),
            _ => None,
        }
    }

    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(list) => Some(&self.lists[list]),
            _ => None,
        }
    }

    pub(super) fn text(&self, value: Value) -> Option<&'a str> {
        match value {
            Value::Text(first, end) => std::str::from_utf8(&self.bytes[first..end]).ok(),
            _ => None,
        }
    }

    /// Name of a storage.
    pub(super) fn key(&self, storage: &Storage) -> &'a str {
        // Validated when it was read.
        std::str::from_utf8(&self.bytes[storage.key.clone()]).unwrap_or_default()
    }

    fn fault<T>(&self, reason: impl Into<String>) -> Read<T> {
        Err(Fault { at: self.at, reason: reason.into() })
    }

    /// Counts values before they are stored, and the existing objects.
    fn spend(&mut self, values: usize) -> Read<()> {
        self.values = self.values.saturating_add(values);
        if self.values > PICKLE_VALUES_MAX {
            return self.fault(format!("it makes more than {PICKLE_VALUES_MAX} values"));
        }
        let tables =
            [self.tuples.len(), self.lists.len(), self.dicts.len(), self.storages.len(), self.views.len()];
        if tables.iter().sum::<usize>() > PICKLE_OBJECTS_MAX {
            return self.fault(format!("it makes more than {PICKLE_OBJECTS_MAX} objects"));
        }
        Ok(())
    }

    fn take(&mut self, count: usize) -> Read<Range<usize>> {
        match self.at.checked_add(count).filter(|&end| end <= self.bytes.len()) {
            Some(end) => {
                let taken = self.at..end;
                self.at = end;
                Ok(taken)
            }
            None => self.fault("it ends in the middle"),
        }
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let range = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    /// Rest of a line, without its end.
    fn line(&mut self) -> Read<Range<usize>> {
        let first = self.at;
        match self.bytes[first..].iter().position(|&byte| byte == b'\n') {
            Some(length) if length > NAME_BYTES_MAX => self.fault("a name is too long"),
            Some(length) => {
                self.at = first + length + 1;
                Ok(first..first + length)
            }
            None => self.fault("it ends in the middle of a name"),
        }
    }

    fn pop(&mut self) -> Read<Value> {
        match self.stack.pop() {
            Some(value) if value != Value::Mark => Ok(value),
            _ => self.fault("it takes from an empty stack"),
        }
    }

    /// Takes the values above the last mark, and the mark.
    fn above_mark(&mut self) -> Read<Vec<Value>> {
        match self.stack.iter().rposition(|&value| value == Value::Mark) {
            Some(mark) => {
                let above = self.stack.split_off(mark + 1);
                self.stack.pop();
                self.spend(above.len())?;
                Ok(above)
            }
            None => self.fault("it takes up to a mark that is not there"),
        }
    }

    fn push_text(&mut self, length: usize) -> Read<()> {
        let range = self.take(length)?;
        if std::str::from_utf8(&self.bytes[range.clone()]).is_err() {
            return self.fault("a text is not UTF-8");
        }
        self.stack.push(Value::Text(range.start, range.end));
        Ok(())
    }

    fn push_tuple(&mut self, values: Vec<Value>) {
        self.tuples.push(values);
        self.stack.push(Value::Tuple(self.tuples.len() - 1));
    }

    fn push_last(&mut self, count: usize) -> Read<()> {
        let mut values = (0..count).map(|_| self.pop()).collect::<Read<Vec<_>>>()?;
        values.reverse();
        self.push_tuple(values);
        Ok(())
    }

    fn remember(&mut self, index: usize) -> Read<()> {
        let Some(&value) = self.stack.last() else { return self.fault("it remembers nothing") };
        // Memo indices are assigned in order; Python 2 begins with 1.
        if self.memo.is_empty() && index == 1 {
            self.memo.push(Value::None);
        }
        match index.cmp(&self.memo.len()) {
            Ordering::Less => self.memo[index] = value,
            Ordering::Equal => self.memo.push(value),
            Ordering::Greater => return self.fault("it remembers something behind the next place"),
        }
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Read<()> {
        match self.memo.get(index) {
            Some(&value) => {
                self.stack.push(value);
                Ok(())
            }
            None => self.fault("it recalls what it did not remember"),
        }
    }

    /// Runs one instruction; false after the last.
    fn step(&mut self) -> Read<bool> {
        // Each adds at most one value; instructions that move or copy more count those as well.
        self.spend(1)?;
        let [code] = self.array()?;
        match code {
            // PROTO, FRAME: nothing to do.
            0x80 => {
                self.take(1)?;
            }
            0x95 => {
                self.take(8)?;
            }
            b'.' => return Ok(false),
            b'(' => self.stack.push(Value::Mark),
            b'0' => {
                self.pop()?;
            }
            b')' => self.push_tuple(Vec::new()),
            0x85..=0x87 => self.push_last(usize::from(code - 0x84))?,
            b't' => {
                let values = self.above_mark()?;
                self.push_tuple(values);
            }
            b']' | b'l' => {
                let values = if code == b'l' { self.above_mark()? } else { Vec::new() };
                self.lists.push(values);
                self.stack.push(Value::List(self.lists.len() - 1));
            }
            b'}' => self.push_dict(),
            b'a' => {
                let value = self.pop()?;
                self.append(&[value])?;
            }
            b'e' => {
                let values = self.above_mark()?;
                self.append(&values)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.insert(&[key, value])?;
            }
            b'u' => {
                let values = self.above_mark()?;
                self.insert(&values)?;
            }
            other => return self.step_literal(other),
        }
        Ok(true)
    }

    /// Runs an instruction that pushes a constant; others are passed on.
    fn step_literal(&mut self, code: u8) -> Read<bool> {
        match code {
            b'N' => self.stack.push(Value::None),
            0x88 | 0x89 => self.stack.push(Value::Bool(code == 0x88)),
            b'K' => {
                let [byte] = self.array()?;
                self.stack.push(Value::Int(byte.into()));
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(number.into()));
            }
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(number.into()));
            }
            0x8a => {
                let [length] = self.array()?;
                let range = self.take(length.into())?;
                self.stack.push(long(&self.bytes[range]));
            }
            b'G' => {
                self.take(8)?;
                self.stack.push(Value::Number);
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.push_text(length as usize)?;
            }
            0x8c => {
                let [length] = self.array()?;
                self.push_text(length.into())?;
            }
            // Strings of Python 2, which are bytes.
            b'U' => {
                let [length] = self.array()?;
                self.push_text(length.into())?;
            }
            b'T' => {
                let length = u32::from_le_bytes(self.array()?);
                self.push_text(length as usize)?;
            }
            other => return self.step_memo(other),
        }
        Ok(true)
    }

    /// Runs an instruction that remembers or recalls a value; others are passed on.
    fn step_memo(&mut self, code: u8) -> Read<bool> {
        match code {
            b'q' => {
                let [index] = self.array()?;
                self.remember(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.array()?);
                self.remember(index as usize)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' => {
                let [index] = self.array()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.array()?);
                self.recall(index as usize)?;
            }
            other => return self.step_object(other),
        }
        Ok(true)
    }

    /// Runs an instruction that makes or changes an object of a class.
    fn step_object(&mut self, code: u8) -> Read<bool> {
        match code {
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = self.global(module, name)?;
                self.stack.push(global);
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(name, name_end), Value::Text(module, module_end)) = (name, module) else {
                    return self.fault("a name is not a text");
                };
                let global = self.global(module..module_end, name..name_end)?;
                self.stack.push(global);
            }
            b'R' => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let value = self.call(callable, arguments)?;
                self.stack.push(value);
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.stack.push(storage);
            }
            // Attributes of a dictionary, such as versions of modules.
            b'b' => {
                self.pop()?;
                if !matches!(self.stack.last(), Some(Value::Dict(_) | Value::Tensor(_))) {
                    return self.fault("it sets attributes of what weights have none of");
                }
            }
            other => return self.fault(format!("instruction {other:#04x} is none that weights need")),
        }
        Ok(true)
    }

    fn push_dict(&mut self) {
        self.dicts.push(Vec::new());
        self.stack.push(Value::Dict(self.dicts.len() - 1));
    }

    fn append(&mut self, values: &[Value]) -> Read<()> {
        match self.stack.last() {
            Some(&Value::List(list)) => {
                self.lists[list].extend_from_slice(values);
                Ok(())
            }
            _ => self.fault("it appends to what is no list"),
        }
    }

    fn insert(&mut self, values: &[Value]) -> Read<()> {
        match (self.stack.last(), values.as_chunks::<2>()) {
            (Some(&Value::Dict(dict)), (pairs, [])) => {
                self.dicts[dict].extend(pairs.iter().map(|&[key, value]| (key, value)));
                Ok(())
            }
            _ => self.fault("it sets items of what is no dictionary"),
        }
    }

    fn global(&self, module: Range<usize>, name: Range<usize>) -> Read<Value> {
        if module.len().max(name.len()) > NAME_BYTES_MAX {
            return self.fault("a name is too long");
        }
        let (module, name) = (&self.bytes[module], &self.bytes[name]);
        let global = match (module, name) {
            (b"collections", b"OrderedDict") => Global::OrderedDict,
            (b"torch._utils", b"_rebuild_tensor_v2" | b"_rebuild_tensor") => Global::RebuildTensor,
            (b"torch._utils", b"_rebuild_parameter" | b"_rebuild_parameter_with_state") => {
                Global::RebuildParameter
            }
            (b"torch", b"FloatStorage") => Global::Storage(Some(DType::F32)),
            (b"torch", b"HalfStorage") => Global::Storage(Some(DType::F16)),
            (b"torch", b"BFloat16Storage") => Global::Storage(Some(DType::BF16)),
            (b"torch", b"DoubleStorage") => Global::Storage(Some(DType::F64)),
            (b"torch", b"CharStorage") => Global::Storage(Some(DType::I8)),
            (b"torch", b"ShortStorage") => Global::Storage(Some(DType::I16)),
            (b"torch", b"IntStorage") => Global::Storage(Some(DType::I32)),
            (b"torch", b"LongStorage") => Global::Storage(Some(DType::I64)),
            (b"torch", b"BoolStorage" | b"ByteStorage") => Global::Storage(None),
            _ => {
                let [module, name] = [module, name].map(String::from_utf8_lossy);
                return self.fault(format!(
                    "it calls {module}.{name}; only what tensors and dictionaries are made of is read, and nothing is run"
                ));
            }
        };
        Ok(Value::Global(global))
    }

    fn arguments(&self, value: Value) -> Read<&[Value]> {
        match value {
            Value::Tuple(tuple) => Ok(&self.tuples[tuple]),
            _ => self.fault("arguments are not a tuple"),
        }
    }

    /// Result of calling a known function.
    fn call(&mut self, callable: Value, arguments: Value) -> Read<Value> {
        let arguments = self.arguments(arguments)?;
        match (callable, arguments) {
            (Value::Global(Global::OrderedDict), []) => {
                self.dicts.push(Vec::new());
                Ok(Value::Dict(self.dicts.len() - 1))
            }
            // Python 2's, with a list of pairs.
            (Value::Global(Global::OrderedDict), &[Value::List(pairs)]) => {
                self.spend(2 * self.lists[pairs].len())?;
                let pair = |&pair: &Value| match self.list(pair) {
                    Some(&[key, value]) => Some((key, value)),
                    _ => None,
                };
                match self.lists[pairs].iter().map(pair).collect() {
                    Some(pairs) => {
                        self.dicts.push(pairs);
                        Ok(Value::Dict(self.dicts.len() - 1))
                    }
                    None => self.fault("a dictionary is made of what are no pairs"),
                }
            }
            (Value::Global(Global::RebuildParameter), &[tensor @ Value::Tensor(_), ..]) => Ok(tensor),
            (
                Value::Global(Global::RebuildTensor),
                &[Value::Storage(storage), Value::Int(first), shape, strides, ..],
            ) => {
                let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
                let Ok(first) = usize::try_from(first) else {
                    return self.fault("a tensor begins before its storage");
                };
                if shape.len() != strides.len() {
                    return self.fault("a tensor has other dimensions than strides");
                }
                self.views.push(View { storage, first, shape, strides });
                Ok(Value::Tensor(self.views.len() - 1))
            }
            _ => self.fault("it calls something in a way that weights do not"),
        }
    }

    fn sizes(&self, value: Value) -> Read<Vec<usize>> {
        let size = |&value: &Value| match value {
            Value::Int(size) => usize::try_from(size).ok(),
            _ => None,
        };
        let sizes = self.arguments(value)?;
        if sizes.len() > TENSOR_DIMENSIONS_MAX {
            return self.fault(format!(
                "a tensor of {} dimensions; {TENSOR_DIMENSIONS_MAX} are allowed",
                sizes.len()
            ));
        }
        match sizes.iter().map(size).collect() {
            Some(sizes) => Ok(sizes),
            None => self.fault("a tensor's sizes are not numbers"),
        }
    }

    /// Storage: `("storage", type, key, device, elements)`, and in old files an unused view of it.
    fn storage(&mut self, id: Value) -> Read<Value> {
        let parts = self.arguments(id)?;
        let &[
            kind,
            Value::Global(Global::Storage(dtype)),
            Value::Text(key, end),
            _,
            Value::Int(elements),
            ref view @ ..,
        ] = parts
        else {
            return self.fault("it refers to something outside that is no storage");
        };
        if self.text(kind) != Some("storage") || !matches!(view, [] | [Value::None]) {
            return self.fault("it refers to something outside that is no storage");
        }
        let key = key..end;
        let Ok(elements) = usize::try_from(elements) else {
            return self.fault("a storage has fewer than no numbers");
        };
        if key.len() > NAME_BYTES_MAX {
            return self.fault("a storage's name is too long");
        }
        self.storages.push(Storage { dtype, key, elements });
        Ok(Value::Storage(self.storages.len() - 1))
    }
}

/// Largest length of the name of a function, class or storage.
pub(super) const NAME_BYTES_MAX: usize = 128;

/// An integer of any length, little endian.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > size_of::<i64>() {
        return Value::Number;
    }
    let negative = bytes.last().is_some_and(|&last| last >= 0x80);
    let mut whole = [if negative { 0xff } else { 0 }; size_of::<i64>()];
    whole[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(whole))
}
