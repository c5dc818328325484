//! Every function of tcuda.h is called by the targets.

use tcuda_fuzz::abi::FUNCTIONS;

#[test]
fn every_function_of_the_header_is_called() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../include/tcuda.h");
    let header = std::fs::read_to_string(header).unwrap();
    let mut declared = Vec::new();
    let mut is_declaration = false;
    for line in header.lines() {
        // A declaration is the line after TCUDA_API, and may go on in the next.
        if is_declaration {
            let name = line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap();
            declared.push(name);
        }
        is_declaration = line.ends_with("TCUDA_API") && !line.starts_with('#');
    }
    assert!(declared.len() > 70 && declared.iter().all(|name| name.starts_with("tcuda_")));
    let called: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
    for name in &declared {
        assert!(called.contains(name), "{name} is not in FUNCTIONS of fuzz/src/abi/mod.rs");
    }
    for name in &called {
        assert!(declared.contains(name), "{name} is not in the header");
        assert_eq!(called.iter().filter(|known| known == &name).count(), 1, "{name} twice");
    }
    // The name is not only in the table.
    let mut sources = String::new();
    let files = "library device stream event copy memory statistics host snapshot limits mem_pool \
                 history pluggable torch tensor generator random graph callable comm communicator \
                 ipc nvtx monitor jit sanitizer green_context managed native_stream \
                 file";
    for file in files.split_whitespace() {
        let path = format!("{}/src/abi/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        sources += &std::fs::read_to_string(path).unwrap();
    }
    for name in &called {
        let used =
            [format!("{name}("), format!(" {name})")].iter().any(|use_| sources.contains(use_));
        assert!(used, "{name} is never called");
    }
}
