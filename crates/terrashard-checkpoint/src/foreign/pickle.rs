//! What `torch.save` pickles, read without running anything: dictionaries, lists, numbers and tensors. Every other object is kept
//! as something that is none of these.
//!
//! Memory is bounded by the length of the pickle: each instruction makes at most one value, values refer to others by number, a text is
//! in memory once however often it is used, and a tensor has few axes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Place;
use crate::ElementType;

/// Why a pickle cannot be read.
type Problem = String;

/// The number of a value.
type Id = usize;

/// A tensor of more axes than this belongs to no model.
const MOST_AXES: usize = 8;

#[derive(Debug, Clone)]
enum Value {
    None,
    Number(i64),
    Text(Arc<str>),
    /// A tuple or a list.
    Row(Vec<Id>),
    Dictionary(Vec<(Id, Id)>),
    Global(Global),
    Storage(Box<Storage>),
    Tensor(Box<Place>),
    /// An object of no concern here.
    Other,
}

/// What a module and a name in it stand for.
#[derive(Debug, Clone, Copy)]
enum Global {
    Dictionary,
    Tensor,
    Parameter,
    /// A storage of these elements; `None` if they are of no float type.
    Storage(Option<ElementType>),
    Unknown,
}

impl Global {
    fn of(module: &str, name: &str) -> Self {
        match (module, name) {
            ("collections", "OrderedDict") => Self::Dictionary,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Self::Tensor,
            ("torch._utils", "_rebuild_parameter") => Self::Parameter,
            ("torch", "FloatStorage") => Self::Storage(Some(ElementType::F32)),
            ("torch", "DoubleStorage") => Self::Storage(Some(ElementType::F64)),
            ("torch", "HalfStorage") => Self::Storage(Some(ElementType::F16)),
            ("torch", "BFloat16Storage") => Self::Storage(Some(ElementType::Bf16)),
            ("torch", _) => Self::Storage(None),
            _ => Self::Unknown,
        }
    }
}

#[derive(Debug, Clone)]
struct Storage {
    key: Arc<str>,
    dtype: Option<ElementType>,
    elements: u64,
}

/// A machine for the instructions of a pickle.
struct Machine<'a> {
    bytes: &'a [u8],
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

/// The tensors of a pickled dictionary by name, or of the dictionary within it that is the model's.
pub(super) fn tensors(bytes: &[u8]) -> Result<BTreeMap<String, Place>, Problem> {
    let mut machine = Machine {
        bytes,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let root = machine.run()?;
    let model = ["state_dict", "model_state_dict", "model"]
        .iter()
        .find_map(|name| machine.item(root, name))
        .filter(|id| matches!(machine.values[*id], Value::Dictionary(_)))
        .unwrap_or(root);
    let Value::Dictionary(items) = &machine.values[model] else {
        return Err("it is no dictionary of tensors".into());
    };
    let tensor = |(key, value): &(Id, Id)| match (&machine.values[*key], &machine.values[*value]) {
        (Value::Text(name), Value::Tensor(place)) => Some((name.to_string(), (**place).clone())),
        _ => None,
    };
    Ok(items.iter().filter_map(tensor).collect())
}

impl Machine<'_> {
    /// Runs all instructions; the result is what the last one leaves.
    fn run(&mut self) -> Result<Id, Problem> {
        loop {
            let [instruction] = self.take()?;
            match instruction {
                b'.' => return self.pop(),
                0x80 => drop(self.take::<1>()?),
                // A frame's length.
                0x95 => drop(self.take::<8>()?),
                b'(' => self.marks.push(self.stack.len()),
                b'N' => self.push(Value::None),
                0x88 | 0x89 => self.push(Value::Other),
                b'K' => {
                    let [number] = self.take()?;
                    self.push(Value::Number(number.into()));
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.take()?);
                    self.push(Value::Number(number.into()));
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.take()?);
                    self.push(Value::Number(number.into()));
                }
                0x8a => {
                    let [length] = self.take()?;
                    let number = integer(self.slice(length.into())?);
                    self.push(number);
                }
                b'G' => {
                    self.take::<8>()?;
                    self.push(Value::Other);
                }
                b'X' | b'T' => {
                    let length = u32::from_le_bytes(self.take()?);
                    self.text(length as usize)?;
                }
                0x8c | b'U' => {
                    let [length] = self.take()?;
                    self.text(length.into())?;
                }
                b'B' => {
                    let length = u32::from_le_bytes(self.take()?);
                    self.slice(length as usize)?;
                    self.push(Value::Other);
                }
                b'C' => {
                    let [length] = self.take()?;
                    self.slice(length.into())?;
                    self.push(Value::Other);
                }
                b'}' => self.push(Value::Dictionary(Vec::new())),
                b']' | b')' => self.push(Value::Row(Vec::new())),
                0x8f => self.push(Value::Other),
                b't' | b'l' => {
                    let items = self.since_mark()?;
                    self.push(Value::Row(items));
                }
                0x85..=0x87 => {
                    let count = usize::from(instruction - 0x84);
                    let start = self.stack.len().checked_sub(count).ok_or_else(empty)?;
                    let items = self.stack.split_off(start);
                    self.push(Value::Row(items));
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' | 0x90 => {
                    let items = self.since_mark()?;
                    self.append(items)?;
                }
                b's' => {
                    let start = self.stack.len().checked_sub(2).ok_or_else(empty)?;
                    let items = self.stack.split_off(start);
                    self.insert(&items)?;
                }
                b'u' => {
                    let items = self.since_mark()?;
                    self.insert(&items)?;
                }
                b'q' => {
                    let [key] = self.take()?;
                    self.memo.insert(key.into(), self.top()?);
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.take()?);
                    self.memo.insert(key, self.top()?);
                }
                0x94 => {
                    let key = self.memo.len() as u32;
                    self.memo.insert(key, self.top()?);
                }
                b'h' => {
                    let [key] = self.take()?;
                    self.recall(key.into())?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.take()?);
                    self.recall(key)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(Global::of(&module, &name)));
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let global = match (&self.values[module], &self.values[name]) {
                        (Value::Text(module), Value::Text(name)) => {
                            Value::Global(Global::of(module, name))
                        }
                        _ => Value::Other,
                    };
                    self.push(global);
                }
                b'Q' => {
                    let id = self.pop()?;
                    let storage = self.storage(id);
                    self.push(storage);
                }
                b'R' | 0x81 => {
                    let (arguments, callable) = (self.pop()?, self.pop()?);
                    self.call(callable, arguments);
                }
                0x92 => {
                    let (_, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                    self.call(callable, arguments);
                }
                // What an object is given after it was made.
                b'b' | b'0' => drop(self.pop()?),
                b'1' => drop(self.since_mark()?),
                b'2' => self.stack.push(self.top()?),
                other => {
                    return Err(format!(
                        "its pickle has the instruction {other:#04x}, which torch.save does not write"
                    ));
                }
            }
        }
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
    }

    fn pop(&mut self) -> Result<Id, Problem> {
        self.stack.pop().ok_or_else(empty)
    }

    fn top(&self) -> Result<Id, Problem> {
        self.stack.last().copied().ok_or_else(empty)
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, Problem> {
        let mark = self.marks.pop().ok_or_else(empty)?;
        match mark <= self.stack.len() {
            true => Ok(self.stack.split_off(mark)),
            false => Err(empty()),
        }
    }

    fn recall(&mut self, key: u32) -> Result<(), Problem> {
        let id = self.memo.get(&key).copied();
        self.stack.push(id.ok_or_else(empty)?);
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or_else(short)?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn slice(&mut self, length: usize) -> Result<&[u8], Problem> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or_else(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn line(&mut self) -> Result<String, Problem> {
        let length = self.bytes.iter().position(|byte| *byte == b'\n');
        let line = self.slice(length.ok_or_else(short)?)?;
        let line = String::from_utf8_lossy(line).into_owned();
        self.take::<1>()?;
        Ok(line)
    }

    fn text(&mut self, length: usize) -> Result<(), Problem> {
        let text = String::from_utf8_lossy(self.slice(length)?);
        let text = Value::Text(text.into());
        self.push(text);
        Ok(())
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), Problem> {
        let top = self.top()?;
        if let Value::Row(row) = &mut self.values[top] {
            row.extend(items);
        }
        Ok(())
    }

    fn insert(&mut self, items: &[Id]) -> Result<(), Problem> {
        let top = self.top()?;
        if let Value::Dictionary(dictionary) = &mut self.values[top] {
            let (pairs, _) = items.as_chunks::<2>();
            dictionary.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        }
        Ok(())
    }

    /// An item of a dictionary.
    fn item(&self, dictionary: Id, name: &str) -> Option<Id> {
        let Value::Dictionary(items) = &self.values[dictionary] else {
            return None;
        };
        let named = |key: Id| matches!(&self.values[key], Value::Text(text) if **text == *name);
        let item = items.iter().rev().find(|(key, _)| named(*key));
        item.map(|(_, value)| *value)
    }

    fn row(&self, id: Id) -> &[Id] {
        match &self.values[id] {
            Value::Row(items) => items,
            _ => &[],
        }
    }

    /// What a persistent identity stands for: `("storage", type, key, device, elements)`.
    fn storage(&self, id: Id) -> Value {
        let [_, kind, key, _, elements] = self.row(id) else {
            return Value::Other;
        };
        let values = [kind, key, elements].map(|id| &self.values[*id]);
        let [
            Value::Global(kind),
            Value::Text(key),
            Value::Number(elements),
        ] = values
        else {
            return Value::Other;
        };
        Value::Storage(Box::new(Storage {
            key: key.clone(),
            dtype: match kind {
                Global::Storage(dtype) => *dtype,
                _ => None,
            },
            elements: u64::try_from(*elements).unwrap_or(0),
        }))
    }

    /// Makes what a call of one of a few known functions would; anything else makes nothing.
    fn call(&mut self, callable: Id, arguments: Id) {
        let Value::Global(global) = self.values[callable] else {
            return self.push(Value::Other);
        };
        match global {
            Global::Dictionary => self.push(Value::Dictionary(Vec::new())),
            Global::Tensor => {
                let tensor = self.tensor(arguments).map(Box::new);
                self.push(tensor.map_or(Value::Other, Value::Tensor));
            }
            Global::Parameter => match self.row(arguments).first() {
                Some(tensor) => self.stack.push(*tensor),
                None => self.push(Value::Other),
            },
            Global::Storage(_) | Global::Unknown => self.push(Value::Other),
        }
    }

    /// `(storage, offset, size, stride, ..)`.
    fn tensor(&self, arguments: Id) -> Option<Place> {
        let [storage, offset, size, stride, ..] = *self.row(arguments) else {
            return None;
        };
        let number = |id: Id| match self.values[id] {
            Value::Number(number) => usize::try_from(number).ok(),
            _ => None,
        };
        let numbers = |id: Id| -> Option<Vec<usize>> {
            let row = Some(self.row(id)).filter(|row| row.len() <= MOST_AXES)?;
            row.iter().map(|id| number(*id)).collect()
        };
        let Value::Storage(stored) = &self.values[storage] else {
            return None;
        };
        Some(Place {
            storage: stored.key.clone(),
            dtype: stored.dtype,
            elements: stored.elements,
            offset: number(offset)?,
            shape: numbers(size)?,
            stride: numbers(stride)?,
        })
    }
}

/// A number of up to eight bytes, low ones first.
fn integer(bytes: &[u8]) -> Value {
    let Some(last) = bytes.last() else {
        return Value::Number(0);
    };
    if bytes.len() > 8 {
        return Value::Other;
    }
    let mut whole = [if last & 0x80 == 0 { 0 } else { 0xff }; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    Value::Number(i64::from_le_bytes(whole))
}

fn empty() -> Problem {
    "its pickle is damaged: an instruction lacks its operand".into()
}

fn short() -> Problem {
    "its pickle ends too early".into()
}
