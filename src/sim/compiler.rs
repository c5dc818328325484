//! Compiles kernels in CUDA C++ with the host's C++ compiler to a shared object, which is the
//! simulated machine's image format.

use super::physical::errno;
use crate::base::environment;
use crate::base::file::BlockedSignals;
use crate::base::reserve;
use crate::driver::compiler::{Failure, Image, Log, Program};
use std::ffi::{CStr, CString, OsStr};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::{env, fs};

const MATH: &str = include_str!("prelude/math.h");
const GRID: &str = include_str!("prelude/grid.h");
const LOOP: &str = include_str!("prelude/loop.h");
const FIBERS: &str = include_str!("prelude/fibers.h");
const ENTRY: &str = include_str!("prelude/entry.h");

const OPTIONS: &[&str] = &[
    "-O1",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-x",
    "c++",
];

/// Prefixes of NVRTC options that have the same meaning for the host's compiler.
const SHARED: &[&str] = &["-I", "-D", "-U", "-std=", "--std="];

/// A temporary directory that is deleted with its contents.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch, i32> {
        let mut path = env::temp_dir();
        path.push("tcuda-XXXXXX");
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
        let raw = path.into_raw();
        // SAFETY: a NUL-terminated string that this function owns; it is changed in place.
        let made = unsafe { libc::mkdtemp(raw) };
        let code = errno();
        // SAFETY: from `into_raw`, and its length is unchanged.
        let path = unsafe { CString::from_raw(raw) };
        if made.is_null() {
            return Err(code);
        }
        Ok(Scratch(PathBuf::from(OsStr::from_bytes(path.as_bytes()))))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Finds `word` as a whole identifier.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_whole = |at: &usize| {
        !text[..*at].ends_with(is_name) && !text[at + word.len()..].starts_with(is_name)
    };
    text.match_indices(word).map(|(at, _)| at).find(is_whole)
}

/// Dynamic shared memory is declared as an array without a size, `extern __shared__ T name[];`. C++
/// has no equivalent, so the declaration becomes a pointer.
fn with_dynamic_memory(source: &str) -> String {
    const WORD: &str = "__shared__";
    let mut text = String::with_capacity(source.len() + 64);
    let mut rest = source;
    while let Some(at) = find_word(rest, WORD) {
        let (before, after) = rest.split_at(at);
        let declaration = after.split_once(';').map_or("", |(found, _)| &found[WORD.len()..]);
        let head = before.trim_end().strip_suffix("extern");
        let array = declaration.trim_end().strip_suffix(']').map(str::trim_end);
        let array = array.and_then(|found| found.strip_suffix('[')).map(str::trim_end);
        let (Some(head), Some(array)) = (head, array) else {
            let (now, later) = rest.split_at(at + WORD.len());
            text.push_str(now);
            rest = later;
            continue;
        };
        let start = array.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
        let (of, name) = array.split_at(start);
        let of = match of.trim_start().strip_prefix("__align__(").and_then(|of| of.split_once(')'))
        {
            Some((_, of)) => of.trim(),
            None => of.trim(),
        };
        text.push_str(head);
        text.push_str(&format!("{of} *{name} = static_cast<{of} *>(tcuda_host::dynamic_shared)"));
        rest = &after[WORD.len() + declaration.len()..];
    }
    text.push_str(rest);
    text
}

/// The whole source: the prelude, the program, and the kernel's description.
fn full_source(program: &Program<'_>) -> Result<String, Failure> {
    let text = |text: &CStr| text.to_str().map(str::to_owned).map_err(|_| malformed());
    let (source, entry, title) =
        (text(program.source)?, text(program.entry)?, text(program.title)?);
    let waits = find_word(&source, "__syncthreads").is_some();
    let (threads, context) = match waits {
        true => (FIBERS, "sizeof(tcuda_host::fiber)"),
        false => (LOOP, "0"),
    };
    let source = with_dynamic_memory(&source);
    let quoted = entry.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(format!(
        "{MATH}{GRID}{threads}#line 1 \"{title}\"\n{source}\n#line 1 \"launch\"\n{ENTRY}\
         typedef tcuda_host::entry<decltype({entry})> tcuda_entry;\n\
         extern \"C\" __attribute__((visibility(\"default\"))) const tcuda_host::kernel \
         tcuda_kernel = {{\"{quoted}\", tcuda_entry::sizes, tcuda_entry::pointers, \
         tcuda_entry::number, \
         &tcuda_host::run<&tcuda_entry::run_one<{entry}>>, {context}}};\n"
    ))
}

/// Passes each text that determines the result besides the program: the prelude and the compiler
/// commands.
pub fn texts(take: &mut dyn FnMut(&[u8])) {
    [MATH, GRID, LOOP, FIBERS, ENTRY].iter().for_each(|text| take(text.as_bytes()));
    OPTIONS.iter().for_each(|option| take(option.as_bytes()));
    take(environment::value(c"CXX").unwrap_or(c"").to_bytes());
}

/// The environment variables that list where the host's compilers look for headers.
pub fn include_paths() -> [&'static [u8]; 2] {
    [c"CPATH", c"CPLUS_INCLUDE_PATH"]
        .map(|variable| environment::value(variable).unwrap_or(c"").to_bytes())
}

fn malformed() -> Failure {
    Failure::Source(Log::of(b"the source is not UTF-8"))
}

/// Runs the first compiler that exists. Its messages go to a file: pipes need more descriptors, and
/// std panics if it gets none.
fn run(arguments: &[&OsStr], messages: &Path) -> Result<ExitStatus, Failure> {
    // A process with elevated privileges must not choose programs by its environment.
    // SAFETY: getauxval has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Err(Failure::NoCompiler);
    }
    let chosen = environment::value(c"CXX").and_then(|value| value.to_str().ok()).unwrap_or("");
    for name in [chosen, "c++", "g++", "clang++"] {
        // "ccache g++"
        let mut words = name.split_whitespace();
        let Some(program) = words.next() else { continue };
        let mut command = Command::new(program);
        let messages = fs::File::create(messages).map_err(failed("writing its messages"))?;
        command.args(words).args(arguments).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
        match command.status() {
            Ok(status) => return Ok(status),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                let code = error.raw_os_error().unwrap_or(0);
                return Err(Failure::Host { what: "starting it", code });
            }
        }
    }
    Err(Failure::NoCompiler)
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::Host { what, code: error.raw_os_error().unwrap_or(0) }
}

/// Compiles a program to a shared object.
pub fn compile(program: &Program<'_>) -> Result<Image, Failure> {
    let _reserve = reserve::hold().ok_or(Failure::OutOfHostMemory)?;
    let text = full_source(program)?;
    let making = "making a directory for it";
    let scratch = Scratch::new().map_err(|code| Failure::Host { what: making, code })?;
    let (source, object) = (scratch.file("kernel.cc"), scratch.file("kernel.so"));
    let quiet = BlockedSignals::begin();
    fs::write(&source, text).map_err(failed("writing the source"))?;
    drop(quiet);
    let mut arguments: Vec<&OsStr> = vec![OsStr::new("-std=c++17")];
    let flags = program.flags.iter().map(|flag| flag.to_bytes());
    // The value of "-I" may be the next argument.
    let mut is_value = false;
    let shared = flags.filter(|flag| {
        let is_shared = SHARED.iter().any(|known| flag.starts_with(known.as_bytes()));
        let taken = is_value || is_shared;
        is_value = !is_value && matches!(*flag, b"-I" | b"-D" | b"-U");
        taken
    });
    arguments.extend(shared.map(OsStr::from_bytes));
    arguments.extend(OPTIONS.iter().map(OsStr::new));
    arguments.extend([source.as_os_str(), OsStr::new("-o"), object.as_os_str()]);
    let messages = scratch.file("messages");
    if !run(&arguments, &messages)?.success() {
        let messages = fs::read(&messages).map_err(failed("reading its messages"))?;
        return Err(Failure::Source(Log::of(&readable(&messages, &source))));
    }
    let bytes = fs::read(&object).map_err(failed("reading what it made"))?;
    let entry = program.entry.to_bytes_with_nul().to_vec();
    Ok(Image { bytes, entry, version: 0 })
}

/// The messages without the temporary file's name and without the include chain.
fn readable(log: &[u8], source: &Path) -> Vec<u8> {
    let log = String::from_utf8_lossy(log);
    let path = source.to_string_lossy();
    let is_of_use = |line: &&str| !line.contains(&*path);
    let lines: Vec<&str> = log.lines().filter(is_of_use).collect();
    lines.join("\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_launches_become_pointers() {
        let source = "__global__ void f() {\n  extern __shared__ __align__(16) unsigned char \
            room[];\n\
            __shared__ float sums[32];\nextern  __shared__ float\nvalues [ ] ; values[0] = 1; }";
        assert_eq!(
            with_dynamic_memory(source),
            "__global__ void f() {\n  unsigned char *room = static_cast<unsigned char *>(\
             tcuda_host::dynamic_shared);\n__shared__ float sums[32];\nfloat *values = \
             static_cast<float *>(tcuda_host::dynamic_shared); values[0] = 1; }"
        );
    }
}
