//! SONAME, no unloading, and the thread block in C (stable Rust has no initial-exec TLS).

fn main() {
    println!("cargo::rerun-if-changed=src/thread.c");
    cc::Build::new()
        .file("src/thread.c")
        .flag("-fvisibility=hidden")
        .std("c11")
        .compile("tcuda_thread");
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtcuda.so.{major}.{minor}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
