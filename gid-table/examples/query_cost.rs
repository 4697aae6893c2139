//! What it costs to read the GID tables of a device: one call, or a file for each attribute.
//!
//! The RFC that proposed `ibv_query_gid_table` (Pandit, 2020) counts 2,304 files that a program
//! opens, reads and closes, where the entry that it looks for is on the fourth of four ports of 256
//! entries: GID, type and interface of each entry of three ports. This does both.
//!
//!     cargo run --release -p gid-table --example query_cost

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gid_table::table::WantedGid;
use gid_table::{Gid, GidEntry, GidTable, GidType, query_gid_table};

const PORTS: u32 = 4;
const ENTRIES: u32 = 256;
/// Ports read in vain before the one that has the entry.
const PORTS_READ: u32 = 3;
const ROUNDS: u32 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tables: Vec<GidTable> = (1..=PORTS).map(table).collect::<Result<_, _>>()?;
    let root = std::env::temp_dir().join(format!("urxe-query-cost-{}", std::process::id()));
    for table in &tables {
        write_files(&root, table)?;
    }
    let by_call = time(|| by_call(&tables))?;
    let by_files = time(|| by_files(&root))?;
    fs::remove_dir_all(&root)?;
    println!("{PORTS} ports of {ENTRIES} entries, the best of {ROUNDS} rounds");
    println!("one call of query_gid_table, {} entries: {:?}", by_call.0, by_call.1);
    println!("{} files opened, read and closed: {:?}", by_files.0, by_files.1);
    let ratio = by_files.1.as_secs_f64() / by_call.1.as_secs_f64();
    println!("the files take {ratio:.0} times as long");
    Ok(())
}

/// A full table.
fn table(port_num: u32) -> Result<GidTable, Box<dyn std::error::Error>> {
    let mut table = GidTable::new(port_num, ENTRIES);
    for index in 0..ENTRIES {
        // Fits: both are below 256.
        let gid = Gid::from_ip([10, 77, port_num as u8, index as u8].into());
        table.add(WantedGid { gid, gid_type: GidType::RoceV2, ifindex: port_num, owned: true })?;
    }
    Ok(table)
}

/// The files that Linux has of a port, in `/sys/class/infiniband/DEVICE`.
fn write_files(root: &Path, table: &GidTable) -> io::Result<()> {
    for (folder, _) in FOLDERS {
        fs::create_dir_all(folder_of(root, table.port_num(), folder))?;
    }
    for entry in table.entries() {
        for (folder, text) in FOLDERS {
            let name = entry.gid_index.to_string();
            fs::write(folder_of(root, table.port_num(), folder).join(name), text(&entry))?;
        }
    }
    Ok(())
}

/// The text of one attribute.
type Text = fn(&GidEntry) -> String;

const FOLDERS: [(&str, Text); 3] = [
    ("gids", |entry| format!("{}\n", entry.gid)),
    ("gid_attrs/types", |entry| format!("{}\n", entry.gid_type)),
    ("gid_attrs/ndevs", |entry| format!("eth{}\n", entry.ifindex)),
];

fn folder_of(root: &Path, port_num: u32, folder: &str) -> PathBuf {
    root.join("ports").join(port_num.to_string()).join(folder)
}

/// Reads all tables; says how many entries there were.
fn by_call(tables: &[GidTable]) -> io::Result<usize> {
    let filler = tables[0].query_gid_ex(0).map_err(io::Error::other)?;
    let mut out = vec![filler; (PORTS * ENTRIES) as usize];
    query_gid_table(tables, &mut out).map_err(io::Error::other)
}

/// Reads the files of three ports; says how many there were.
fn by_files(root: &Path) -> io::Result<usize> {
    let (mut files, mut text) = (0, String::new());
    for port_num in 1..=PORTS_READ {
        for index in 0..ENTRIES {
            for (folder, _) in FOLDERS {
                text.clear();
                let path = folder_of(root, port_num, folder).join(index.to_string());
                File::open(path)?.read_to_string(&mut text)?;
                files += 1;
            }
        }
    }
    Ok(files)
}

/// What it gives, and the shortest time that it took.
fn time(work: impl Fn() -> io::Result<usize>) -> io::Result<(usize, Duration)> {
    let (mut found, mut best) = (0, Duration::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        found = work()?;
        best = best.min(start.elapsed());
    }
    Ok((found, best))
}
