//! Modules: the kernels of an image and its variables.

use super::handles::Handles;
use super::kernel::{self, Kernel};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A loaded image.
pub(super) struct Module {
    /// The number of its context.
    pub(super) owner: usize,
    pub(super) functions: BTreeMap<String, usize>,
}

/// A kernel of a module.
#[derive(Clone)]
pub(super) struct Function {
    /// The number of its context.
    pub(super) owner: usize,
    pub(super) kernel: Arc<Kernel>,
    /// Maximum dynamic shared memory per block of a launch.
    pub(super) most_shared: usize,
}

impl Function {
    pub(super) fn new(owner: usize, kernel: Arc<Kernel>) -> Function {
        Function { owner, kernel, most_shared: kernel::DEFAULT_SHARED_PER_BLOCK }
    }
}

/// The modules and their functions.
pub(super) struct Modules {
    pub(super) modules: Handles<Module>,
    pub(super) functions: Handles<Function>,
}

impl Modules {
    /// Number of modules of a context.
    pub(super) fn count_of(&self, owner: usize) -> usize {
        self.modules.iter().filter(|module| module.owner == owner).count()
    }

    /// Unloads the modules of the contexts of which `gone` is true.
    pub(super) fn clear(&mut self, gone: impl Fn(usize) -> bool) {
        self.modules.extract(|module| !gone(module.owner));
        self.functions.extract(|function| !gone(function.owner));
    }
}
