//! GPUs, their driver and links, LibTorch and NCCL.

use std::process::Command;

use super::Check;
use super::host::gibibytes;
use crate::config::Device;

/// Memory of a GPU that others may use before it is worth a word.
const IN_USE: u64 = 1 << 30;

pub(super) fn checks(device: Device) -> Vec<Check> {
    let query = "index,name,memory.total,memory.used,driver_version";
    let gpus = ask(&[
        &format!("--query-gpu={query}"),
        "--format=csv,noheader,nounits",
    ]);
    let gpus = gpus.map(|text| gpus_of(&text)).unwrap_or_default();
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let mut checks = devices(&gpus, visible.as_deref(), device);
    if gpus.len() > 1 {
        checks.extend(ask(&["topo", "-m"]).map(|text| links(&text, gpus.len())));
    }
    checks.extend(libraries::checks(gpus.len(), device));
    checks
}

/// What the driver's program says; none where there is none.
fn ask(arguments: &[&str]) -> Option<String> {
    let output = Command::new("nvidia-smi").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Gpu {
    index: String,
    name: String,
    total: u64,
    used: u64,
    driver: String,
}

/// One for each line with as many fields as were asked for, memory in MiB.
fn gpus_of(text: &str) -> Vec<Gpu> {
    let gpu = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, name, total, used, driver] = fields[..] else {
            return None;
        };
        let mebibytes = |text: &str| Some(text.parse::<u64>().ok()? << 20);
        Some(Gpu {
            index: index.into(),
            name: name.into(),
            total: mebibytes(total)?,
            used: mebibytes(used)?,
            driver: driver.into(),
        })
    };
    text.lines().filter_map(gpu).collect()
}

fn devices(gpus: &[Gpu], visible: Option<&str>, device: Device) -> Vec<Check> {
    let subject = "gpus";
    if gpus.is_empty() {
        let found = "none that `nvidia-smi` tells of";
        return vec![match device {
            Device::Cuda => Check::problem(
                subject,
                found,
                "install NVIDIA's driver, or give a container the GPUs with `--gpus all`",
            ),
            Device::Cpu | Device::CpuLibTorch => Check::good(subject, found),
        }];
    }
    let mut checks: Vec<Check> = gpus
        .iter()
        .map(|gpu| {
            let found = format!(
                "{}: {}, {} free of {}, driver {}",
                gpu.index,
                gpu.name,
                gibibytes(gpu.total - gpu.used.min(gpu.total)),
                gibibytes(gpu.total),
                gpu.driver
            );
            match gpu.used > IN_USE {
                true => Check::warning(
                    subject,
                    found,
                    "other programs use it: `nvidia-smi` tells which; leave it out with CUDA_VISIBLE_DEVICES",
                ),
                false => Check::good(subject, found),
            }
        })
        .collect();
    match visible {
        Some("") | Some("-1") => checks.push(Check::problem(
            subject,
            "CUDA_VISIBLE_DEVICES hides all of them",
            "unset it, or name those that may be used",
        )),
        Some(some) => checks.push(Check::good(
            subject,
            format!("CUDA_VISIBLE_DEVICES is {some}"),
        )),
        None => {}
    }
    let mut names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    names.dedup();
    if names.len() > 1 {
        checks.push(Check::warning(
            subject,
            format!("they differ: {}", names.join(", ")),
            "all ranks wait for the slowest: use GPUs of one kind, with CUDA_VISIBLE_DEVICES",
        ));
    }
    checks
}

/// How GPUs are linked, by the matrix of `nvidia-smi topo -m`.
fn links(text: &str, gpus: usize) -> Check {
    let rows = text.lines().filter(|line| line.starts_with("GPU"));
    let mut kinds: Vec<&str> = rows
        .flat_map(|row| row.split_whitespace().skip(1).take(gpus))
        .filter(|kind| *kind != "X" && !kind.starts_with("GPU"))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let subject = "links of gpus";
    let found = kinds.join(", ");
    match kinds.iter().all(|kind| kind.starts_with("NV")) {
        true => Check::good(subject, format!("{found} (NVLink)")),
        false => Check::warning(
            subject,
            format!("{found} (not all are NVLink)"),
            "bytes go through PCIe or the host: stages 1 and 2 send least, stage 3 half as much again; see the table of bandwidths",
        ),
    }
}

#[cfg(not(feature = "tch"))]
mod libraries {
    use super::{Check, Device};

    pub(super) fn checks(gpus: usize, device: Device) -> Vec<Check> {
        let found = "this build has none";
        let remedy = "build with `--features terrashard-trainer/nccl`; `cargo xtask libtorch` sets up what that needs";
        vec![match (gpus, device) {
            (_, Device::Cuda | Device::CpuLibTorch) => Check::problem("LibTorch", found, remedy),
            (0, Device::Cpu) => Check::good("LibTorch", found),
            (_, Device::Cpu) => {
                Check::warning("LibTorch", format!("{found}, and the GPUs need it"), remedy)
            }
        }]
    }
}

#[cfg(feature = "tch")]
mod libraries {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Check, Device};

    pub(super) fn checks(gpus: usize, device: Device) -> Vec<Check> {
        let mut checks = Vec::new();
        let cuda = (gpus > 0 || device == Device::Cuda).then(terrashard_torch::load_cuda);
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let loaded = library(&maps).and_then(|path| version_beside(&path));
        checks.push(libtorch(&terrashard_torch::version(), loaded.as_deref()));
        if let Some(Err(error)) = &cuda {
            checks.push(Check::problem(
                "LibTorch",
                format!("its part for GPUs cannot be loaded: {error}"),
                "put the folder `lib` of a LibTorch for CUDA on LD_LIBRARY_PATH",
            ));
        }
        if cuda.is_some() {
            checks.extend(nccl());
        }
        checks
    }

    #[cfg(feature = "nccl")]
    fn nccl() -> Option<Check> {
        Some(match terrashard_collectives::nccl::version() {
            Ok(version) => Check::good(
                "NCCL",
                format!("{version}, the one that LibTorch has loaded"),
            ),
            Err(error) => Check::problem(
                "NCCL",
                error.to_string(),
                "one NCCL, that of LibTorch, has to be found first on LD_LIBRARY_PATH",
            ),
        })
    }

    #[cfg(not(feature = "nccl"))]
    fn nccl() -> Option<Check> {
        Some(Check::problem(
            "NCCL",
            "this build has none",
            "build with `--features terrashard-trainer/nccl` for more than one GPU",
        ))
    }

    /// LibTorch's file among those of this process.
    fn library(maps: &str) -> Option<PathBuf> {
        let line = maps
            .lines()
            .find(|line| line.ends_with("/libtorch_cpu.so"))?;
        line.find('/').map(|start| PathBuf::from(&line[start..]))
    }

    /// What `version.py` of PyTorch's packages or `build-version` of LibTorch's archives says.
    fn version_beside(library: &Path) -> Option<String> {
        let folder = library.parent()?.parent()?;
        let python = fs::read_to_string(folder.join("version.py")).ok();
        let python = python.and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("__version__ = "))?;
            Some(line.trim_matches(['\'', '"']).to_string())
        });
        python.or_else(|| {
            let text = fs::read_to_string(folder.join("build-version")).ok()?;
            Some(text.trim().to_string())
        })
    }

    fn libtorch(built: &str, loaded: Option<&str>) -> Check {
        let minor = |version: &str| -> Vec<String> {
            version.split('.').take(2).map(str::to_string).collect()
        };
        match loaded {
            None => Check::good("LibTorch", format!("built against {built}")),
            Some(loaded) if minor(loaded) == minor(built) => {
                Check::good("LibTorch", format!("{loaded}, built against {built}"))
            }
            Some(loaded) => Check::problem(
                "LibTorch",
                format!("{loaded} was loaded, but this program was built against {built}"),
                "put the folder `lib` of the one that it was built against first on LD_LIBRARY_PATH, or build again",
            ),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::super::Verdict;
        use super::*;

        #[test]
        fn another_libtorch_than_that_of_the_build_is_a_problem() {
            assert_eq!(
                libtorch("2.11.0", Some("2.11.0+cu130")).verdict,
                Verdict::Good
            );
            assert_eq!(libtorch("2.11.0", Some("2.10.1")).verdict, Verdict::Problem);
            assert_eq!(libtorch("2.11.0", None).verdict, Verdict::Good);
            let maps = "7f-8f r-xp 0 fe:01 7 /opt/torch/lib/libtorch_cpu.so\n";
            let path = library(maps).expect("it is there");
            assert_eq!(path, Path::new("/opt/torch/lib/libtorch_cpu.so"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn gpus_are_read_line_by_line() {
        let text =
            "0, NVIDIA H200, 143771, 2048, 580.95\n1, NVIDIA H200, 143771, 1, 580.95\nno gpu\n";
        let gpus = gpus_of(text);
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[1].total, 143_771 << 20);
        let verdicts = |visible, device| -> Vec<Verdict> {
            let checks = devices(&gpus, visible, device);
            checks.iter().map(|check| check.verdict).collect()
        };
        assert_eq!(
            verdicts(None, Device::Cuda),
            [Verdict::Warning, Verdict::Good]
        );
        let hidden = verdicts(Some(""), Device::Cuda);
        assert_eq!(hidden.last(), Some(&Verdict::Problem));
        let none = |device| devices(&[], None, device)[0].verdict;
        assert_eq!(none(Device::Cuda), Verdict::Problem);
        assert_eq!(none(Device::Cpu), Verdict::Good);
    }

    #[test]
    fn links_that_are_no_nvlink_are_told() {
        let matrix = |kind: &str| {
            format!(
                "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{kind}\t0-31\nGPU1\t{kind}\t X \t0-31\n\nLegend:\n"
            )
        };
        let linked = links(&matrix("NV18"), 2);
        assert_eq!(
            (linked.verdict, linked.found.as_str()),
            (Verdict::Good, "NV18 (NVLink)")
        );
        assert_eq!(links(&matrix("PHB"), 2).verdict, Verdict::Warning);
    }
}
