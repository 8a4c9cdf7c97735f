//! How much memory the host has for what is offloaded: what the system says is available, and what the control groups that the
//! process is in leave of it, as those of containers do.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Refuses to start where the ranks of one host need more host memory together than it has.
///
/// `ranks`: for each rank a number that identifies its host, the bytes that it needs and those that its host has.
///
/// # Errors
/// [`Error::HostMemory`].
pub(crate) fn check_host_memory(ranks: &[(u64, u64, u64)]) -> Result<()> {
    for &(host, _, available) in ranks {
        let needed = ranks
            .iter()
            .filter(|other| other.0 == host)
            .map(|other| other.1)
            .sum();
        if needed > available {
            return Err(Error::HostMemory { needed, available });
        }
    }
    Ok(())
}

/// Bytes of host memory that can be had without swapping; `None` where the system does not say.
pub(crate) fn available_host_memory() -> Option<u64> {
    available(Path::new("/"))
}

/// The same of a system whose files lie under `root`.
fn available(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().filter_map(|line| left_by(root, line)).min();
    Some(left.unwrap_or(u64::MAX).min(kib * 1024))
}

/// What is left of a control group's memory and of those around it, by its line in `/proc/self/cgroup`: `0::/path` is
/// [version 2](https://docs.kernel.org/admin-guide/cgroup-v2.html), `9:memory:/path`
/// [version 1](https://docs.kernel.org/admin-guide/cgroup-v1/memory.html). None where nothing limits it.
fn left_by(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, limit, usage, reclaimable) = match controllers {
        "" => (
            "sys/fs/cgroup",
            "memory.max",
            "memory.current",
            "inactive_file",
        ),
        listed if listed.split(',').any(|each| each == "memory") => (
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
        _ => return None,
    };
    let left = |group: PathBuf| {
        let number = |name: &str| {
            fs::read_to_string(group.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        // "max" is no number.
        let (limit, used): (u64, u64) = (number(limit)?, number(usage)?);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached: u64 = stat
            .lines()
            .find_map(|line| {
                line.strip_prefix(reclaimable)?
                    .strip_prefix(' ')?
                    .parse()
                    .ok()
            })
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    };
    // In a container the path may be that outside of it: then the mount's root is its own group.
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    groups
        .filter_map(|group| left(root.join(mount).join(group)))
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n";

    /// What is available with these files.
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let root = std::env::temp_dir().join(format!(
            "terrashard-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = available(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_host_without_limits_has_what_is_available() {
        check(&[("proc/meminfo", MEMINFO)], Some(4 << 30));
        check(&[("proc/meminfo", "MemTotal: 1 kB\n")], None);
        let open = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "1000\n"),
        ];
        check(&open, Some(4 << 30));
    }

    #[test]
    fn the_tightest_group_of_version_2_decides() {
        let limited = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/pod/worker\n"),
            ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.current", "805306368\n"),
            (
                "sys/fs/cgroup/pod/memory.stat",
                "anon 536870912\ninactive_file 268435456\n",
            ),
            ("sys/fs/cgroup/pod/worker/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/worker/memory.current", "805306368\n"),
        ];
        // One gibibyte, of which 768 MiB are in use and 256 MiB of those can be had back.
        check(&limited, Some(512 << 20));
    }

    #[test]
    fn a_container_of_version_1_sees_its_group_at_the_root() {
        let limited = [
            ("proc/meminfo", MEMINFO),
            (
                "proc/self/cgroup",
                "12:cpu,cpuacct:/docker/abc\n9:memory:/docker/abc\n0::/\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "inactive_file 7\ntotal_inactive_file 536870912\n",
            ),
        ];
        check(&limited, Some(1 << 30));
    }
}
