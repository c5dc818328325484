//! Modules: the kernels of an image and its variables. Libraries: images that become a module of
//! each device at their first use there.

use super::attributes::Settings;
use super::handles::Handles;
use super::kernel::{Kernel, Variables};
use super::memory::Memory;
use crate::base::code;
use crate::exec;
use crate::program::Program;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// A loaded image.
pub(super) struct Module {
    /// The number of its context.
    pub(super) owner: usize,
    pub(super) functions: BTreeMap<String, usize>,
    program: Arc<Program>,
    variables: Arc<Variables>,
    /// The handle of the library to which it belongs, and which unloads it.
    pub(super) library: Option<usize>,
}

impl Module {
    /// Address and bytes of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<(u64, usize)> {
        self.variables.find(&self.program, name)
    }

    /// Address and bytes of the variable that contains an address.
    pub(super) fn variable_around(&self, address: u64) -> Option<(u64, usize)> {
        self.variables.around(&self.program, address)
    }
}

/// The number of a context, and its device.
pub(super) type Owner = (usize, usize);

/// A kernel of a module.
#[derive(Clone)]
pub(super) struct Function {
    /// The number of its context.
    pub(super) owner: usize,
    pub(super) device: usize,
    pub(super) kernel: Arc<Kernel>,
    pub(super) name: Arc<CStr>,
    /// The handle of its module.
    pub(super) module: usize,
    /// The handle of the library's kernel of which it is the function.
    kernel_handle: Option<usize>,
    pub(super) settings: Settings,
}

/// An image that is independent of a context.
pub(super) struct Library {
    program: Arc<Program>,
    pub(super) kernels: BTreeMap<String, usize>,
    /// The handle of its module in each context where it is loaded.
    modules: BTreeMap<usize, usize>,
}

/// A kernel of a library.
pub(super) struct LibraryKernel {
    /// The handle of its library.
    pub(super) library: usize,
    pub(super) name: Arc<CStr>,
    pub(super) exec: exec::Kernel,
    /// What the host has set for each device. Settings of the function there come first.
    pub(super) settings: BTreeMap<usize, Settings>,
}

/// The modules and libraries, with their functions.
pub(super) struct Modules {
    pub(super) modules: Handles<Module>,
    pub(super) functions: Handles<Function>,
    pub(super) libraries: Handles<Library>,
    pub(super) kernels: Handles<LibraryKernel>,
}

impl Modules {
    pub(super) fn new() -> Modules {
        Modules {
            modules: Handles::new(5),
            functions: Handles::new(7),
            libraries: Handles::new(21),
            kernels: Handles::new(22),
        }
    }

    /// Number of modules of a context, without those of libraries.
    pub(super) fn count_of(&self, owner: usize) -> usize {
        self.owned().filter(|module| module.owner == owner).count()
    }

    /// Number of modules and libraries that the host has to unload.
    pub(super) fn count(&self) -> usize {
        self.owned().count() + self.libraries.len()
    }

    fn owned(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().filter(|module| module.library.is_none())
    }

    /// A function with what holds for it of its library's kernel.
    pub(super) fn function(&self, handle: usize) -> Option<Function> {
        let mut found = self.functions.get(handle)?.clone();
        let kernel = found.kernel_handle.and_then(|kernel| self.kernels.get(kernel));
        let of_kernel = kernel.and_then(|kernel| kernel.settings.get(&found.device));
        found.settings = found.settings.or(of_kernel.copied().unwrap_or_default());
        Some(found)
    }

    /// Adds the module of a program, and returns its handle.
    pub(super) fn insert(
        &mut self,
        (owner, device): Owner,
        program: Arc<Program>,
        variables: Arc<Variables>,
        library: Option<usize>,
    ) -> usize {
        let Modules { modules, functions, libraries, .. } = self;
        let whole = library.and_then(|library| libraries.get(library));
        modules.insert_with(|module| {
            let all = Kernel::all(&program, &variables).into_iter().map(|(name, kernel)| {
                let function = Function {
                    owner,
                    device,
                    kernel,
                    name: text(&name),
                    module,
                    kernel_handle: whole.and_then(|whole| whole.kernels.get(&name)).copied(),
                    settings: Settings::default(),
                };
                (name, functions.insert(function))
            });
            let functions = all.collect();
            Module { owner, functions, program, variables, library }
        })
    }

    /// Removes a module and its functions.
    pub(super) fn remove(&mut self, module: usize) -> Option<Module> {
        let removed = self.modules.remove(module)?;
        for handle in removed.functions.values() {
            self.functions.remove(*handle);
        }
        Some(removed)
    }

    /// Adds the library of a program, and returns its handle.
    pub(super) fn insert_library(&mut self, program: Arc<Program>) -> usize {
        let Modules { libraries, kernels, .. } = self;
        libraries.insert_with(|library| {
            let all = exec::Kernel::all(&program).map(|exec| {
                let name = exec.function().name.clone();
                let settings = BTreeMap::new();
                let kernel = LibraryKernel { library, name: text(&name), exec, settings };
                (name, kernels.insert(kernel))
            });
            let kernels = all.collect();
            Library { program, kernels, modules: BTreeMap::new() }
        })
    }

    /// Removes a library, its kernels and its modules.
    pub(super) fn remove_library(&mut self, library: usize) -> Option<Vec<Module>> {
        let removed = self.libraries.remove(library)?;
        for handle in removed.kernels.values() {
            self.kernels.remove(*handle);
        }
        Some(removed.modules.values().filter_map(|module| self.remove(*module)).collect())
    }

    /// The handle of a library's module on a device, where it is loaded at the first use.
    pub(super) fn module_of(
        &mut self,
        memory: &Arc<Memory>,
        library: usize,
        place: Owner,
    ) -> Result<usize, i32> {
        let found = self.libraries.get(library).ok_or(code::INVALID_HANDLE)?;
        if let Some(module) = found.modules.get(&place.0) {
            return Ok(*module);
        }
        let program = Arc::clone(&found.program);
        let variables = Variables::new(memory, place.1, &program)?;
        let module = self.insert(place, program, variables, Some(library));
        let library = self.libraries.get_mut(library).ok_or(code::INVALID_HANDLE)?;
        library.modules.insert(place.0, module);
        Ok(module)
    }

    /// The handle of the function of a library's kernel on a device.
    pub(super) fn function_of(
        &mut self,
        memory: &Arc<Memory>,
        kernel: usize,
        place: Owner,
    ) -> Result<usize, i32> {
        let found = self.kernels.get(kernel).ok_or(code::INVALID_HANDLE)?;
        let (library, name) = (found.library, Arc::clone(&found.name));
        let module = self.module_of(memory, library, place)?;
        let module = self.modules.get(module).ok_or(code::INVALID_HANDLE)?;
        let name = name.to_str().map_err(|_| code::NOT_FOUND)?;
        module.functions.get(name).copied().ok_or(code::NOT_FOUND)
    }

    /// Unloads the modules of the contexts of which `gone` is true.
    pub(super) fn clear(&mut self, gone: impl Fn(usize) -> bool) {
        self.modules.extract(|module| !gone(module.owner));
        self.functions.extract(|function| !gone(function.owner));
        for library in self.libraries.iter_mut() {
            library.modules.retain(|owner, _| !gone(*owner));
        }
    }
}

/// A name for the host. Names of PTX have no NUL.
fn text(name: &str) -> Arc<CStr> {
    CString::new(name).unwrap_or_default().into()
}
