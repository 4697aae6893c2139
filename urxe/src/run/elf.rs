//! What the head of an ELF file says about how it is loaded (elf(5), ld.so(8)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::Endianness;
use object::elf::{self, DynamicTag, FileHeader32, FileHeader64, Machine};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// For which processor and word size a file was built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    /// 1: 32 bits, 2: 64 bits (`EI_CLASS`).
    class: u8,
    /// 1: little endian, 2: big endian (`EI_DATA`).
    data: u8,
    /// The processor (`e_machine`).
    machine: u16,
}

impl Target {
    /// Reads it from the first 20 bytes of a file; `None` when they are of no ELF file.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        let head: &[u8; 20] = head.first_chunk()?;
        if head[..4] != elf::ELFMAG {
            return None;
        }
        let [class, data] = [head[4], head[5]];
        let machine = [head[18], head[19]];
        let is_big = data == elf::ELFDATA2MSB.0;
        let machine =
            if is_big { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
        Some(Self { class, data, machine })
    }

    /// As [`Self::of`], of the file at this path.
    pub(super) fn of_file(path: &Path) -> io::Result<Option<Self>> {
        let mut head = [0; 20];
        let count = File::open(path)?.read_at(&mut head, 0)?;
        Ok(Self::of(&head[..count]))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match Machine(self.machine) {
            elf::EM_X86_64 => "x86-64",
            elf::EM_386 => "x86",
            elf::EM_AARCH64 => "ARM64",
            elf::EM_ARM => "ARM",
            elf::EM_RISCV => "RISC-V",
            elf::EM_PPC64 => "PowerPC64",
            elf::EM_S390 => "S/390",
            elf::EM_LOONGARCH => "LoongArch",
            Machine(number) => return write!(f, "the processor with ELF number {number}"),
        };
        let bits = if self.class == elf::ELFCLASS32.0 { 32 } else { 64 };
        write!(f, "{name}, {bits} bits")?;
        if self.data == elf::ELFDATA2MSB.0 { f.write_str(", big endian") } else { Ok(()) }
    }
}

/// How a program is loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Loading {
    /// The loader (`PT_INTERP`); a static program has none.
    pub(super) loader: Option<String>,
    /// Folders that the loader searches before `LD_LIBRARY_PATH` (`DT_RPATH` without `DT_RUNPATH`).
    pub(super) rpath: Vec<String>,
    /// Libraries that are wanted by name or path (`DT_NEEDED`).
    pub(super) needed: Vec<String>,
}

impl Loading {
    /// Reads it.
    pub(super) fn of_file(path: &Path) -> io::Result<Self> {
        let data = ReadCache::new(File::open(path)?);
        let class = object::FileKind::parse(&data).map_err(io::Error::other)?;
        let read = match class {
            object::FileKind::Elf32 => Self::read::<FileHeader32<Endianness>>(&data),
            object::FileKind::Elf64 => Self::read::<FileHeader64<Endianness>>(&data),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        read.map_err(io::Error::other)
    }

    fn read<Elf: FileHeader<Endian = Endianness>>(
        data: &ReadCache<File>,
    ) -> object::read::Result<Self> {
        let header = Elf::parse(data)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, data)?;
        let mut loading = Self::default();
        for segment in segments {
            if let Some(loader) = segment.interpreter(endian, data)? {
                loading.loader = Some(String::from_utf8_lossy(loader).into_owned());
            }
            if let Some(entries) = segment.dynamic(endian, data)? {
                let entries = entries.iter().map(|e| (e.d_tag(endian), e.d_val(endian).into()));
                let strings = |at, len| {
                    let found = |s: &Elf::ProgramHeader| s.data_range(endian, data, at, len);
                    segments.iter().find_map(|segment| found(segment).ok().flatten())
                };
                loading.read_dynamic(&entries.collect::<Vec<_>>(), strings);
            }
        }
        Ok(loading)
    }

    /// Reads the dynamic section; `strings` gives what is loaded at an address, of some length.
    fn read_dynamic<'data>(
        &mut self,
        entries: &[(DynamicTag, u64)],
        strings: impl Fn(u64, u64) -> Option<&'data [u8]>,
    ) {
        let values = |wanted| {
            let of_tag = entries.iter().filter(move |(tag, _)| *tag == wanted);
            of_tag.map(|&(_, value)| value)
        };
        let table = values(elf::DT_STRTAB).next().zip(values(elf::DT_STRSZ).next());
        let Some(strings) = table.and_then(|(at, len)| strings(at, len)) else { return };
        let texts = |wanted| values(wanted).filter_map(|offset| text_at(strings, offset));
        self.needed = texts(elf::DT_NEEDED).collect();
        if values(elf::DT_RUNPATH).next().is_none() {
            self.rpath = texts(elf::DT_RPATH).flat_map(|list| split(&list)).collect();
        }
    }
}

fn split(list: &str) -> Vec<String> {
    list.split(':').map(str::to_owned).collect()
}

/// The text at this offset of a string table.
fn text_at(strings: &[u8], offset: u64) -> Option<String> {
    let rest = strings.get(usize::try_from(offset).ok()?..)?;
    let text = rest.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_read_in_both_byte_orders() {
        let mut head = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xb7\0";
        assert_eq!(Target::of(&head).unwrap().to_string(), "ARM64, 64 bits");
        head[18..].copy_from_slice(&[22, 0]);
        assert_eq!(Target::of(&head).unwrap().to_string(), "S/390, 64 bits");
        head[4..6].copy_from_slice(&[1, 2]);
        head[18..].copy_from_slice(&[0, 40]);
        assert_eq!(Target::of(&head).unwrap().to_string(), "ARM, 32 bits, big endian");
        assert_eq!(Target::of(&head[..19]), None);
        assert_eq!(Target::of(b"#!/bin/sh\nexit 0 # and so on"), None);
    }

    #[test]
    fn this_test_is_loaded_by_a_loader() {
        let own = std::env::current_exe().unwrap();
        let loading = Loading::of_file(&own).unwrap();
        assert!(loading.loader.unwrap().contains("ld-"));
        assert!(loading.needed.iter().any(|name| name.starts_with("libc.so")));
        assert_eq!(loading.rpath, Vec::<String>::new());
        assert!(Loading::of_file(Path::new("/proc/self/status")).is_err());
    }
}
