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

/// The names of the instructions of PTX.
const INSTRUCTIONS: &str = "\
    abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra \
    brev brkpt brx call clusterlaunchcontrol clz cnot copysign cos cp createpolicy cvt cvta \
    discard div dp2a dp4a elect ex2 exit fence fma fns getctarank griddepcontrol isspacep \
    istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar min mma mov \
    movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp \
    red redux rem ret rsqrt sad selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st \
    stackrestore stacksave stmatrix sub subc suld suq sured sust szext tanh tcgen05 tensormap \
    testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 vmad \
    vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma \
    wmma xor";

/// True if PTX has an instruction of this name.
pub(super) fn exists(base: &str) -> bool {
    INSTRUCTIONS.split(' ').any(|name| name == base)
}
