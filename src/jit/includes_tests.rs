use super::*;
use std::ffi::CString;
use std::path::PathBuf;

fn lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let text = unspliced(text.as_bytes().to_vec());
    for_each_directive(&text, true, &mut |word, rest| {
        let rest = rest.trim_ascii();
        found.push(String::from_utf8([word, b" ", rest].concat()).unwrap());
        Ok(())
    })
    .unwrap();
    found
}

#[test]
fn directives_are_found_among_comments_and_literals() {
    let text = "/* a */ # /* b */ include \"a//b.h\" // c\n\
        const char *s = \"/*\"; // #include <no.h>\n  #include <b.h>\n\
        /* #include <no.h>\n #include <no.h> */ int x = 1'000; %:include \"c.h\"\n\
        R\"(\n#include <no.h>\n)\" /*\n*/ #define X \"d.h\"\n#inc\\\nlude \\\r\n <e.h>\n\
        #error don't\n#include <f.h>";
    let found = lines(text);
    assert_eq!(found[0], "include \"a//b.h\" // c");
    assert_eq!(found[1], "include <b.h>");
    // The directive starts its line, except for comments.
    assert_eq!(found[2], "define X \"d.h\"");
    assert_eq!(found[3..], ["include <e.h>", "error don't", "include <f.h>"]);
    assert!(is_clear(b"/* #include <a.h>\n*/ # /**/ include /* b */ \"b.h\"\n#define X y"));
    assert!(!is_clear(b"/*\n#include what you use\n*/"));
    assert_eq!(named(b" \"a b.h\" x"), Named::File(b"a b.h"));
    assert_eq!(named(b"<a/b.h>"), Named::File(b"a/b.h"));
    assert_eq!(named(b" NAME // x"), Named::Macro(b"NAME"));
    for unknown in [&b""[..], b"NAME(x)", b"\"open", b"<open\n>", b"+"] {
        assert_eq!(named(unknown), Named::Unknown, "{unknown:?}");
    }
}

/// A temporary directory with files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tcuda-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("first")).unwrap();
        std::fs::create_dir_all(path.join("second/deep")).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// All contents in the key of a source; `None`: no key.
fn all(folder: &Folder, source: &str, more: &[&str]) -> Option<Vec<Option<Vec<u8>>>> {
    let base = folder.0.to_str().unwrap();
    let mut flags = vec![CString::new(format!("-I{base}/first")).unwrap()];
    flags.extend([CString::from(c"-I"), CString::new(format!("{base}/second")).unwrap()]);
    flags.extend(more.iter().map(|flag| CString::new(flag.replace("@", base)).unwrap()));
    let flags: Vec<&CStr> = flags.iter().map(|flag| flag.as_c_str()).collect();
    let source = CString::new(source).unwrap();
    let program = Program {
        source: &source,
        title: c"source",
        entry: c"f",
        is_plain: false,
        flags: &flags,
        capability: 90,
        linkage: crate::driver::compiler::Linkage::Whole,
        images: &[],
    };
    let mut found = Vec::new();
    let is_known = for_each(&program, &mut |file| found.push(file.map(<[u8]>::to_vec))).unwrap();
    is_known.then_some(found)
}

#[test]
fn every_file_that_may_be_included_is_in_the_key() {
    let folder = Folder::new("includes");
    let has = |source: &str, flags: &[&str], text: &str| {
        let all = all(&folder, source, flags);
        all.unwrap().iter().flatten().any(|file| file.trim_ascii_end() == text.as_bytes())
    };
    folder.write("second/a.h", "#if 0\n#include \"deep/b.h\"\n#endif\n");
    folder.write("second/deep/b.h", "# include \"c.h\"");
    folder.write("second/deep/c.h", "int c;");
    for source in
        ["#include \"a.h\"\n", "#include <a.h>\n", "#if __has_include ( <a.h> )\n#endif\n"]
    {
        assert!(has(source, &[], "int c;"), "{source}");
    }
    // A file of the same name that is found first, and is then removed.
    let before = all(&folder, "#include \"a.h\"\n", &[]);
    folder.write("first/a.h", "");
    assert_ne!(all(&folder, "#include \"a.h\"\n", &[]), before);
    std::fs::remove_file(folder.0.join("first/a.h")).unwrap();
    assert_eq!(all(&folder, "#include \"a.h\"\n", &[]), before);
    // The key depends on which of two names exists.
    let either = "#if __has_include(<x.h>)\n#elif __has_include(<y.h>)\n#endif\n";
    folder.write("first/x.h", "same");
    let x = all(&folder, either, &[]);
    std::fs::rename(folder.0.join("first/x.h"), folder.0.join("first/y.h")).unwrap();
    assert_ne!(all(&folder, either, &[]), x);
    // By a macro, by options, by an absolute path, and a file that includes itself.
    assert!(has("#define H <deep/c.h>\n#include H\n", &[], "int c;"));
    assert!(has("#include H\n", &["-DH=\"deep/c.h\""], "int c;"));
    assert!(has("#include H\n", &["--define-macro", "H=<deep/c.h>"], "int c;"));
    folder.write("first/config.h", "#define H \"deep/c.h\"\n#include \"config.h\"");
    assert!(has("#include <config.h>\n#include H\n", &[], "int c;"));
    for flag in ["-include=@/second/deep/b.h", "--pre-include=@/second/deep/b.h"] {
        assert!(has("", &[flag], "int c;"), "{flag}");
    }
    assert!(has("", &["-include", "@/second/deep/b.h"], "int c;"));
    assert!(has("#include <c.h>\n", &["--include-path=@/second/deep"], "int c;"));
    let whole = format!("#include \"{}/second/deep/c.h\"\n", folder.0.display());
    assert!(has(&whole, &[], "int c;"));
    // What cannot be determined has no key. A source without includes needs no search.
    for source in
        ["#include NAME\n", "#define F(x) <x>\n#include F(a.h)\n", "#define H G\n#include H"]
    {
        assert_eq!(all(&folder, source, &[]), None, "{source}");
    }
    assert_eq!(all(&folder, "int x;", &["--use-pch=x"]), None);
    assert_eq!(all(&folder, "int x; // in \\ e", &[]), Some(vec![]));
}
