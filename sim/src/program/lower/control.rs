//! Branches, calls, barriers and the end of a thread.

use super::super::flow::{NEVER, Next};
use super::super::{
    Action, Barrier, Builtin, Call, Callee, Parameter, Preset, Reduction, Slot, Stack, unresolved,
};
use super::name::Name;
use super::operand::constant;
use super::{Local, Lowering};
use crate::memory::fault::FaultKind;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;
use crate::ptx::{LoadError, Result};

impl<'t> Lowering<'_, 't> {
    /// Instructions of control flow.
    pub(super) fn control(
        &mut self,
        name: &mut Name<'t>,
        operands: &[Operand<'t>],
    ) -> Result<bool> {
        let base = name.base;
        match base {
            "bra" => {
                name.ignore(&["uni"]);
                let [Operand::Label(label)] = operands else {
                    return self.error("a label is expected");
                };
                let next = match self.guard {
                    Some(_) => Next::Conditional(vec![*label]),
                    None => Next::Jump(vec![*label]),
                };
                self.push_flow(Action::Branch { target: *label, join: NEVER }, next);
            }
            "brx" => {
                name.ignore(&["idx", "uni"]);
                let [index, Operand::Label(list)] = operands else {
                    return self.error("an index and a list of labels are expected");
                };
                let index = self.source::<u32>(index, Type::U32)?;
                let found = self.body.targets.iter().find(|(label, _)| label == list);
                let Some((_, targets)) = found else {
                    return self.error("the list of labels is unknown");
                };
                let targets = targets.clone();
                let next = match self.guard {
                    Some(_) => Next::Conditional(targets.clone()),
                    None => Next::Jump(targets.clone()),
                };
                self.push_flow(Action::Indexed { index, targets, join: NEVER }, next);
            }
            "call" => self.call(name, operands)?,
            "ret" => {
                name.ignore(&["uni"]);
                self.give_results()?;
                self.ends(Action::Return);
            }
            "exit" => self.ends(Action::Exit),
            "trap" => self.ends(Action::Trap(FaultKind::Trap)),
            "brkpt" => self.push(Action::Trap(FaultKind::Breakpoint)),
            "nanosleep" => {
                let [time] = operands else { return self.operands(1) };
                self.source::<u32>(time, Type::U32)?;
                self.push(Action::Yield);
            }
            "pmevent" => name.ignore(&["mask"]),
            "setmaxnreg" => name.ignore(&["inc", "dec", "sync", "aligned"]),
            "griddepcontrol" => name.ignore(&["launch_dependents", "wait"]),
            "alloca" | "stacksave" | "stackrestore" => self.stack(base, operands)?,
            "bar" | "barrier" if name.takes("warp") => {
                name.ignore(&["sync"]);
                let [members] = operands else { return self.operands(1) };
                let members = self.source::<u32>(members, Type::B32)?;
                self.push(Action::WarpBarrier(members));
            }
            "barrier" if name.takes("cluster") => {
                let (arrives, waits) = (name.takes("arrive"), name.takes("wait"));
                name.ignore(&["release", "relaxed", "acquire", "aligned"]);
                self.push(Action::ClusterBarrier { arrives, waits });
            }
            "bar" | "barrier" => return self.barrier(name, operands),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// An action after which the thread does not go on, unless the guard is false.
    fn ends(&mut self, action: Action) {
        let next = if self.guard.is_some() { Next::Following } else { Next::End };
        self.push_flow(action, next);
    }

    fn barrier(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<bool> {
        name.ignore(&["cta", "aligned", "sync"]);
        let waits = !name.takes("arrive");
        if !name.takes("red") {
            let [number, rest @ ..] = operands else { return self.operands(1) };
            let number = self.source::<u32>(number, Type::U32)?;
            let threads = match rest.first() {
                Some(threads) => Some(self.source::<u32>(threads, Type::U32)?),
                None => None,
            };
            self.push(Action::Barrier(Barrier { number, threads, waits, reduction: None }));
            return Ok(true);
        }
        let operation = name.take_of(&["popc", "and", "or"]);
        let (to, number, threads, condition) = match operands {
            [to, number, condition] => (to, number, None, condition),
            [to, number, threads, condition] => (to, number, Some(threads), condition),
            _ => return self.operands(3),
        };
        let number = self.source::<u32>(number, Type::U32)?;
        let threads = match threads {
            Some(threads) => Some(self.source::<u32>(threads, Type::U32)?),
            None => None,
        };
        let condition = self.condition(condition)?;
        let reduction = match operation {
            Some("popc") => Reduction::Count(self.destination::<u32>(to)?),
            Some("and") => Reduction::All(self.mask(to)?),
            _ => Reduction::Any(self.mask(to)?),
        };
        let reduction = Some((reduction, condition));
        self.push(Action::Barrier(Barrier { number, threads, waits, reduction }));
        Ok(true)
    }

    fn call<'o>(&mut self, name: &mut Name<'t>, operands: &'o [Operand<'t>]) -> Result<()> {
        name.ignore(&["uni"]);
        let list = |operand: &'o Operand<'t>| match operand {
            Operand::Vector(list) => Some(list.as_slice()),
            // A constant in parentheses is read as the constant.
            Operand::Integer(_) | Operand::Single(_) | Operand::Double(_) => {
                Some(std::slice::from_ref(operand))
            }
            _ => None,
        };
        let (results, rest) = match operands {
            [Operand::Vector(results), rest @ ..] => (results.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let [callee, rest @ ..] = rest else { return self.operands(1) };
        let arguments = rest.first().and_then(list).unwrap_or_default();
        let arguments = self.arguments(arguments)?;
        let (result, to) = match results {
            [] => (None, None),
            [one] => self.result(one)?,
            _ => return self.error("a call has one result"),
        };
        let callee = match callee {
            Operand::Symbol(name, 0) => self.callee(name)?,
            Operand::Register(_) => {
                let Slot::Wide(row) = self.slot(callee)? else {
                    return self.error("the address of a function has 64 bits");
                };
                // Any function whose address is taken may be called.
                Callee::Indirect(row)
            }
            _ => return self.error("a function is expected"),
        };
        self.push(Action::Call(Box::new(Call { callee, arguments, result })));
        if let (Some(to), Some(place)) = (to, result) {
            self.load_frame(to, place);
        }
        Ok(())
    }

    /// `alloca`, `stacksave` and `stackrestore`.
    fn stack(&mut self, base: &str, operands: &[Operand<'t>]) -> Result<()> {
        let change = match (base, operands) {
            ("alloca", [to, bytes, rest @ ..]) => {
                let to = self.destination::<u64>(to)?;
                let bytes = self.source::<u64>(bytes, Type::U64)?;
                let align = match rest {
                    [] => 8,
                    [Operand::Integer(align)] if *align > 0 && *align <= 1 << 20 => {
                        (*align as usize).next_power_of_two()
                    }
                    _ => return self.error("the alignment is no power of two"),
                };
                Stack::Allocate { to, bytes, align }
            }
            ("stacksave", [to]) => Stack::Save(self.destination::<u64>(to)?),
            ("stackrestore", [from]) => Stack::Restore(self.source::<u64>(from, Type::U64)?),
            _ => return self.operands(1 + usize::from(base == "alloca")),
        };
        self.push(Action::Stack(change));
        Ok(())
    }

    fn callee(&mut self, name: &str) -> Result<Callee> {
        if let Some(index) = self.module.functions.get(name).copied() {
            if self.module.defined.contains(&index) {
                self.function.calls.push(index);
                return Ok(Callee::Function(index));
            }
            if let Some(builtin) = Builtin::named(name) {
                return Ok(Callee::Builtin(builtin));
            }
        }
        Err(unresolved(self.line, name))
    }

    /// A `.param` variable of the function.
    fn local(&self, operand: &Operand<'t>) -> Option<Parameter> {
        let Operand::Local(variable, 0) = operand else { return None };
        match self.variables[*variable as usize] {
            Local::Frame(offset) => {
                let bytes = self.body.variables[*variable as usize].bytes();
                Some(Parameter { offset, bytes })
            }
            Local::Module(_) => None,
        }
    }

    /// New local memory for an argument or a result of a call.
    fn new_local(&mut self, bytes: usize) -> Parameter {
        let offset = self.function.frame.next_multiple_of(bytes.max(1));
        self.function.frame = offset + bytes;
        Parameter { offset, bytes }
    }

    /// Where the arguments of a call are in local memory; registers and constants are put there.
    fn arguments(&mut self, list: &[Operand<'t>]) -> Result<Vec<Parameter>> {
        let mut placed = Vec::new();
        for operand in list {
            if let Some(place) = self.local(operand) {
                placed.push(place);
                continue;
            }
            let from = match constant(operand, Type::B64) {
                Some(bits) => Slot::Wide(self.preset(Preset::Bits(bits), true)),
                None => self.slot(operand)?,
            };
            let place = self.new_local(from.bytes());
            if place.bytes == 0 {
                return self.error("a predicate is no argument of a call");
            }
            self.store_frame(from, place);
            placed.push(place);
        }
        Ok(placed)
    }

    /// Where the result of a call is in local memory, and the register for it if it is one.
    fn result(&mut self, operand: &Operand<'t>) -> Result<(Option<Parameter>, Option<Slot>)> {
        if let Some(place) = self.local(operand) {
            return Ok((Some(place), None));
        }
        if *operand == Operand::Sink {
            return Ok((None, None));
        }
        let Operand::Register(number) = operand else {
            return self.error("the result of a call is no register and no variable");
        };
        let to = self.registers[*number as usize];
        let place = self.new_local(self.body.registers[*number as usize].bytes());
        match place.bytes {
            0 => self.error("a predicate is no result of a call"),
            _ => Ok((Some(place), Some(to))),
        }
    }

    /// Loads the parameters of a function that are registers.
    pub(super) fn take_parameters(&mut self) -> Result<()> {
        for (index, variable) in self.tree.parameters.iter().enumerate() {
            let Some(number) = variable.register else { continue };
            let (to, place) = (self.registers[number as usize], self.function.parameters[index]);
            if self.tree.is_kernel || to.bytes() == 0 {
                return self.error(format!("the register {} is no parameter", variable.name));
            }
            self.load_frame(to, place);
        }
        if self.tree.results.len() > 1 {
            let message = "functions with several results are not executed";
            return Err(LoadError::unsupported(self.line, message));
        }
        Ok(())
    }

    /// Stores the result of a function, if it is a register.
    pub(super) fn give_results(&mut self) -> Result<()> {
        let (Some(variable), Some(place)) = (self.tree.results.first(), self.function.result)
        else {
            return Ok(());
        };
        let Some(number) = variable.register else { return Ok(()) };
        let from = self.registers[number as usize];
        if from.bytes() == 0 {
            return self.error(format!("the predicate {} is no result", variable.name));
        }
        self.store_frame(from, place);
        Ok(())
    }
}
