//! Who a process is in a run, from the environment that its launcher has set.

use std::env;

use crate::{Error, Result};

/// What `torchrun` and `terrashard launch` set.
const TORCHRUN: [&str; 5] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// Set where the launcher itself listens on `MASTER_PORT`: the run's own store takes the port after it.
const AGENT: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Ports for runs of SLURM, which names none: the first, and how many.
const SLURM_PORTS: (u64, u64) = (20_000, 20_000);

/// A process's place in the run that a launcher has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// This process, in `0..ranks`.
    pub rank: usize,
    /// Processes of the run.
    pub ranks: usize,
    /// This process among those of its host, from 0.
    pub local_rank: usize,
    /// The host of rank 0.
    pub address: String,
    /// The port of that host on which rank 0 listens.
    pub port: u16,
}

impl Launched {
    /// A run of one process. It listens on a port that is free.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            ranks: 1,
            local_rank: 0,
            address: "127.0.0.1".to_owned(),
            port: 0,
        }
    }

    /// What the environment of this process says: the variables of `torchrun`, else those of `srun`, else nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unset`] where only some of the variables are set, [`Error::Variable`] for a value that makes no sense.
    pub fn from_environment() -> Result<Option<Self>> {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// As [`from_environment`](Self::from_environment), with the variables that `value` knows.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn from_variables(value: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        // An address alone is what scripts set for several launchers.
        if let Some(set) = TORCHRUN[..3].iter().find(|name| value(name).is_some()) {
            return Variables { value, set }.torchrun().map(Some);
        }
        let set = "SLURM_PROCID";
        if value(set).is_some() {
            return Variables { value, set }.slurm();
        }
        Ok(None)
    }

    /// The variables that tell another process its place, as `torchrun` names them.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        let values = [
            self.rank.to_string(),
            self.ranks.to_string(),
            self.local_rank.to_string(),
            self.address.clone(),
            self.port.to_string(),
        ];
        let mut values = values.into_iter();
        TORCHRUN.map(|name| (name, values.next().unwrap_or_default()))
    }

    fn checked(self) -> Result<Self> {
        match self.rank < self.ranks {
            true => Ok(self),
            false => Err(Error::Variable {
                variable: "RANK".to_owned(),
                value: self.rank.to_string(),
                expected: format!("a number below the {} of all ranks", self.ranks),
            }),
        }
    }
}

/// Variables of one launcher.
struct Variables<'a, V> {
    value: V,
    /// One that is set.
    set: &'a str,
}

impl<V: Fn(&str) -> Option<String>> Variables<'_, V> {
    fn text(&self, name: &str) -> Result<String> {
        (self.value)(name).ok_or_else(|| Error::Unset {
            variable: name.to_owned(),
            set: self.set.to_owned(),
        })
    }

    fn number<T: std::str::FromStr>(&self, name: &str, expected: &str) -> Result<T> {
        let text = self.text(name)?;
        text.trim().parse().map_err(|_| Error::Variable {
            variable: name.to_owned(),
            value: text,
            expected: expected.to_owned(),
        })
    }

    fn count(&self, name: &str) -> Result<usize> {
        self.number(name, "a whole number from 0")
    }

    fn port(&self) -> Result<u16> {
        self.number("MASTER_PORT", "a port, from 1 to 65535")
    }

    fn torchrun(&self) -> Result<Launched> {
        let (rank, ranks) = (self.count("RANK")?, self.count("WORLD_SIZE")?);
        let local_rank = self.count("LOCAL_RANK")?;
        let address = self.text("MASTER_ADDR")?;
        let mut port = self.port()?;
        if (self.value)(AGENT).is_some_and(|value| value == "True") {
            port = port.checked_add(1).ok_or_else(|| Error::Variable {
                variable: "MASTER_PORT".to_owned(),
                value: port.to_string(),
                expected: "a port below 65535, since torchrun itself listens on this one"
                    .to_owned(),
            })?;
        }
        Launched {
            rank,
            ranks,
            local_rank,
            address,
            port,
        }
        .checked()
    }

    /// A batch script has a rank as well, but is no rank: only `srun` starts ranks.
    fn slurm(&self) -> Result<Option<Launched>> {
        let (rank, ranks) = (self.count("SLURM_PROCID")?, self.count("SLURM_NTASKS")?);
        if ranks == 1 {
            return Ok(None);
        }
        self.text("SLURM_STEP_ID")?;
        let local_rank = self.count("SLURM_LOCALID")?;
        let address = match (self.value)("MASTER_ADDR") {
            Some(address) => address,
            None => {
                let list = (self.value)("SLURM_STEP_NODELIST");
                let list = list.map_or_else(|| self.text("SLURM_JOB_NODELIST"), Ok)?;
                first_host(&list).ok_or_else(|| Error::Variable {
                    variable: "SLURM_JOB_NODELIST".to_owned(),
                    value: list.clone(),
                    expected: "a list of hosts such as gpu[03-07,9],big1".to_owned(),
                })?
            }
        };
        let port = match (self.value)("MASTER_PORT") {
            Some(_) => self.port()?,
            None => {
                let job: u64 = self.number("SLURM_JOB_ID", "a whole number from 0")?;
                let (first, count) = SLURM_PORTS;
                u16::try_from(first + job % count).expect("ports end below 65536")
            }
        };
        let launched = Launched {
            rank,
            ranks,
            local_rank,
            address,
            port,
        };
        launched.checked().map(Some)
    }
}

/// The first host of a list as SLURM writes them: `gpu[03-07,9],big1` begins with `gpu03`.
fn first_host(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(numbers) = rest.strip_prefix('[') else {
        return (!prefix.is_empty()).then(|| prefix.to_owned());
    };
    let (numbers, after) = numbers.split_once(']')?;
    let first = numbers.split([',', '-']).next()?;
    let suffix = after.split(',').next().unwrap_or_default();
    (!first.is_empty() && !suffix.contains('[')).then(|| format!("{prefix}{first}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launched>> {
        Launched::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const OF_TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.7"),
        ("MASTER_PORT", "29500"),
    ];

    const OF_SLURM: [(&str, &str); 6] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "1234567"),
        ("SLURM_JOB_NODELIST", "gpu[03-04]"),
    ];

    #[test]
    fn torchrun_is_taken_as_it_is() {
        let launched = read(&OF_TORCHRUN).unwrap().expect("a rank");
        let expected = Launched {
            rank: 5,
            ranks: 8,
            local_rank: 1,
            address: "10.0.0.7".into(),
            port: 29500,
        };
        assert_eq!(launched, expected);
        let told = launched.variables();
        let told = told.iter().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(read(&told.collect::<Vec<_>>()).unwrap(), Some(expected));
    }

    #[test]
    fn the_agents_port_is_left_to_it() {
        let mut variables = OF_TORCHRUN.to_vec();
        variables.push((AGENT, "True"));
        assert_eq!(read(&variables).unwrap().expect("a rank").port, 29501);
        variables[4].1 = "65535";
        let text = read(&variables).unwrap_err().to_string();
        assert!(
            text.contains("MASTER_PORT") && text.contains("65535"),
            "{text}"
        );
    }

    #[test]
    fn slurm_is_taken_as_it_is() {
        let expected = Launched {
            rank: 3,
            ranks: 4,
            local_rank: 1,
            address: "gpu03".into(),
            port: 20_000 + 14_567,
        };
        assert_eq!(read(&OF_SLURM).unwrap(), Some(expected.clone()));
        let mut variables = OF_SLURM.to_vec();
        variables.extend([("MASTER_ADDR", "login"), ("MASTER_PORT", "4000")]);
        let expected = Launched {
            address: "login".into(),
            port: 4000,
            ..expected
        };
        assert_eq!(read(&variables).unwrap(), Some(expected));
    }

    #[test]
    fn e2_what_is_half_set_names_what_is_missing() {
        for missing in 0..5 {
            let mut variables = OF_TORCHRUN.to_vec();
            let (name, _) = variables.remove(missing);
            let text = read(&variables).unwrap_err().to_string();
            assert!(text.contains(&format!("not {name}")), "{text}");
        }
        for missing in 1..6 {
            let mut variables = OF_SLURM.to_vec();
            let (name, _) = variables.remove(missing);
            let text = read(&variables).unwrap_err().to_string();
            assert!(text.contains(&format!("not {name}")), "{text}");
        }
    }

    #[test]
    fn no_launcher_no_rank() {
        assert_eq!(read(&[]).unwrap(), None);
        // Set by scripts for several launchers.
        assert_eq!(read(&OF_TORCHRUN[3..]).unwrap(), None);
        // A batch script of one task.
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        assert_eq!(read(&batch).unwrap(), None);
        // A job's variables where nothing was started by srun.
        assert_eq!(read(&[("SLURM_NTASKS", "4")]).unwrap(), None);
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        for (at, value) in [(0, "8"), (0, "-1"), (1, "eight"), (4, "70000"), (2, "")] {
            let mut variables = OF_TORCHRUN.to_vec();
            variables[at].1 = value;
            let text = read(&variables).unwrap_err().to_string();
            assert!(text.contains(variables[at].0), "{text}");
        }
    }

    #[test]
    fn the_first_host_of_a_list() {
        let check = |list, expected: Option<&str>| {
            assert_eq!(first_host(list).as_deref(), expected, "{list}");
        };
        check("gpu03", Some("gpu03"));
        check("gpu03,gpu04", Some("gpu03"));
        check("gpu[03-07,9],big1", Some("gpu03"));
        check("gpu[9,11]", Some("gpu9"));
        check("rack[1-2]-node,x", Some("rack1-node"));
        check("", None);
        check("gpu[", None);
        check("gpu[]", None);
        check("rack[1-2]node[3-4]", None);
    }
}
