//! Options of the linker.

fn main() {
    // So that a process that has loaded it as libcuda.so.1 does not load it twice.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtcuda_sim.so");
    // Threads and thread-specific destructors outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
