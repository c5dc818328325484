//! What the linker says of inputs that do not fit together.

use crate::bench::{Bench, cu};
use crate::other_calls::{Calls, other};
use crate::{Row, rows};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = rows!["links":
    undefined_references, multiple_definitions, an_invalid_input, no_input, declarations,
    a_call_of_nothing, a_declaration_before_its_definition,
];

const HEADER: &str = ".version 7.8\n.target sm_52\n.address_size 64\n";

/// A kernel that calls a function of another input.
fn caller(kernel: &str, function: &str) -> String {
    format!(
        ".extern .func (.param .b32 result) {function} ();\n.visible .entry {kernel}()\n{{\n\
         .reg .b32 %result;\n{{ .param .b32 result; call.uni (result), {function}, ();\n\
         ld.param.b32 %result, [result]; }}\nret;\n}}\n"
    )
}

fn definition(function: &str) -> String {
    format!(
        ".visible .func (.param .b32 result) {function} () {{ st.param.b32 [result], 1; ret; }}\n"
    )
}

/// The options for a log of errors in a buffer.
fn options(log: &mut [u8]) -> ([CUjit_option; 2], [*mut c_void; 2]) {
    let room = ptr::without_provenance_mut(log.len());
    let names =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    (names, [log.as_mut_ptr().cast(), room])
}

fn text_of(log: &[u8]) -> &str {
    CStr::from_bytes_until_nul(log).unwrap().to_str().unwrap()
}

/// Links inputs of these texts and statuses.
fn link(bench: &Bench, inputs: &[(String, i32)], status: i32, expected: &str) {
    let mut log = vec![0u8; 1000];
    let (mut names, mut values) = options(&mut log);
    let mut state = null_mut();
    cu!(bench, cuLinkCreate(2, names.as_mut_ptr(), values.as_mut_ptr(), &mut state) => 0);
    for (index, (text, status)) in inputs.iter().enumerate() {
        let text = CString::new(format!("{HEADER}{text}")).unwrap();
        let name = CString::new(format!("input{index}")).unwrap();
        let bytes = text.to_bytes_with_nul();
        cu!(bench, cuLinkAddData(
            state, CUjitInputType::CU_JIT_INPUT_PTX, bytes.as_ptr().cast_mut().cast(), bytes.len(),
            name.as_ptr(), 0, null_mut(), null_mut()) => *status);
    }
    let (mut image, mut bytes) = (null_mut(), 0);
    if cu!(bench, cuLinkComplete(state, &mut image, &mut bytes) => status) == 0 {
        let mut module = null_mut();
        cu!(bench, cuModuleLoadData(&mut module, image) => 0);
    }
    cu!(bench, cuLinkDestroy(state) => 0);
    bench.is("log", text_of(&log), expected);
}

fn undefined_references(bench: &Bench) {
    bench.start();
    let (first, second) = (caller("A", "Z"), caller("B", "Y"));
    let unknown_z = "error   : Undefined reference to 'Z' in 'input0'";
    link(bench, &[(first.clone(), 0)], 300, unknown_z);
    let both = format!("{unknown_z}\nerror   : Undefined reference to 'Y' in 'input1'");
    link(bench, &[(first.clone(), 0), (second, 0)], 300, &both);
    link(bench, &[(first, 0), (definition("Z"), 0)], 0, "");
    let variable = ".extern .global .u32 g;\n.visible .entry A() { .reg .u32 %v; \
        ld.global.u32 %v, [g]; st.global.u32 [g], %v; ret; }\n";
    let unknown_g = "error   : Undefined reference to 'g' in 'input0'";
    link(bench, &[(variable.into(), 0)], 300, unknown_g);
}

fn multiple_definitions(bench: &Bench) {
    bench.start();
    let (kernel, own) = (caller("A", "Z"), definition("Z"));
    let twice_z = "error   : Multiple definition of 'Z' in 'input2', first defined in 'input1'";
    link(bench, &[(kernel.clone(), 0), (own.clone(), 0), (own.clone(), 300)], 300, twice_z);
    // The inputs after it are refused too.
    let twice_a = "error   : Multiple definition of 'A' in 'input1', first defined in 'input0'";
    link(bench, &[(kernel.clone(), 0), (kernel, 300), (own, 300)], 300, twice_a);
}

/// It is left out.
fn an_invalid_input(bench: &Bench) {
    bench.start();
    let log = "ptxas application ptx input, line 4; error   : \
        Not a name of any known instruction: 'frob'\n\
        ptxas fatal   : Ptx assembly aborted due to errors";
    link(bench, &[(".visible .entry A() { frob; }\n".into(), 218)], 0, log);
}

fn no_input(bench: &Bench) {
    bench.start();
    link(bench, &[], 0, "");
}

/// A function that is declared and not called needs no definition, a variable does.
fn declarations(bench: &Bench) {
    bench.start();
    let text = ".extern .func (.param .b32 result) Z ();\n\
        .extern .shared .align 16 .b8 dynamic[];\n\
        .visible .entry A() { st.shared.u32 [dynamic], 1; ret; }\n";
    link(bench, &[(text.into(), 0)], 0, "");
    let text = format!(".extern .global .u32 g;\n{text}");
    let log = "error   : Undefined reference to 'g' in 'input0'";
    link(bench, &[(text, 0)], 300, log);
}

fn a_call_of_nothing(bench: &Bench) {
    bench.start();
    let mut log = vec![0u8; 1000];
    let (mut names, mut values) = options(&mut log);
    let text = CString::new(format!("{HEADER}{}", caller("A", "Z"))).unwrap();
    let mut module = null_mut();
    other!(bench, Calls::find(bench), cuModuleLoadDataEx(
        &mut module, text.as_ptr().cast(), 2, names.as_mut_ptr(), values.as_mut_ptr()) => 218);
    bench.is("log", text_of(&log), "ptxas fatal   : Unresolved extern function 'Z'");
}

fn a_declaration_before_its_definition(bench: &Bench) {
    bench.start();
    let text = ".func (.param .b32 result) inner ();\n.visible .entry A()\n{ .reg .b32 %result;\n\
        { .param .b32 result; call.uni (result), inner, (); ld.param.b32 %result, [result]; }\n\
        ret; }\n.func (.param .b32 result) inner () { st.param.b32 [result], 1; ret; }\n";
    // Each input has its own.
    let other = text.replace("entry A", "entry B");
    link(bench, &[(text.into(), 0), (other, 0)], 0, "");
}
