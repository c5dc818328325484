//! The name of an instruction: its parts, of which each must be used.

use crate::ptx::types::Type;

/// An instruction's name.
pub(super) struct Name<'a> {
    /// The part before the first dot.
    pub(super) base: &'a str,
    /// The types in it.
    pub(super) types: Vec<Type>,
    parts: Vec<(&'a str, bool)>,
}

impl<'a> Name<'a> {
    pub(super) fn of(text: &'a str) -> Name<'a> {
        let mut words = text.split('.');
        let base = words.next().unwrap_or_default();
        let (mut parts, mut types) = (Vec::new(), Vec::new());
        for word in words {
            match Type::named(word) {
                Some(of) => types.push(of),
                None => parts.push((word, false)),
            }
        }
        Name { base, types, parts }
    }

    /// The type at a place; the last if there are fewer.
    pub(super) fn of_type(&self, place: usize) -> Type {
        self.types.get(place).or(self.types.last()).copied().unwrap_or(Type::B32)
    }

    /// True if the part is there; it counts as used.
    pub(super) fn takes(&mut self, part: &str) -> bool {
        let mut is_there = false;
        for (word, used) in &mut self.parts {
            if *word == part {
                *used = true;
                is_there = true;
            }
        }
        is_there
    }

    /// The first of these parts that is there.
    pub(super) fn take_of<'b>(&mut self, list: &[&'b str]) -> Option<&'b str> {
        list.iter().find(|part| self.takes(part)).copied()
    }

    /// The first part that is not used yet and meets a condition.
    pub(super) fn take_if(&mut self, is_it: impl Fn(&str) -> bool) -> Option<&'a str> {
        let (word, used) = self.parts.iter_mut().find(|(word, used)| !used && is_it(word))?;
        *used = true;
        Some(word)
    }

    /// Parts that change nothing here.
    pub(super) fn ignore(&mut self, list: &[&str]) {
        for part in list {
            self.takes(part);
        }
    }

    /// A part that nothing used.
    pub(super) fn unused(&self) -> Option<&'a str> {
        self.parts.iter().find(|(_, used)| !used).map(|(word, _)| *word)
    }
}

/// Instructions of PTX that are not executed; others that are unknown are no PTX.
const OTHERS: &[&str] = &[
    "clusterlaunchcontrol",
    "istypep",
    "ldmatrix",
    "ldu",
    "mma",
    "movmatrix",
    "multimem",
    "pmevent",
    "setmaxnreg",
    "stmatrix",
    "suld",
    "suq",
    "sured",
    "sust",
    "tcgen05",
    "tensormap",
    "tex",
    "tld4",
    "txq",
    "wgmma",
    "wmma",
    "st",
    "ld",
    "cp",
    "cvt",
    "fence",
    "mbarrier",
    "red",
    "atom",
    "add",
    "sub",
    "mul",
    "fma",
    "mad",
    "min",
    "max",
    "abs",
    "neg",
    "set",
    "setp",
    "bar",
    "barrier",
    "call",
    "mov",
    "ex2",
    "tanh",
    "div",
    "rcp",
    "sqrt",
    "griddepcontrol",
    "createpolicy",
    "discard",
    "prefetch",
];

/// True if PTX has an instruction of this name.
pub(super) fn exists(base: &str) -> bool {
    OTHERS.contains(&base)
}
