//! Turns the tree of a module into functions that can be executed.

#![allow(
    clippy::redundant_closure,
    reason = "a function that is passed by its name is not always inlined in the loop over lanes"
)]

mod atomic;
mod control;
mod convert;
mod float;
mod guess;
mod integer;
mod matrix;
mod memory;
mod name;
mod operand;
mod transfer;
mod video;
mod warp;

use super::flow::{Next, meeting_points};
use super::registers::Condition;
use super::{
    Action, Function, Instruction, Parameter, Preset, Program, Slot, Special, Symbol, Variable,
};
use crate::memory::race::Order;
use crate::ptx::tree::{self, Linkage, Operand, Space, Statement};
use crate::ptx::{LoadError, Result};
use name::Name;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Turns a module into a program.
// Not inlined, like the functions below: a module is loaded on the stack of the host's thread, and
// what the parser needs of it should not be added to what this needs.
#[inline(never)]
pub(super) fn program(tree: &tree::Module<'_>) -> Result<Program> {
    let mut module = Module::default();
    let mut functions = Vec::<(&tree::Function<'_>, Function)>::new();
    for function in &tree.functions {
        let index = *module.functions.entry(function.name).or_insert(functions.len() as u32);
        if index as usize == functions.len() {
            functions.push((function, Function::default()));
        } else if function.body.is_some() {
            let known = &mut functions[index as usize].0;
            if known.body.is_none() || function.linkage != Linkage::Weak {
                *known = function;
            }
        }
        if function.body.is_some() {
            module.defined.insert(index);
        }
    }
    for (alias, of) in &tree.aliases {
        if let Some(index) = module.functions.get(of).copied() {
            module.functions.insert(alias, index);
        }
    }
    // Of weak definitions the first counts, unless there is another, and declarations count only
    // without one.
    let of =
        |wanted| tree.variables.iter().filter(move |variable| rank(variable.linkage) == wanted);
    // Not sorted, because a stable sort takes 4 KiB of the stack.
    let mut variables: Vec<_> = (0..RANKS).flat_map(of).collect();
    variables.retain(|variable| {
        let is_kept = rank(variable.linkage) == 0 || !module.variables.contains_key(variable.name);
        if is_kept {
            module.variables.insert(variable.name, module.list.len() as u32);
            module.list.push(Variable::of(variable));
        }
        is_kept
    });
    for variable in variables {
        module.set_values(variable)?;
    }
    for (source, made) in &mut functions {
        function(&mut module, source, made)?;
    }
    Ok(finished(tree, module, functions))
}

/// The number of ranks.
const RANKS: u32 = 3;

/// Which of several variables of a name counts: one of the lowest rank.
fn rank(linkage: Linkage) -> u32 {
    match linkage {
        Linkage::Internal | Linkage::Visible => 0,
        Linkage::Weak => 1,
        Linkage::Extern => 2,
    }
}

#[inline(never)]
fn finished(
    tree: &tree::Module<'_>,
    module: Module<'_>,
    functions: Vec<(&tree::Function<'_>, Function)>,
) -> Program {
    Program {
        functions: functions.into_iter().map(|(_, made)| made).collect(),
        variables: module.list,
        version: tree.version.0 * 10 + tree.version.1,
        target: tree.target,
        files: tree.files.iter().map(|(number, name)| (*number, (*name).to_owned())).collect(),
    }
}

/// The names of a module, and its variables.
#[derive(Default)]
struct Module<'t> {
    functions: HashMap<&'t str, u32>,
    /// The functions that have a body.
    defined: HashSet<u32>,
    variables: HashMap<&'t str, u32>,
    list: Vec<Variable>,
}

impl Variable {
    fn of(variable: &tree::Variable<'_>) -> Variable {
        Variable {
            name: variable.name.to_owned(),
            space: variable.space,
            bytes: variable.bytes(),
            align: variable.align,
            is_visible: variable.linkage != Linkage::Internal,
            is_external: variable.linkage == Linkage::Extern && variable.space != Space::Shared,
            is_managed: variable.is_managed,
            place: None,
            values: Vec::new(),
            addresses: Vec::new(),
        }
    }
}

impl<'t> Module<'t> {
    fn symbol(&self, name: &str) -> Option<Symbol> {
        let variable = self.variables.get(name).map(|index| Symbol::Variable(*index));
        variable.or_else(|| self.functions.get(name).map(|index| Symbol::Function(*index)))
    }

    /// The initial bytes of a variable.
    fn set_values(&mut self, variable: &tree::Variable<'t>) -> Result<()> {
        let Some(index) = self.variables.get(variable.name).copied() else { return Ok(()) };
        let size = variable.of.bytes();
        let (mut bytes, mut addresses) = (Vec::new(), Vec::new());
        for value in &variable.values {
            let word = match value {
                Operand::Symbol(name, offset) | Operand::GenericSymbol(name, offset) => {
                    let symbol = self.symbol(name);
                    let symbol = symbol.ok_or_else(|| unknown(0, name))?;
                    addresses.push((bytes.len(), symbol, *offset));
                    0
                }
                other => operand::constant(other, variable.of).ok_or_else(|| {
                    LoadError::invalid(0, format!("{} has no such value", variable.name))
                })?,
            };
            bytes.extend_from_slice(&word.to_le_bytes()[..size.min(8)]);
            bytes.resize(bytes.len() + size.saturating_sub(8), 0);
        }
        let made = &mut self.list[index as usize];
        (made.values, made.addresses) = (bytes, addresses);
        Ok(())
    }
}

fn unknown(line: u32, name: &str) -> LoadError {
    LoadError::invalid(line, format!("{name} is unknown"))
}

/// What is being made of a function.
struct Lowering<'m, 't> {
    module: &'m mut Module<'t>,
    tree: &'t tree::Function<'t>,
    body: &'t tree::Body<'t>,
    function: Function,
    /// Places of the registers of the tree.
    registers: Vec<Slot>,
    presets: BTreeMap<(Preset, bool), Slot>,
    /// The variables of the body: offset in local memory, or number in the module.
    variables: Vec<Local>,
    /// The instruction at each label.
    labels: Vec<u32>,
    /// Control flow of each instruction, with labels as targets.
    flow: Vec<Next>,
    /// The carry flag.
    carry: Option<u32>,
    guard: Option<Condition>,
    line: u32,
    source: (u32, u32),
    order: Order,
    /// Registers that are compared by `atom.cas`.
    guesses: HashSet<u32>,
}

/// A variable of a function's body.
#[derive(Clone, Copy)]
enum Local {
    /// In local memory, at this offset.
    Frame(usize),
    /// In the module.
    Module(u32),
}

fn parameters(list: &[tree::Variable<'_>], mut end: usize) -> (Vec<Parameter>, usize) {
    let place = |variable: &tree::Variable<'_>| {
        let offset = end.next_multiple_of(variable.align.max(1));
        end = offset + variable.bytes();
        Parameter { offset, bytes: variable.bytes() }
    };
    let placed = list.iter().map(place).collect();
    (placed, end)
}

/// A function without its code.
fn declaration(tree: &tree::Function<'_>) -> Function {
    let mut function = Function {
        name: tree.name.to_owned(),
        is_kernel: tree.is_kernel,
        is_defined: tree.body.is_some(),
        ..Function::default()
    };
    for (name, numbers) in &tree.directives {
        function.limits.insert((*name).to_owned(), numbers.clone());
    }
    let (placed, end) = parameters(&tree.parameters, 0);
    function.parameters = placed;
    if tree.body.is_some() && !tree.is_kernel {
        let (results, end) = parameters(&tree.results, end);
        function.result = results.first().copied();
        function.frame = end;
    }
    function
}

/// The function before its first instruction, on the heap.
#[inline(never)]
fn begin<'m, 't>(
    module: &'m mut Module<'t>,
    tree: &'t tree::Function<'t>,
    body: &'t tree::Body<'t>,
) -> Box<Lowering<'m, 't>> {
    Box::new(Lowering {
        module,
        tree,
        body,
        function: declaration(tree),
        registers: Vec::new(),
        presets: BTreeMap::new(),
        variables: Vec::new(),
        labels: vec![0; body.labels as usize],
        flow: Vec::new(),
        carry: None,
        guard: None,
        line: tree.line,
        source: (0, 0),
        order: Order::Weak,
        guesses: guess::guesses(body),
    })
}

#[inline(never)]
fn function<'t>(
    module: &mut Module<'t>,
    tree: &'t tree::Function<'t>,
    made: &mut Function,
) -> Result<()> {
    let Some(body) = &tree.body else {
        *made = declaration(tree);
        return Ok(());
    };
    let mut lowering = begin(module, tree, body);
    lowering.place_registers();
    lowering.place_variables()?;
    lowering.take_parameters()?;
    for statement in &body.statements {
        match statement {
            Statement::Label(label) => {
                lowering.labels[*label as usize] = lowering.function.code.len() as u32;
            }
            Statement::Location(file, line) => lowering.source = (*file, *line),
            Statement::Instruction(instruction) => lowering.instruction(instruction)?,
        }
    }
    (lowering.guard, lowering.order) = (None, Order::Weak);
    lowering.give_results()?;
    lowering.push_flow(Action::Return, Next::End);
    *made = lowering.finish();
    Ok(())
}

impl<'t> Lowering<'_, 't> {
    fn place_registers(&mut self) {
        for of in &self.body.registers {
            let slot = match of.bytes() {
                0 => Slot::Mask(self.new_mask()),
                1..=4 => Slot::Narrow(self.new_narrow()),
                8 => Slot::Wide(self.new_wide()),
                _ => Slot::Pair(self.new_pair()),
            };
            self.registers.push(slot);
        }
    }

    fn place_variables(&mut self) -> Result<()> {
        for variable in &self.body.variables {
            let place = match variable.space {
                Space::Local | Space::Param => {
                    let offset = self.function.frame.next_multiple_of(variable.align.max(1));
                    self.function.frame = offset + variable.bytes();
                    Local::Frame(offset)
                }
                Space::Shared | Space::Global | Space::Const => {
                    let index = self.module.list.len() as u32;
                    let made = Variable::of(variable);
                    self.module.list.push(made);
                    let name = variable.name;
                    let outer = self.module.variables.insert(name, index);
                    self.module.set_values(variable)?;
                    // The name is the function's own.
                    match outer {
                        Some(outer) => self.module.variables.insert(name, outer),
                        None => self.module.variables.remove(name),
                    };
                    Local::Module(index)
                }
                Space::Generic => {
                    return Err(LoadError::invalid(self.line, "a variable has no space"));
                }
            };
            self.variables.push(place);
        }
        Ok(())
    }

    fn new_narrow(&mut self) -> u32 {
        self.function.narrow += 1;
        self.function.narrow - 1
    }

    fn new_wide(&mut self) -> u32 {
        self.function.wide += 1;
        self.function.wide - 1
    }

    fn new_pair(&mut self) -> u32 {
        self.function.wide += 2;
        self.function.wide - 2
    }

    fn new_mask(&mut self) -> u32 {
        self.function.masks += 1;
        self.function.masks - 1
    }

    /// The register that holds a value from the start.
    fn preset(&mut self, preset: Preset, is_wide: bool) -> u32 {
        let slot = match self.presets.get(&(preset, is_wide)) {
            Some(slot) => *slot,
            None => {
                let slot = match is_wide {
                    true => Slot::Wide(self.new_wide()),
                    false => Slot::Narrow(self.new_narrow()),
                };
                self.presets.insert((preset, is_wide), slot);
                self.function.presets.push((preset, slot));
                slot
            }
        };
        match slot {
            Slot::Narrow(index) | Slot::Wide(index) | Slot::Pair(index) | Slot::Mask(index) => {
                index
            }
        }
    }

    /// A predicate with a value from the start.
    fn preset_mask(&mut self, bits: u32) -> u32 {
        let index = self.new_mask();
        self.function.presets.push((Preset::Bits(bits.into()), Slot::Mask(index)));
        index
    }

    fn push(&mut self, action: Action) {
        self.push_flow(action, Next::Following);
    }

    fn push_flow(&mut self, action: Action, next: Next) {
        let (guard, line, source, order) = (self.guard, self.line, self.source, self.order);
        self.function.code.push(Instruction { guard, action, line, source, order });
        self.flow.push(next);
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(LoadError::invalid(self.line, message))
    }

    /// The order of an instruction's accesses.
    fn order_of(&self, instruction: &tree::Instruction<'t>) -> Order {
        let order = Order::of(instruction.name);
        match instruction.operands.first() {
            Some(Operand::Register(to))
                if order == Order::Weak
                    && self.guesses.contains(to)
                    && instruction.name.starts_with("ld.") =>
            {
                Order::Relaxed
            }
            _ => order,
        }
    }

    fn instruction(&mut self, instruction: &tree::Instruction<'t>) -> Result<()> {
        self.line = instruction.line;
        self.order = self.order_of(instruction);
        self.guard = match instruction.guard {
            None => None,
            Some((register, is_negated)) => match self.registers[register as usize] {
                Slot::Mask(index) => {
                    Some(Condition { index, flip: if is_negated { u32::MAX } else { 0 } })
                }
                _ => return self.error("a guard is no predicate"),
            },
        };
        let mut name = Name::of(instruction.name);
        let operands = &instruction.operands;
        let is_known = self.control(&mut name, operands)?
            || self.memory(&mut name, operands)?
            || self.transfer(&mut name, operands)?
            || self.matrix(&mut name, operands)?
            || self.warp(&mut name, operands)?
            || self.convert(&mut name, operands)?
            || self.float(&mut name, operands)?
            || self.video(&mut name, operands)?
            || self.integer(&mut name, operands)?;
        if !is_known {
            return Err(if name::exists(name.base) {
                let message = format!("{} is not executed by the software GPU", instruction.name);
                LoadError::unsupported(self.line, message)
            } else {
                LoadError::invalid(
                    self.line,
                    format!("Not a name of any known instruction: '{}'", instruction.name),
                )
            });
        }
        match name.unused() {
            None => Ok(()),
            Some(part) => Err(LoadError::unsupported(
                self.line,
                format!("{}: .{part} is not executed by the software GPU", instruction.name),
            )),
        }
    }

    /// Resolves labels, and inserts the places where separated lanes meet.
    #[inline(never)]
    fn finish(mut self: Box<Self>) -> Function {
        let labels = &self.labels;
        for next in &mut self.flow {
            if let Next::Conditional(targets) | Next::Jump(targets) = next {
                targets.iter_mut().for_each(|label| *label = labels[*label as usize]);
            }
        }
        let mut points = meeting_points(&self.flow);
        // Lanes that only return need not meet: those that others wait for return earlier.
        for point in &mut points {
            if let Some(Instruction {
                guard: None, action: Action::Return | Action::Exit, ..
            }) = self.function.code.get(*point as usize)
            {
                *point = super::flow::NEVER;
            }
        }
        let mut meets = vec![false; self.flow.len() + 1];
        for point in &points {
            if let Some(meets) = meets.get_mut(*point as usize) {
                *meets = true;
            }
        }
        // The new position of each instruction: of its join, if there is one before it.
        let mut position = Vec::with_capacity(self.flow.len() + 1);
        let mut moved = 0;
        for (at, meets) in meets.iter().enumerate() {
            position.push(at as u32 + moved);
            moved += u32::from(*meets);
        }
        let place = |at: u32| position.get(at as usize).copied().unwrap_or(super::flow::NEVER);
        let code = std::mem::take(&mut self.function.code);
        for (at, mut instruction) in code.into_iter().enumerate() {
            if meets[at] {
                let (line, source) = (instruction.line, instruction.source);
                self.function.code.push(Instruction {
                    guard: None,
                    action: Action::Join,
                    line,
                    source,
                    order: Order::Weak,
                });
            }
            match &mut instruction.action {
                Action::Branch { target, join } => {
                    *target = place(labels[*target as usize]);
                    *join = place(points[at]);
                }
                Action::Indexed { targets, join, .. } => {
                    targets.iter_mut().for_each(|label| *label = place(labels[*label as usize]));
                    *join = place(points[at]);
                }
                _ => {}
            }
            self.function.code.push(instruction);
        }
        self.function.shared.sort_unstable();
        self.function.shared.dedup();
        self.function.calls.sort_unstable();
        self.function.calls.dedup();
        self.function
    }
}
