//! The structs of src/types are those of the C headers: sizes, and offset, name and size of every
//! field, as a C compiler tells them (tests/data/layout.txt). That the compiled structs are what the
//! text says is checked when they are compiled.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::source;

#[derive(PartialEq, Eq, Debug)]
struct Field {
    offset: usize,
    size: usize,
    name: String,
}

#[derive(Debug)]
struct Layout {
    size: usize,
    fields: Vec<Field>,
}

/// The structs of layout.txt, without what is within other structs of theirs.
fn in_c() -> BTreeMap<String, Layout> {
    let text = fs::read_to_string(source("tests/data/layout.txt")).unwrap();
    let (_, structs) = text.split_once("## Structs").unwrap();
    let (structs, _) = structs.split_once("## Enums").unwrap();
    let mut layouts = BTreeMap::new();
    for block in structs.split("\n\n") {
        let mut lines = block.trim().lines();
        let Some(head) = lines.next() else { continue };
        let words: Vec<&str> = head.split_whitespace().collect();
        let &[_, name, "size", size, "align", _] = words.as_slice() else {
            panic!("no struct: {head}");
        };
        let fields = lines.filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = words[2];
            // The length of a last field of no length.
            let size = words[1].parse().unwrap_or(0);
            let offset = words[0].parse().unwrap();
            (!name.contains('.')).then(|| Field { offset, size, name: name.to_owned() })
        });
        let layout = Layout { size: size.parse().unwrap(), fields: fields.collect() };
        layouts.insert(name.to_owned(), layout);
    }
    layouts
}

/// A struct of src/types: its name, its size, and of each field offset, name and type.
type Struct = (String, usize, Vec<(usize, String, String)>);

/// The structs of src/types that are made by `abi_struct!`.
fn in_rust() -> Vec<Struct> {
    let mut structs = Vec::new();
    for file in fs::read_dir(source("src/types")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for block in text.split("abi_struct! {").skip(1) {
            let Some((_, block)) = block.split_once("    struct ") else { continue };
            let (head, rest) = block.split_once(") {").unwrap();
            let (name, size) = head.split_once('(').unwrap();
            let (body, _) = rest.split_once("\n    }").unwrap();
            let fields = body.lines().filter_map(|line| {
                let (offset, rest) = line.trim().split_once(' ')?;
                let (field, ty) = rest.split_once(": ")?;
                let field = field.trim_start_matches("r#").to_owned();
                Some((offset.parse().ok()?, field, ty.trim_end_matches(',').to_owned()))
            });
            structs.push((name.to_owned(), size.parse().unwrap(), fields.collect()));
        }
    }
    structs
}

/// The size of a type of a field, where its name tells it.
fn size_of(ty: &str, c: &BTreeMap<String, Layout>) -> Option<usize> {
    if let Some((of, count)) = ty.strip_prefix('[').and_then(|array| array.split_once("; ")) {
        return Some(size_of(of, c)? * count.trim_end_matches(']').parse::<usize>().ok()?);
    }
    Some(match ty {
        "u8" | "c_char" => 1,
        "u16" => 2,
        "u32" | "c_int" | "libc::socklen_t" => 4,
        "u64" | "usize" => 8,
        "ibv_gid" => 16,
        _ if ty.starts_with("Option<") || ty.starts_with('*') => 8,
        _ => c.get(ty)?.size,
    })
}

#[test]
fn structs_are_those_of_the_headers() {
    let (c, rust) = (in_c(), in_rust());
    assert!(rust.len() > 60, "only {} structs found", rust.len());
    for (name, size, fields) in &rust {
        let layout = c.get(name).unwrap_or_else(|| panic!("{name} is in no header"));
        assert_eq!(layout.size, *size, "{name}");
        for (offset, field, ty) in fields {
            let same = layout.fields.iter().find(|c| c.name == *field);
            let same = same.unwrap_or_else(|| panic!("{name} has no {field}"));
            assert_eq!(same.offset, *offset, "{name}.{field}");
            if let Some(size) = size_of(ty, &c) {
                assert_eq!(same.size, size, "{name}.{field}: {ty}");
            }
        }
        for missing in &layout.fields {
            let found = fields.iter().any(|(offset, ..)| *offset == missing.offset);
            assert!(found, "{name}.{} at {} is missing", missing.name, missing.offset);
        }
    }
}

/// What is `repr(C)` in src/types is made by `abi_struct!`, or one of a few members of unions.
#[test]
fn no_struct_escapes_the_check() {
    let mut others = Vec::new();
    for file in fs::read_dir(source("src/types")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for item in text.split("#[repr(C").skip(1) {
            let line = item.lines().find(|line| line.starts_with("pub(crate) "));
            // The macro itself, in mod.rs.
            let line = line.filter(|line| !line.contains(" use "));
            others.extend(line.map(|line| line.trim_end_matches(" {").to_owned()));
        }
    }
    others.sort();
    let expected = [
        "pub(crate) struct ibv_gid",
        "pub(crate) struct ibv_odp_transport_caps",
        "pub(crate) struct ibv_send_wr_atomic",
        "pub(crate) struct ibv_send_wr_bind_mw",
        "pub(crate) struct ibv_send_wr_rdma",
        "pub(crate) struct ibv_send_wr_tso",
        "pub(crate) struct ibv_send_wr_ud",
        "pub(crate) union ibv_async_element",
        "pub(crate) union ibv_send_wr_qp_type",
        "pub(crate) union ibv_send_wr_tail",
        "pub(crate) union ibv_send_wr_target",
        "pub(crate) union rdma_cm_event_param",
    ];
    assert_eq!(others, expected);
}
