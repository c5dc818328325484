//! A checker of PTX: whether the driver would accept it, and the names of its kernels. It does not
//! compile; of an instruction it reads only the name.

use crate::driver::code;

/// The newest PTX version that the simulated driver accepts (CUDA 12.9).
const NEWEST: (u32, u32) = (8, 8);

/// Functions that the driver itself provides.
const PROVIDED: &[&str] = &["vprintf", "malloc", "free", "__assertfail"];

/// Names of instructions, up to the first dot.
const INSTRUCTIONS: &[&str] = &[
    "abs",
    "activemask",
    "add",
    "addc",
    "alloca",
    "and",
    "applypriority",
    "atom",
    "bar",
    "barrier",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "bra",
    "brev",
    "brkpt",
    "brx",
    "call",
    "clusterlaunchcontrol",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "cp",
    "createpolicy",
    "cvt",
    "cvta",
    "discard",
    "div",
    "dp2a",
    "dp4a",
    "elect",
    "ex2",
    "exit",
    "fence",
    "fma",
    "fns",
    "getctarank",
    "griddepcontrol",
    "isspacep",
    "istypep",
    "ld",
    "ldmatrix",
    "ldu",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "mapa",
    "match",
    "max",
    "mbarrier",
    "membar",
    "min",
    "mma",
    "mov",
    "movmatrix",
    "mul",
    "mul24",
    "multimem",
    "nanosleep",
    "neg",
    "not",
    "or",
    "pmevent",
    "popc",
    "prefetch",
    "prefetchu",
    "prmt",
    "rcp",
    "red",
    "redux",
    "rem",
    "ret",
    "rsqrt",
    "sad",
    "selp",
    "set",
    "setmaxnreg",
    "setp",
    "shf",
    "shfl",
    "shl",
    "shr",
    "sin",
    "slct",
    "sqrt",
    "st",
    "stackrestore",
    "stacksave",
    "stmatrix",
    "sub",
    "subc",
    "suld",
    "suq",
    "sured",
    "sust",
    "szext",
    "tanh",
    "tcgen05",
    "tensormap",
    "testp",
    "tex",
    "tld4",
    "trap",
    "txq",
    "vabsdiff",
    "vabsdiff2",
    "vabsdiff4",
    "vadd",
    "vadd2",
    "vadd4",
    "vavrg2",
    "vavrg4",
    "vmad",
    "vmax",
    "vmax2",
    "vmax4",
    "vmin",
    "vmin2",
    "vmin4",
    "vote",
    "vset",
    "vset2",
    "vset4",
    "vshl",
    "vshr",
    "vsub",
    "vsub2",
    "vsub4",
    "wgmma",
    "wmma",
    "xor",
];

/// Removes comments from the text. The reserve does not cover a text of this length.
fn without_comments(text: &str) -> Result<String, i32> {
    let mut kept = String::new();
    kept.try_reserve(text.len()).map_err(|_| code::OUT_OF_MEMORY)?;
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        kept.push_str(before);
        rest = if from.starts_with("//") {
            from.find('\n').map_or("", |end| &from[end..])
        } else if from.starts_with("/*") {
            kept.push(' ');
            from.split_once("*/").map_or("", |(_, rest)| rest)
        } else {
            kept.push('/');
            &from[1..]
        };
    }
    kept.push_str(rest);
    Ok(kept)
}

/// Removes a directive from the start; returns its operand and the rest.
fn directive<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let rest = text.trim_start().strip_prefix(name)?;
    let rest = rest.strip_prefix(char::is_whitespace)?.trim_start();
    let ends = |c: char| c.is_whitespace() || c == ',';
    Some(rest.split_at(rest.find(ends).unwrap_or(rest.len())))
}

/// Checks the version and the target for a device of `capability`, such as 90; returns the rest.
fn check_header(text: &str, capability: u32) -> Result<&str, i32> {
    let (version, rest) = directive(text, ".version").ok_or(code::INVALID_IMAGE)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| code::INVALID_PTX);
    let (major, minor) = version.split_once('.').ok_or(code::INVALID_PTX)?;
    if (number(major)?, number(minor)?) > NEWEST {
        return Err(code::UNSUPPORTED_PTX_VERSION);
    }
    let (target, mut rest) = directive(rest, ".target").ok_or(code::INVALID_PTX)?;
    let digits = target.strip_prefix("sm_").ok_or(code::INVALID_PTX)?;
    if number(digits.trim_end_matches(['a', 'f']))? > capability {
        return Err(code::INVALID_PTX);
    }
    // Options, such as "debug".
    while let Some(option) = rest.trim_start().strip_prefix(',') {
        rest = option.trim_start().trim_start_matches(is_name);
    }
    Ok(rest)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

/// The function name in the text after `.func` or `.entry` and an optional result.
fn name(after: &str) -> &str {
    let mut rest = after.trim_start();
    if rest.starts_with('(') {
        rest = rest.split_once(')').map_or("", |(_, rest)| rest).trim_start();
    }
    &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]
}

/// The parts of a module that are checked.
#[derive(Default)]
struct Contents<'a> {
    entries: Vec<&'a str>,
    /// Functions that are declared but not defined; `calls` are the called functions.
    declared: Vec<&'a str>,
    calls: Vec<&'a str>,
}

/// Reads the statements of a function.
fn read_body<'a>(body: &'a str, contents: &mut Contents<'a>) -> Result<(), i32> {
    let between = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ';');
    let mut rest = body.trim_start_matches(between);
    while !rest.is_empty() {
        let word = rest.trim_start_matches(is_name);
        // These directives end at the end of the line.
        if rest.starts_with(".loc") || rest.starts_with(".file") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(after) = word.trim_start().strip_prefix(':')
            && word.len() < rest.len()
        {
            // A label.
            rest = after;
        } else {
            let (statement, after) = rest.split_once(';').ok_or(code::INVALID_PTX)?;
            read_statement(statement, contents)?;
            rest = after;
        }
        rest = rest.trim_start_matches(between);
    }
    Ok(())
}

fn read_statement<'a>(statement: &'a str, contents: &mut Contents<'a>) -> Result<(), i32> {
    let mut rest = statement;
    if let Some(predicated) = rest.strip_prefix('@') {
        rest = predicated.split_once(char::is_whitespace).map_or("", |(_, rest)| rest).trim_start();
    }
    if rest.starts_with('.') {
        return Ok(());
    }
    let instruction = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
    if !INSTRUCTIONS.contains(&instruction) {
        return Err(code::INVALID_PTX);
    }
    if instruction == "call" {
        contents.calls.push(rest);
    }
    Ok(())
}

/// Finds the bracket that closes the first one; returns the text inside and after.
fn bracketed(text: &str) -> Result<(&str, &str), i32> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Ok((&text[1..at], &text[at + 1..])),
            '}' => depth -= 1,
            _ => {}
        }
    }
    Err(code::INVALID_PTX)
}

fn read_module(text: &str) -> Result<Contents<'_>, i32> {
    let mut contents = Contents::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if !rest.starts_with('.') {
            return Err(code::INVALID_PTX);
        }
        if rest.starts_with(".address_size") || rest.starts_with(".file") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
            continue;
        }
        let end = rest.find([';', '{']).ok_or(code::INVALID_PTX)?;
        let (head, tail) = rest.split_at(end);
        let function = head.split_once(".entry").or_else(|| head.split_once(".func"));
        rest = match tail.strip_prefix(';') {
            Some(after) => {
                if let Some((before, declared)) = function
                    && before.contains(".extern")
                {
                    contents.declared.push(name(declared));
                }
                after
            }
            None => {
                let (body, after) = bracketed(tail)?;
                if let Some((_, defined)) = function {
                    if head.contains(".entry") {
                        contents.entries.push(name(defined));
                    }
                    read_body(body, &mut contents)?;
                }
                // The end of a variable's initialiser list.
                after.trim_start().strip_prefix(';').unwrap_or(after)
            }
        }
        .trim_start();
    }
    Ok(contents)
}

/// The names of the kernels of a PTX text, if a device of `capability` would accept it.
pub(super) fn kernels(text: &str, capability: u32) -> Result<Vec<String>, i32> {
    let text = without_comments(text)?;
    let contents = read_module(check_header(&text, capability)?)?;
    let is_called = |declared: &&&str| {
        contents.calls.iter().any(|call| call.split(|c| !is_name(c)).any(|word| word == **declared))
    };
    let mut missing = contents.declared.iter().filter(|name| !PROVIDED.contains(name));
    if missing.any(|declared| is_called(&declared)) {
        return Err(code::INVALID_PTX);
    }
    Ok(contents.entries.into_iter().map(String::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Result<Vec<String>, i32> {
        kernels(&format!(".version 7.8\n.target sm_52\n.address_size 64\n{body}"), 90)
    }

    #[test]
    fn kernels_are_found_and_instructions_looked_at() {
        let text = "/* a */ .visible .entry add_one(\n.param .u64 p)\n{ ret; } // }\n\
            .global .align 1 .b8 text[3] = {1, 2, 0};\n.entry  second$2 ( ) { }\n\
            .func (.param .b32 r) helper(.param .b32 a) { mov.u32 %r1, 5; ret; }";
        assert_eq!(of(text), Ok(vec!["add_one".into(), "second$2".into()]));
        assert_eq!(of(""), Ok(vec![]));
        let body = "{ .reg .b32 %r<2>;\n.loc 1 2 3\n$L1:\n@!%p1 bra.uni $L1;\nA : { add.s32 %r1, \
            %r1, 1; }\nld.v2.u32 {%r1, %r2}, [%rd1];\ncp.async.bulk.shared::cluster.global [a], \
            [b];\n}";
        assert_eq!(of(&format!(".entry f() {body}")), Ok(vec!["f".into()]));
        for wrong in ["nonsense", ".entry f() { frob.u32; }", ".entry f() {", ".entry f()"] {
            assert_eq!(of(wrong), Err(code::INVALID_PTX), "{wrong}");
        }
    }

    #[test]
    fn what_is_missing_is_missed_when_it_is_called() {
        let declared = ".extern .func elsewhere ();\n.extern .func (.param .b32 r) vprintf (a);\n";
        assert_eq!(of(declared), Ok(vec![]));
        let call = |name: &str| of(&format!("{declared}.entry f() {{ call.uni {name}, (); }}"));
        assert_eq!(call("elsewhere"), Err(code::INVALID_PTX));
        assert_eq!(call("vprintf"), Ok(vec!["f".into()]));
    }

    #[test]
    fn headers_are_for_this_driver_and_this_device() {
        for (header, expected) in [
            ("// x\n.version 8.8\n.target sm_90a, debug\n", Ok(vec![])),
            (".version 8.9\n.target sm_52\n", Err(code::UNSUPPORTED_PTX_VERSION)),
            (".version 7.8\n.target sm_100\n", Err(code::INVALID_PTX)),
            (".version 7.8\n.target compute_52\n", Err(code::INVALID_PTX)),
            (".version 7\n.target sm_52\n", Err(code::INVALID_PTX)),
            (".version 7.8\n", Err(code::INVALID_PTX)),
            (".target sm_52\n.version 7.8\n", Err(code::INVALID_IMAGE)),
            ("/* open", Err(code::INVALID_IMAGE)),
            ("", Err(code::INVALID_IMAGE)),
        ] {
            assert_eq!(kernels(header, 90), expected, "{header}");
        }
    }

    #[test]
    fn the_librarys_own_kernels_are_taken() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let mut seen = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                let text = std::fs::read_to_string(&path).unwrap();
                let expected = text.matches(".entry").count();
                assert_eq!(kernels(&text, 90).map(|found| found.len()), Ok(expected), "{path:?}");
                seen += 1;
            }
        }
        assert!(seen > 0);
    }
}
