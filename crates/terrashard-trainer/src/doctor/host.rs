//! The host: processor, memory, limits, shared memory, ports, disk.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::Check;

/// Locked memory below which offloading to host memory on GPUs falls back to slow copies.
const LOCKED: u64 = 1 << 30;

/// Open files that some scenes, a checkpoint's files and the links of ranks need.
const OPEN_FILES: u64 = 1024;

/// Shared memory below which processes of one host cannot exchange buckets through it.
const SHARED: u64 = 1 << 30;

/// Space below which a disk holds few checkpoints.
const FREE: u64 = 10 << 30;

/// Bytes a second below which checkpoints take long.
const SLOW_DISK: f64 = 100e6;

/// Bytes that are written to measure that.
const WRITTEN: usize = 64 << 20;

/// The port at which ranks meet where none is given.
const PORT: u16 = 29_500;

pub(super) fn checks(folder: &Path) -> Vec<Check> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let offered = std::thread::available_parallelism().map_or(1, usize::from);
    let mut checks = vec![processor(&read("/proc/cpuinfo"), offered, &features())];
    checks.extend(memory(
        &read("/proc/meminfo"),
        &[
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ]
        .map(read)
        .join(""),
    ));
    let limits = read("/proc/self/limits");
    checks.extend(limit(&limits, "Max locked memory").map(locked));
    checks.extend(limit(&limits, "Max open files").map(open_files));
    checks.extend(space(Path::new("/dev/shm")).map(shared));
    checks.push(port());
    checks.extend(space(folder).map(|free| disk_space(free, folder)));
    checks.push(disk_speed(folder));
    checks
}

/// Vector instructions that kernels on the processor use.
fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("fma", std::is_x86_feature_detected!("fma")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(target_arch = "aarch64")]
    let found = [("neon", std::arch::is_aarch64_feature_detected!("neon"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: [(&str, bool); 0] = [];
    found
        .into_iter()
        .filter_map(|(name, there)| there.then_some(name))
        .collect()
}

fn processor(cpuinfo: &str, offered: usize, features: &[&str]) -> Check {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let name = value("model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let threads = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count()
        .max(offered);
    let instructions = match features {
        [] => "no vector instructions that are used".into(),
        some => some.join(", "),
    };
    let found = format!("{name}, {offered} of {threads} threads, {instructions}");
    let vectors = features.contains(&"avx2") || features.contains(&"neon");
    match vectors {
        true if offered < threads => Check::warning(
            "processor",
            found,
            "this process may use a part of the threads only: see `taskset`, the container's limits or SLURM's `--cpus-per-task`",
        ),
        true => Check::good("processor", found),
        false => Check::warning(
            "processor",
            found,
            "without AVX2 or NEON kernels on the processor are several times slower: use a newer processor or a GPU",
        ),
    }
}

/// Kibibytes of a line of `/proc/meminfo`, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

fn memory(text: &str, group: &str) -> Option<Check> {
    let (total, available) = (meminfo(text, "MemTotal:")?, meminfo(text, "MemAvailable:")?);
    let limit = group
        .trim()
        .parse::<u64>()
        .ok()
        .filter(|limit| *limit < total);
    let limited = limit.map_or_else(String::new, |limit| {
        format!(", of which this container may use {}", gibibytes(limit))
    });
    let found = format!(
        "{} available of {}{limited}",
        gibibytes(available),
        gibibytes(total)
    );
    Some(match available < total / 10 {
        true => Check::warning(
            "memory",
            found,
            "nearly all of it is in use: end other programs, or training may be ended by the system",
        ),
        false => Check::good("memory", found),
    })
}

/// The soft limit of a line of `/proc/self/limits`; `u64::MAX` for none.
fn limit(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn locked(limit: u64) -> Check {
    let subject = "locked memory";
    match limit {
        u64::MAX => Check::good(subject, "without limit"),
        enough if enough >= LOCKED => Check::good(subject, gibibytes(enough)),
        little => Check::warning(
            subject,
            format!("{} (ulimit -l)", gibibytes(little)),
            "offloading on GPUs may be slow: raise it with `ulimit -l unlimited`, `memlock` in /etc/security/limits.conf, or \
             `--ulimit memlock=-1` of a container",
        ),
    }
}

fn open_files(limit: u64) -> Check {
    let subject = "open files";
    match limit {
        u64::MAX => Check::good(subject, "without limit"),
        enough if enough >= OPEN_FILES => Check::good(subject, enough.to_string()),
        few => Check::warning(
            subject,
            format!("{few} (ulimit -n)"),
            format!("raise it with `ulimit -n {OPEN_FILES}`"),
        ),
    }
}

/// Bytes that are free where a folder is.
pub(crate) fn space(folder: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    free_of(&String::from_utf8_lossy(&output.stdout))
}

/// What is available by the second line of `df -Pk`, in bytes.
fn free_of(text: &str) -> Option<u64> {
    let kibibytes: u64 = text
        .lines()
        .nth(1)?
        .split_whitespace()
        .nth(3)?
        .parse()
        .ok()?;
    Some(kibibytes << 10)
}

fn shared(free: u64) -> Check {
    let subject = "shared memory";
    let found = format!("{} free in /dev/shm", gibibytes(free));
    match free >= SHARED {
        true => Check::good(subject, found),
        false => Check::warning(
            subject,
            found,
            "NCCL exchanges bytes of one host through it where GPUs have no link: give a container `--shm-size=8g` or `--ipc=host`",
        ),
    }
}

fn port() -> Check {
    let subject = "ports";
    match (
        TcpListener::bind(("127.0.0.1", 0)),
        TcpListener::bind(("0.0.0.0", PORT)),
    ) {
        (Err(error), _) => Check::problem(
            subject,
            format!("none can be opened on 127.0.0.1: {error}"),
            "ranks that are processes cannot meet: allow this program to listen on the loopback interface",
        ),
        (Ok(_), Err(error)) => Check::warning(
            subject,
            format!("{PORT}, where ranks meet unless told otherwise, cannot be opened: {error}"),
            "end the other run, or set MASTER_PORT to another port; `terrashard launch` takes a free one by itself",
        ),
        (Ok(_), Ok(_)) => Check::good(subject, format!("{PORT} is free")),
    }
}

fn disk_space(free: u64, folder: &Path) -> Check {
    let subject = "disk space";
    let found = format!("{} free in {}", gibibytes(free), folder.display());
    match free >= FREE {
        true => Check::good(subject, found),
        false => Check::warning(
            subject,
            found,
            "checkpoints may not fit: choose another folder with `--run`, or lower `checkpoint.keep_last`",
        ),
    }
}

fn disk_speed(folder: &Path) -> Check {
    let subject = "disk speed";
    let path = folder.join(format!(".terrashard-doctor-{}", std::process::id()));
    let began = Instant::now();
    let written = write(&path);
    let seconds = began.elapsed().as_secs_f64();
    // Where it was not made, there is nothing to remove.
    let _ = fs::remove_file(&path);
    match written {
        Err(error) => Check::problem(
            subject,
            format!("{} cannot be written: {error}", folder.display()),
            "choose a folder that can be written, with `--folder` here and `--run` of `fit`",
        ),
        Ok(()) => {
            let speed = WRITTEN as f64 / seconds.max(1e-9);
            let found = format!("{:.0} MB/s written and synchronised", speed / 1e6);
            match speed >= SLOW_DISK {
                true => Check::good(subject, found),
                false => Check::warning(
                    subject,
                    found,
                    "checkpoints take long: choose a faster disk with `--run`, or raise `checkpoint.every`",
                ),
            }
        }
    }
}

fn write(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    // Not all alike, which some disks would not store.
    let block: Vec<u8> = (0..1u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for _ in 0..WRITTEN / block.len() {
        file.write_all(&block)?;
    }
    file.sync_all()
}

pub(super) fn gibibytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    match mebibytes >= 1024.0 {
        true => format!("{:.1} GiB", mebibytes / 1024.0),
        false => format!("{mebibytes:.1} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn limits_are_read_as_linux_tells_them() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max open files            512                  1048576              files
Max locked memory         8388608              8388608              bytes
Max address space         unlimited            unlimited            bytes
";
        assert_eq!(limit(text, "Max open files"), Some(512));
        assert_eq!(limit(text, "Max address space"), Some(u64::MAX));
        assert_eq!(limit(text, "Max wishes"), None);
        let check = open_files(512);
        assert_eq!(check.verdict, Verdict::Warning);
        let check = locked(8_388_608);
        assert_eq!(check.found, "8.0 MiB (ulimit -l)");
        assert!(
            check
                .remedy
                .is_some_and(|remedy| remedy.contains("memlock"))
        );
        assert_eq!(locked(u64::MAX).verdict, Verdict::Good);
    }

    #[test]
    fn memory_is_that_of_the_container() {
        let text = "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n";
        let found = |group: &str| memory(text, group).expect("both are told").found;
        assert_eq!(found("max\n"), "512.0 MiB available of 1.0 GiB");
        let limited = found("268435456\n");
        assert!(
            limited.ends_with("this container may use 256.0 MiB"),
            "{limited}"
        );
        assert_eq!(memory("", ""), None);
    }

    #[test]
    fn a_processor_without_vectors_or_with_few_threads_is_told() {
        let text = "processor\t: 0\nmodel name\t: Chip 7\nprocessor\t: 1\nmodel name\t: Chip 7\n";
        let check = processor(text, 2, &["avx2", "fma"]);
        assert_eq!(check.found, "Chip 7, 2 of 2 threads, avx2, fma");
        assert_eq!(check.verdict, Verdict::Good);
        assert_eq!(processor(text, 1, &["avx2"]).verdict, Verdict::Warning);
        assert_eq!(processor(text, 2, &[]).verdict, Verdict::Warning);
    }

    #[test]
    fn free_space_is_the_fourth_column() {
        let text =
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 100 60 40 60% /\n";
        assert_eq!(free_of(text), Some(40 << 10));
        assert_eq!(free_of("df: no such file\n"), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_problem() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_ne!(disk_speed(folder.path()).verdict, Verdict::Problem);
        let left = fs::read_dir(folder.path()).expect("it is there").count();
        assert_eq!(left, 0, "nothing is left");
        let check = disk_speed(&folder.path().join("missing"));
        assert_eq!(check.verdict, Verdict::Problem);
    }
}
