//! `include/tcuda_cdef.h`: the declarations of `tcuda.h` alone, without comments and preprocessor
//! lines, as cffi's and LuaJIT's `cdef` read them. Constants are enumerators.

use crate::layout::{self, Item, Row};

pub fn cdef(front: &str, sections: &[(&str, Vec<Item>)]) -> String {
    let versions = front.lines().filter_map(|line| {
        let code = line.strip_prefix("#define TCUDA_VERSION")?;
        let (name, value) = code.split_once(' ')?;
        Some(format!("TCUDA_VERSION{name} = {}", value.split(' ').next()?))
    });
    let natives = front.lines().filter(|line| line.starts_with("struct "));
    let natives = natives.filter_map(|line| Some(format!("{};\n", line.split_once(';')?.0)));
    let mut parts = vec![enumeration(versions), natives.collect()];
    parts.extend(sections.iter().flat_map(|(_, items)| items).map(render));
    parts.concat()
}

fn enumeration(values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.map(|value| format!("    {value}")).collect();
    match values.is_empty() {
        true => String::new(),
        false => format!("enum {{\n{}\n}};\n", values.join(",\n")),
    }
}

fn render(item: &Item) -> String {
    let line = |row: &Row| format!("{}\n", row.code);
    match item {
        Item::Table { kind, rows, .. } => {
            let values = rows.iter().filter_map(|row| {
                let (name, value) = row.code.strip_prefix("#define ")?.split_once(' ')?;
                Some(format!("{name} = {}", value.trim_matches(['(', ')'])))
            });
            let types = rows.iter().filter(|row| row.code.starts_with("typedef ")).map(line);
            kind.iter().map(line).chain(types).collect::<String>() + &enumeration(values)
        }
        Item::Block { head, members, tail } => {
            let members: String = members.iter().map(|row| format!("    {}\n", row.code)).collect();
            format!("{}\n{members}{tail}\n", head.code)
        }
        Item::Function(row) => layout::wrapped(layout::prototype(&row.code)),
    }
}
