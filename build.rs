//! SONAME, no unloading, the thread block in C (stable Rust has no initial-exec TLS), and the
//! images of the kernels, compressed: a tenth of the library instead of half of it, and what all
//! are built for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs, io};

/// As src/random/image.rs lists them.
const IMAGES: [&str; 8] = [
    "uniform",
    "normal",
    "log_normal",
    "exponential",
    "cauchy",
    "geometric",
    "integers",
    "bernoulli",
];

/// Files of which each kernel, with its variant for long tables, is an image of its own, so that a
/// driver compiles none that is not used.
const SPLIT: [&str; 3] = ["comm_copy", "comm_sum_floats", "comm_sum_integers"];

/// Other texts that are stored like images: the page of a snapshot, and what jit puts before code.
const TEXTS: [(&str, &str); 7] = [
    ("memory/trace", "snapshot.html"),
    ("memory/trace", "snapshot.js"),
    ("jit/prelude", "base.h"),
    ("jit/prelude", "complex.h"),
    ("jit/prelude", "float8.h"),
    ("jit/prelude", "short.h"),
    ("jit/prelude", "std.h"),
];

/// Writes the images to OUT_DIR.
fn compress() -> io::Result<()> {
    println!("cargo::rerun-if-changed=kernels");
    for name in IMAGES {
        let text = fs::read_to_string(format!("kernels/random_{name}.ptx"))?;
        store(&format!("random_{name}"), &text)?;
    }
    for name in SPLIT {
        let text = fs::read_to_string(format!("kernels/{name}.ptx"))?;
        let mut kernels = text.split(".visible .entry");
        let head = kernels.next().unwrap_or_default();
        let mut images = BTreeMap::new();
        for kernel in kernels {
            let name = kernel.split('(').next().unwrap_or_default().trim();
            let name = name.strip_suffix("_many").unwrap_or(name);
            let image = images.entry(name).or_insert_with(|| head.to_owned());
            // What stands before the next one are comments.
            *image += &format!(".visible .entry{kernel}");
        }
        for (name, image) in images {
            store(name, &image)?;
        }
    }
    for (folder, name) in TEXTS {
        let path = format!("src/{folder}/{name}");
        println!("cargo::rerun-if-changed={path}");
        store_bytes(name, fs::read(path)?)?;
    }
    for name in ["fill", "set_condition"] {
        store(name, &fs::read_to_string(format!("kernels/{name}.ptx"))?)?;
    }
    for name in SPLIT.iter().chain(&["fill"]) {
        for gpu in [80, 90] {
            let name = format!("{name}.sm_{gpu}");
            store_bytes(&name, fs::read(format!("kernels/{name}.cubin"))?)?;
        }
    }
    Ok(())
}

/// Writes PTX, without comments and indentation.
fn store(name: &str, text: &str) -> io::Result<()> {
    let mut bare = String::new();
    for line in text.lines() {
        // The only strings are names of files, which no comment mark is in.
        let line = line.split("//").next().unwrap_or_default().trim();
        if !line.is_empty() {
            bare += line;
            bare.push('\n');
        }
    }
    store_bytes(name, bare.into())
}

/// Writes an image and a NUL: their length as 8 bytes, then deflated.
fn store_bytes(name: &str, mut image: Vec<u8>) -> io::Result<()> {
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    image.push(0);
    let mut stored = (image.len() as u64).to_le_bytes().to_vec();
    stored.extend(miniz_oxide::deflate::compress_to_vec(&image, 9));
    fs::write(Path::new(&out).join(name), stored)
}

/// What the kernels are built for, of the images themselves: "sm_80" of x.sm_80.cubin, "compute_52"
/// of PTX with that target; in PyTorch's order.
fn architectures() -> io::Result<()> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("kernels")? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let architecture = if name.ends_with(".cubin") {
            name.split('.').find(|part| part.starts_with("sm_")).map(str::to_owned)
        } else if name.ends_with(".ptx") {
            let text = fs::read_to_string(&path)?;
            let target = text.lines().find_map(|line| line.strip_prefix(".target sm_"));
            target.and_then(|rest| rest.split([',', ' ']).next()).map(|of| format!("compute_{of}"))
        } else {
            continue;
        };
        let unknown = || io::Error::other(format!("{name}: for which architecture?"));
        let architecture = architecture.ok_or_else(unknown)?;
        let digits = |c: char| !c.is_ascii_digit();
        let number: u32 = architecture.trim_matches(digits).parse().unwrap_or(0);
        found.insert((architecture.starts_with("compute_"), number, architecture));
    }
    let list: Vec<String> = found.into_iter().map(|(_, _, architecture)| architecture).collect();
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    fs::write(Path::new(&out).join("architectures"), list.join(" "))
}

fn main() -> io::Result<()> {
    compress()?;
    architectures()?;
    println!("cargo::rerun-if-changed=src/base/thread.c");
    cc::Build::new()
        .file("src/base/thread.c")
        .flag("-fvisibility=hidden")
        .std("c11")
        .compile("tcuda_thread");
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtcuda.so.{major}.{minor}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
