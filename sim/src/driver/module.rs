//! Modules: the kernels of an image and its variables.

use super::handles::Handles;
use super::kernel::{self, Kernel};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A loaded image.
pub(super) struct Module {
    pub(super) device: usize,
    pub(super) functions: BTreeMap<String, usize>,
}

/// A kernel of a module.
#[derive(Clone)]
pub(super) struct Function {
    pub(super) device: usize,
    pub(super) kernel: Arc<Kernel>,
    /// Maximum dynamic shared memory per block of a launch.
    pub(super) most_shared: usize,
}

impl Function {
    pub(super) fn new(device: usize, kernel: Arc<Kernel>) -> Function {
        Function { device, kernel, most_shared: kernel::DEFAULT_SHARED_PER_BLOCK }
    }
}

/// The modules and their functions.
pub(super) struct Modules {
    pub(super) modules: Handles<Module>,
    pub(super) functions: Handles<Function>,
}

impl Modules {
    /// Number of modules of a device.
    pub(super) fn count_of(&self, device: usize) -> usize {
        self.modules.iter().filter(|module| module.device == device).count()
    }

    /// Unloads the modules of the devices of which `gone` is true.
    pub(super) fn clear(&mut self, gone: impl Fn(usize) -> bool) {
        self.modules.extract(|module| !gone(module.device));
        self.functions.extract(|function| !gone(function.device));
    }
}
