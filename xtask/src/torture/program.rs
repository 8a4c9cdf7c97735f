//! The program under torture, run with a limit.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::case::{Case, Kind, Ranks, Setting};
use crate::error::{Error, Result};
use crate::mpi;
use crate::step::Step;

/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(4);

/// Seconds that ranks wait for each other where one stalls, and elsewhere.
const STALLED: &str = "2";
const PATIENT: &str = "60";

/// Seconds that the others have to end by themselves, once a process has failed: more than they need.
const END_WITHIN: &str = "100";

/// What a launcher needs to end its processes.
const LAUNCHER: Duration = Duration::from_secs(5);

/// A process that takes longer hangs: the longest timeout, ten seconds and the training itself on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(60 + 10 + 50);

/// Steps of a training.
pub(super) const STEPS: u64 = 5;

/// A part of the shipped scene with water and land.
const SCENE: &str = "S2A_T33UUU_20170216_L1C_6band_0_1152";

/// Saved after two steps, four and the last.
const CONFIG: &str = r#"
[model]
dims = [8, 8, 8, 8]
depths = [1, 1, 1, 1]
heads = [1, 1, 1, 1]
head_channels = 8
superres = false
bands = 2

[data]
scenes = [{ image = "chips/test/NAME_image.tif", mask = "chips/test/NAME_mask.tif" }]
bands = [1, 2]
train = "north"
test = "south"
chip = 32
stride = 32
overlap = 8

[train]
lr = 1e-3
clip_norm = 1.0
seed = 7

[checkpoint]
every = 2
keep_last = 2
"#;

/// The program, and what it trains on.
pub(super) struct Program {
    bin: PathBuf,
    out: PathBuf,
}

/// How a process ended.
pub(super) struct Ended {
    /// None if it hung and was killed.
    pub(super) status: Option<ExitStatus>,
    pub(super) stderr: String,
}

impl Program {
    /// Copies the program, cuts a small scene of the shipped one, whose configuration is `scene`, and writes the configuration.
    pub(super) fn set_up(bin: &Path, out: &Path, scene: &Path) -> Result<Self> {
        let out = out
            .canonicalize()
            .map_err(|error| Error::file(out, error))?;
        // The next build must not change what is being tested.
        let own = out.join("terrashard");
        fs::copy(bin, &own).map_err(|error| Error::file(bin, error))?;
        Step::new("terrashard", &own)
            .arg("chip")
            .arg(scene)
            .args(["--set", "data.chip=128", "--set", "data.selection={}"])
            .args(["--output", "chips.geojson", "--files", "chips"])
            .dir(out.clone())
            .run_beside_output()?;
        let text = CONFIG
            .replace("NAME", SCENE)
            .replace("[train]", &format!("[train]\nsteps = {STEPS}"));
        let config = out.join("torture.toml");
        fs::write(&config, text).map_err(|error| Error::file(&config, error))?;
        Ok(Self { bin: own, out })
    }

    /// Where a run is.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// Trains as `setting` says into a folder, with a fault as it is described.
    pub(super) fn fit(&self, run: &Path, setting: &Setting, fault: Option<&str>) -> Result<Ended> {
        let mut command = self.command(run, setting, Ranks::Threads);
        command.env("TERRASHARD_TIMEOUT", PATIENT);
        if let Some(fault) = fault {
            command.env("TERRASHARD_FAULT", fault);
        }
        self.run(command)
    }

    /// Trains with the fault of a case.
    pub(super) fn fit_case(&self, run: &Path, case: &Case) -> Result<Ended> {
        let mut command = self.command(run, &case.setting, case.ranks);
        let stalls = case.kind == Kind::Stall;
        command
            .env("TERRASHARD_TIMEOUT", if stalls { STALLED } else { PATIENT })
            .env("TERRASHARD_FAULT", case.fault())
            .args([
                "--set",
                &format!("checkpoint.on_failure={}", case.on_failure),
            ])
            .args(["--set", &format!("checkpoint.async={}", case.asynchronous)]);
        self.run(command)
    }

    fn command(&self, run: &Path, setting: &Setting, ranks: Ranks) -> Command {
        let count = setting.ranks.to_string();
        let mut command = match ranks {
            Ranks::Threads => Command::new(&self.bin),
            Ranks::Processes => {
                let mut command = Command::new(&self.bin);
                command.args(["launch", "--ranks", &count, "--end-within", END_WITHIN]);
                command.arg("--");
                command
            }
            Ranks::Mpi => {
                let mut command = Command::new("mpirun");
                command.args(mpi::OPTIONS).envs(mpi::ENVIRONMENT);
                command.args(["-n", &count]).arg(&self.bin);
                command
            }
        };
        command
            .current_dir(&self.out)
            .args(["fit", "torture.toml", "--quiet", "--run"])
            .arg(run)
            .args(["--device", "cpu"])
            // Ranks are threads enough.
            .env("RAYON_NUM_THREADS", "1");
        for setting in setting.overrides() {
            command.args(["--set", &setting]);
        }
        command
    }

    fn run(&self, mut command: Command) -> Result<Ended> {
        let started = Instant::now();
        let failed = |source| Error::Start {
            command: "terrashard".to_owned(),
            source,
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let mut pipe = child
            .stderr
            .take()
            .expect("standard error was piped just above");
        let reader = thread::spawn(move || {
            let mut text = Vec::new();
            // What came before an error of the pipe is told.
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break Some(status);
            }
            if started.elapsed() > LIMIT {
                // A launcher ends the processes that it has started, unless it is killed.
                let _ = Command::new("kill").arg(child.id().to_string()).status();
                thread::sleep(LAUNCHER);
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            thread::sleep(LOOK);
        };
        let stderr = reader.join().unwrap_or_default();
        Ok(Ended { status, stderr })
    }
}
