//! Branches, calls, barriers and the end of a thread.

use super::super::flow::{NEVER, Next};
use super::super::{
    Action, Barrier, Builtin, Call, Callee, Parameter, Reduction, Slot, unresolved,
};
use super::name::Name;
use super::{Local, Lowering};
use crate::memory::fault::FaultKind;
use crate::ptx::Result;
use crate::ptx::tree::Operand;
use crate::ptx::types::Type;

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
                self.ends(Action::Return);
            }
            "exit" => self.ends(Action::Exit),
            "trap" => self.ends(Action::Trap(FaultKind::Trap)),
            "brkpt" => self.push(Action::Trap(FaultKind::Breakpoint)),
            "nanosleep" => self.push(Action::Yield),
            "pmevent" | "setmaxnreg" | "griddepcontrol" => {
                while name.take_if(|_| true).is_some() {}
                self.push(Action::Compute(Box::new(|_, _| {})));
            }
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

    fn call(&mut self, name: &mut Name<'t>, operands: &[Operand<'t>]) -> Result<()> {
        name.ignore(&["uni"]);
        let (results, callee, arguments) = match operands {
            [Operand::Vector(results), callee, Operand::Vector(arguments), ..] => {
                (results.as_slice(), callee, arguments.as_slice())
            }
            [Operand::Vector(results), callee, ..] => (results.as_slice(), callee, &[][..]),
            [callee, Operand::Vector(arguments), ..] => (&[][..], callee, arguments.as_slice()),
            [callee, ..] => (&[][..], callee, &[][..]),
            [] => return self.operands(1),
        };
        let arguments = self.locals(arguments)?;
        let result = self.locals(results)?.first().copied();
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

    /// Variables of the function that hold arguments or results.
    fn locals(&mut self, list: &[Operand<'t>]) -> Result<Vec<Parameter>> {
        let mut placed = Vec::new();
        for operand in list {
            let place = match operand {
                Operand::Local(variable, 0) => match self.variables[*variable as usize] {
                    Local::Frame(offset) => {
                        let bytes = self.body.variables[*variable as usize].bytes();
                        Some(Parameter { offset, bytes })
                    }
                    Local::Module(_) => None,
                },
                _ => None,
            };
            match place {
                Some(place) => placed.push(place),
                None => return self.error("an argument of a call is no .param variable"),
            }
        }
        Ok(placed)
    }
}
